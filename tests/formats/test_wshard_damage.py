"""WShard: wrong headers, truncation, and damage of single blocks."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from glassfs.content import Array, Blob
from glassfs.content.model import Stored
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import open_container
from tests.formats.exercise import peak_memory
from tests.formats.sound import ARRAY, fill
from tests.formats.sound import sound as sound_named
from tests.formats.wshard_files import (
    blocks_of,
    entry_of,
    faults_of,
    header_of,
    made,
    raw_of,
    state,
    with_entry,
    with_header,
)
from tests.helpers import array_of, contents_of, omitted_in, only, open_bytes, opening

STEPS = len(ARRAY)


def sound(codec: str = "none") -> bytes:
    return sound_named(f"wshard {codec}")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("version", 1, "version 1"), ("version", 3, "version 3"), ("entry_size", 56, "56"), ("entry_size", 0, "0 bytes"),
     ("role", 1, "MoSH"), ("role", 2, "Sample"), ("role", 3, "GemmPanel"), ("role", 6, "UMSH"), ("role", 7, "role 7"),
     ("role", 8, "ColumnShard"), ("role", 0, "role 0"), ("role", 4, "meta/manifest"), ("count", (1 << 32) - 1, "index"),
     ("count", 8, "names"), ("names_offset", 64, "names"), ("names_offset", 1 << 40, "names"),
     ("data_offset", 8, "names"), ("data_offset", 1 << 63, "names")],
)
def test_impossible_headers_are_refused_with_the_reason(field: str, value: int, reason: str) -> None:
    with pytest.raises(Refused, match=f"/made: .*{reason}"):
        open_bytes(with_header(sound(), **{field: value}))


@pytest.mark.parametrize("field", ["alignment", "compression", "total_size", "schema_offset"])
def test_wrong_but_unused_header_fields_are_reported(field: str) -> None:
    container = open_bytes(with_header(sound(), **{field: 7}))
    assert np.array_equal(array_of(container, "signal/x"), ARRAY)
    assert "header" in faults_of(container)


def test_truncated_files_keep_the_blocks_that_are_whole() -> None:
    data = made(fill, has_metadata=True)
    whole = state(open_bytes(data))
    index_end = header_of(data)["data_offset"]
    for size in range(0, len(data), 97):
        try:
            container = open_bytes(data[:size])
        except Refused:
            assert size < index_end
            continue
        assert size >= index_end
        for name, found in state(container).items():
            end = sum(entry_of(data, name.decode())[1][field] for field in ("offset", "stored"))
            assert found == (whole[name] if end <= size else "damaged") or (
                end <= size and name.startswith((b"signal/", b"residual/"))  # as bytes: its description is cut off
            )


def test_a_cut_block_keeps_its_type_where_the_length_confirms_it() -> None:
    described = {"channels": [{"id": "x", "dtype": "f32", "shape": [40]}]}
    metadata = {"meta/episode": {"length_T": STEPS}, "meta/channels": described}
    container = open_bytes(made(blocks_of(metadata | {"signal/x": ARRAY}))[:-100])
    content = only(container, "signal/x")
    assert isinstance(content, Array) and content.shape == ARRAY.shape
    with pytest.raises(Damaged, match=r"/made: signal/x: .*outside"):
        content.data.whole()


@pytest.mark.parametrize(
    "changed",
    [{"offset": 1 << 40}, {"offset": (1 << 64) - 16}, {"offset": 0}, {"stored": 1 << 62}, {"stored": 9000},
     {"stored": (1 << 64) - 1, "offset": (1 << 64) - 1}],
)
@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_block_that_cannot_be_where_its_entry_says(codec: str, changed: dict[str, int]) -> None:
    container = open_bytes(with_entry(sound(codec), "signal/x", **changed))
    content = only(container, "signal/x")
    assert isinstance(content, Stored) and 0 < content.data.size < 1 << 20
    with pytest.raises(Damaged, match=r"/made: signal/x: "):
        content.data.read(0, 1)
    assert raw_of(container, "reward") == np.arange(STEPS, dtype="<f4").tobytes()


@pytest.mark.parametrize("size", [0, 100, 2559, 2561, 7000, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_wrong_raw_size_is_damage_of_that_block(codec: str, size: int) -> None:
    container = open_bytes(with_entry(sound(codec), "signal/x", original=size))
    content = only(container, "signal/x")
    assert content.data.size  # also of a block that declares 0 bytes: an empty file is read without an error
    with pytest.raises(Damaged):
        content.data.whole()
    assert raw_of(container, "reward") == np.arange(STEPS, dtype="<f4").tobytes()


@pytest.mark.parametrize("changed", [{"name_offset": 1 << 31}, {"name_len": 65535}])
def test_a_block_without_a_name_is_shown_under_its_number(changed: dict[str, int]) -> None:
    container = open_bytes(with_entry(sound(), "signal/x", **changed))
    found = contents_of(container.root)
    (content,) = found[b"unnamed/0"]
    assert isinstance(content, Blob) and content.data.whole() == ARRAY.tobytes()
    assert not omitted_in(container.root)
    assert b"reward" in found


def test_names_of_very_many_parts_do_not_become_directories() -> None:
    data = made(blocks_of({"/" * 60_000: b"deep", "x": b"plain"}), has_metadata=False)
    assert [len(member.name) for member in open_bytes(data).root.members()][:2] == [256, 1]


def test_an_index_that_would_cost_much_memory_is_refused() -> None:
    def overlapping(writer: WShardWriter) -> None:
        writer.add("/" * 65_535, b"")
        for _ in range(300):
            writer.add("x", b"")

    data = made(overlapping, has_metadata=False)
    for number in range(1, 301):
        place = 64 + 48 * number + 8
        data = data[:place] + bytes(4) + b"\xff\xff" + data[place + 6 :]
    with pytest.raises(Refused, match="of memory or more for names"):
        open_bytes(data)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"7", b"null", b'{"channels": {"a": 1}}', b"[]"],
)
@pytest.mark.parametrize("name", ["meta/channels", "meta/episode"])
def test_unusable_metadata_leave_blocks_readable(name: str, text: bytes) -> None:
    def with_text(writer: WShardWriter) -> None:
        fill(writer)
        writer.add(name, text)

    container = open_bytes(made(with_text))
    assert raw_of(container, "signal/x") == ARRAY.tobytes()
    assert raw_of(container, name) == text


def test_metadata_with_a_wrong_checksum_are_not_believed() -> None:
    data = sound()
    place = data.index(b'"f32"')
    container = open_bytes(data[: place + 2] + b"6" + data[place + 3 :])
    assert isinstance(only(container, "signal/x"), Blob)
    with pytest.raises(Damaged, match="meta/channels: its checksum"):
        raw_of(container, "meta/channels")


def test_very_large_metadata_are_not_parsed() -> None:
    text = b"[" + b"{}," * 4_000_000 + b"{}]"

    def with_text(writer: WShardWriter) -> None:
        writer.add("signal/x", ARRAY)
        writer.add("meta/channels", text, "zstd")

    container = open_bytes(made(with_text))
    assert isinstance(only(container, "signal/x"), Blob)
    assert raw_of(container, "meta/channels") == text


@pytest.mark.parametrize(("head", "reason"), [
    *((bytes(reserved), "^starts with zeros: its writer has not finished it") for reserved in (64, 1504, 1 << 16)),
    (bytes(63) + b"x", "is not a container of a known format"),
    (b"\0\0\0\x18ftypmp42", "is not a container of a known format"),
])
def test_unfinished_recordings_are_explained(head: bytes, reason: str) -> None:
    """Zeros where the header will be, and the first pieces behind them (docs/formats/wshard.md §13)."""
    with pytest.raises(Refused) as caught:
        open_bytes(head + ARRAY.tobytes(), "episode.wshard.partial")
    assert re.search(reason, caught.value.reason)


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    b"[" + b"{}," * 1_300_000 + b"{}]", b'{"channels": [' + b'{"":0},' * 550_000 + b"{}]}",
    b'["' + b"\xf0\x9f\x98\x80" * 1_000_000 + b'"]',
], ids=["objects", "channels", "wide text"])
def test_parsed_metadata_reserve_memory_for_their_values(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "made"
    path.write_bytes(made(lambda writer: [writer.add("signal/x", ARRAY), writer.add("meta/channels", text)]))
    given = opening(path, 1 << 30)
    sizes: list[int] = []
    reserve = given.cache.reserved
    monkeypatch.setattr(given.cache, "reserved", lambda size: (sizes.append(size), reserve(size))[1])

    def look() -> None:
        with suppress(Refused):  # so many channels are
            open_container(given)

    assert peak_memory(look) < sum(sizes) < 300 << 20
    assert given.cache.used == 0
