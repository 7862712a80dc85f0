"""What a format may ask about a file to recognize it: first bytes, name, size and, on request, the last bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassfs.content import Container, Group
from glassfs.errors import Unrecognised
from glassfs.formats import registry
from glassfs.formats.registry import HEAD, LONGEST_TAIL, Format, Head, Opening, open_container
from tests.helpers import CountingSource, opening


def opened(path: Path, known: Format, monkeypatch: pytest.MonkeyPatch) -> CountingSource:
    """Open a file with this format alone, and return the source with its count of reads."""
    monkeypatch.setattr(registry, "built_in", lambda: iter([known]))
    source = CountingSource(path)
    assert open_container(opening(source)).format == known.name
    return source


def container(given: Opening) -> Container:
    return Container("ends", "1", Group(b"", list), [given.source])


def test_tail_is_read_only_when_a_format_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.ends"
    path.write_bytes(bytes(1 << 20) + b"END!")
    by_head = Format("ends", lambda head: head.startswith(b"\0"), container)
    by_tail = Format("ends", lambda head: head.name.endswith(".ends") and head.tail(4) == b"END!", container)
    first, second = opened(path, by_head, monkeypatch).bytes_read, opened(path, by_tail, monkeypatch).bytes_read
    assert second - first == 4


def test_name_and_size_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.ends"
    path.write_bytes(b"x" * (HEAD + 5))
    opened(path, Format("ends", lambda head: (head.name, head.size) == ("data.ends", HEAD + 5), container), monkeypatch)
    with pytest.raises(Unrecognised):
        opened(path, Format("ends", lambda head: head.name == "other", container), monkeypatch)


@pytest.mark.parametrize("size", [0, 1, 10, HEAD - 1, HEAD, HEAD + 1, 3 * HEAD])
def test_tail_is_that_of_files_of_all_sizes(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    head = Head(data[:HEAD], "x", size, lambda offset, count: data[offset : offset + count])
    for wanted in (1, 10, 3, HEAD, 2 * HEAD, 2):
        assert head.tail(wanted) == data[-wanted:]


def test_tail_is_limited() -> None:
    size = 1 << 40
    head = Head(bytes(HEAD), "x", size, lambda offset, count: bytes(count))
    assert len(head.tail(size)) == LONGEST_TAIL


def test_head_alone_is_the_whole_file() -> None:
    head = Head(b"some bytes")
    assert (head.name, head.size, head.tail(5), head.tail(50)) == ("", 10, b"bytes", b"some bytes")
