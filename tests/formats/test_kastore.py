"""kastore stores, against the kastore package, the samples, and hostile bytes."""

from __future__ import annotations

import logging
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import kastore
import numpy as np
import pytest
from writers.kastore import KastoreWriter

from glassfs.content import Array, Container, Fault
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import AHEAD, open_container
from tests.formats.exercise import peak_memory
from tests.helpers import CountingSource, contents_of, omitted_in, open_bytes, open_path, opening, values_of, walk

HEADER, DESCRIPTOR = 64, 64
KEY_START, KEY_LENGTH, ARRAY_START, ARRAY_LENGTH = 8, 16, 24, 32  # fields of a descriptor


def store(items: dict[Any, Any] | list[tuple[Any, Any]], folder: Path, name: str = "made.kas", **options: Any) -> Path:
    path = folder / name
    with KastoreWriter(path, **options) as writer:
        for key, values in items.items() if isinstance(items, dict) else items:
            writer.add(key, values)
    return path


def arrays_of(container: Container) -> dict[bytes, Array]:
    return {name: content for name, content in walk(container.root) if isinstance(content, Array)}


def patched(path: Path, place: int, layout: str, *numbers: int) -> bytes:
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, place, *numbers)
    return bytes(data)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Two items: `a` (3 uint8, so that padding follows) and `bb` (2 int32)."""
    return store({"a": np.array([1, 2, 3], "u1"), "bb": np.array([4, 5], "i4")}, tmp_path)


def faults_of(data: bytes) -> list[Fault]:
    return list(open_bytes(data).check())


@pytest.mark.parametrize(("place", "words"), [
    (HEADER + 2 * DESCRIPTOR + len("abb") + 4, "the padding before the array"),
    (24, "of the header"), (63, "of the header"), (HEADER + 1, "of the descriptors"),
    (HEADER + 7, "of the descriptors"), (HEADER + DESCRIPTOR + 40, "of the descriptors"),
    (HEADER + DESCRIPTOR + 63, "of the descriptors"),
])
def test_verify_finds_nonzero_padding_and_reserved_bytes(pair: Path, place: int, words: str) -> None:
    (fault,) = faults_of(patched(pair, place, "B", 1))
    assert words in fault.reason


def test_a_later_minor_version_may_use_the_reserved_bytes(pair: Path) -> None:
    data = bytearray(patched(pair, 24, "B", 1))
    struct.pack_into("<H", data, 10, 7)
    container = open_bytes(bytes(data))
    assert container.version == "1.7"
    assert list(container.check()) == []


def test_the_depth_of_keys_is_limited(tmp_path: Path) -> None:
    key = b"/".join([b"d"] * 100_000)
    (member,) = open_path(store({key: [1]}, tmp_path)).root.members()
    assert b"/".join(member.name) == key
    assert len(member.name) == 256


@pytest.mark.parametrize(("keys", "reason"), [
    ([b"", b"a"], "empty"), ([b"k" * (17 << 20)], "takes 17M of memory or more for keys"),
])
def test_keys_that_cannot_be_names_are_refused(tmp_path: Path, keys: list[bytes], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        open_path(store([(key, [1]) for key in keys], tmp_path))


def test_of_equal_keys_the_last_comes_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    items = [("a", [1]), ("a", [2]), ("b", [2]), ("a", [3]), ("c", [4]), ("b", [5]), ("a", [6])]
    container = open_path(store(items, tmp_path, sort=False))
    with caplog.at_level(logging.WARNING):
        found = {name: [values_of(content).tolist() for content in same]
                 for name, same in contents_of(container.root).items()}
        list(container.root.members())
    assert found == {b"a": [[6], [1], [2], [3]], b"b": [[5], [2]], b"c": [[4]]}
    assert len(caplog.records) == 1
    reasons = [fault for fault in container.check() if "same key" in fault.reason]
    assert [(fault.place, fault.reason.split()[1]) for fault in reasons] == [
        ("a", "0"), ("a", "1"), ("b", "2"), ("a", "3"),
    ]
    (fault,) = (fault for fault in container.check() if fault not in reasons)
    assert fault.place == "a" and "out of order" in fault.reason


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    store({"x": np.array([1], "u1")}, tmp_path)
    store({}, tmp_path, append=True)
    return store({"y/z": np.array([2.5])}, tmp_path, append=True)


def test_appended_stores_have_numbered_directories(chain: Path) -> None:
    container = open_path(chain)
    groups = {member.name: member.content for member in container.root.members()}
    assert list(groups) == [(b"x",), (b"appended", b"1"), (b"appended", b"2")]
    assert list(contents_of(groups[b"appended", b"1"])) == []
    found = arrays_of(container)
    assert values_of(found[b"appended/2/y/z"]).tolist() == [2.5]
    assert found[b"appended/2/y/z"].key == b"y/z"
    assert container.facts["appended_stores"] == 2
    assert list(container.check()) == []
    with open(chain, "rb") as file:
        theirs = [dict(kastore.load(file, read_all=True)) for _ in range(3)]
    assert theirs[2]["y/z"].tolist() == [2.5]


def test_an_appended_store_that_is_damaged_costs_itself_only(chain: Path) -> None:
    data = bytearray(chain.read_bytes())
    third = data.rindex(b"\x89KAS")
    data[third + HEADER] = 99  # the element type
    container = open_bytes(bytes(data) + chain.read_bytes())
    members = {member.name: member.content for member in container.root.members()}
    with pytest.raises(Damaged, match="made: appended/2: item 0 has the unknown element type 99"):
        list(members[b"appended", b"2"].members())
    assert list(contents_of(members[b"appended", b"5"])) == [b"y/z"]
    assert list(container.check()) == [Fault("appended/2", "item 0 has the unknown element type 99")]


@pytest.mark.parametrize("left", [8, 20, 64, 100])
def test_cut_appended_stores_are_left_out_with_a_reason(
    pair: Path, left: int, caplog: pytest.LogCaptureFixture,
) -> None:
    data = pair.read_bytes()
    container = open_bytes(data + data + data[:left])
    assert list(arrays_of(container)) == [b"a", b"bb", b"appended/1/a", b"appended/1/bb"]
    (fault,) = container.check()
    assert fault.place == "appended/2" and "cut short" in fault.reason
    assert omitted_in(container.root) == {"appended/2": f"appended store: {fault.reason}"}
    assert [record.getMessage().partition("/made: ")[2] for record in caplog.records] == [f"appended/2: {fault.reason}"]


@pytest.mark.parametrize("junk", [b"\0" * 4096, b"hello", b"\x89KAS", b"x" * 100])
def test_junk_behind_the_last_store_is_ignored_and_logged(
    pair: Path, junk: bytes, caplog: pytest.LogCaptureFixture,
) -> None:
    container = open_bytes(pair.read_bytes() + junk)
    reason = f"{len(junk)} bytes after the last store are ignored"
    assert [record.getMessage().partition("/made: ")[2] for record in caplog.records] == [reason]
    assert list(arrays_of(container)) == [b"a", b"bb"] and not omitted_in(container.root)
    assert list(container.check()) == [Fault("", reason)]


@pytest.mark.slow
def test_the_number_of_appended_stores_is_limited(tmp_path: Path) -> None:
    (tmp_path / "many.kas").write_bytes(store({}, tmp_path).read_bytes() * 100_000)
    container = open_path(tmp_path / "many.kas", budget=1 << 20)
    assert omitted_in(container.root)["appended/65537"].startswith("too many stores: ")
    assert sum(1 for _ in container.root.members()) == container.facts["appended_stores"] + 1 == 65_537
    assert not list(container.check())


FIELDS = [
    (8, "<H", 0, "version 0.0"), (12, "<I", 2**32 - 1, ""),
    (12, "<I", 3, "the header declares 216 bytes, which do not fit 3 items"),
    (16, "<Q", 2**63, "is cut short: the header declares 9223372036854775808 bytes, but only 216 exist"),
    (HEADER, "B", 10, "unknown element type 10"), (HEADER + KEY_START, "<Q", 2**64 - 1, ""),
    (HEADER + KEY_LENGTH, "<Q", 0, ""), (HEADER + KEY_LENGTH, "<Q", 2**64 - 192, ""),
    (HEADER + KEY_LENGTH, "<Q", 100, "runs past the first array"),
    (HEADER + ARRAY_START, "<Q", 192, ""), (HEADER + ARRAY_START, "<Q", 2**64 - 8, ""),
    (HEADER + ARRAY_LENGTH, "<Q", 2**64 - 1, ""), (HEADER + DESCRIPTOR + ARRAY_LENGTH, "<Q", 2**62 + 2, ""),
    (HEADER + DESCRIPTOR + ARRAY_LENGTH, "<Q", 3, "the arrays lie from 200 to 220, but 200 to 216 is expected"),
]


@pytest.mark.parametrize(("place", "layout", "value", "reason"), FIELDS)
def test_an_index_that_contradicts_itself_is_refused(
    pair: Path, place: int, layout: str, value: int, reason: str,
) -> None:
    with pytest.raises(Refused) as caught:
        open_bytes(patched(pair, place, layout, value), "made.kas")
    error = caught.value
    assert error.source.endswith("/made.kas") and str(error) == f"{error.source}: {error.reason}"
    assert reason in error.reason and "made.kas" not in error.reason and "\n" not in str(error)


def test_similar_files_are_explained() -> None:
    with pytest.raises(Refused, match="text mode"):
        open_bytes(b"\x89KAS\n\x1a\n" + bytes(100), "old.trees")


def test_the_index_is_read_once_to_open_and_once_to_list(tmp_path: Path) -> None:
    """However many keys there are, and whatever of them is kept is small."""
    count = 10_000
    path = store([(b"%06d" % number, np.array([number % 7], "u1")) for number in range(count)], tmp_path)
    index = HEADER + (DESCRIPTOR + 6) * count
    source = CountingSource(path)
    container = open_container(opening(source))
    assert source.bytes_read <= index + AHEAD
    source.reads.clear()
    tracemalloc.start()
    members = list(container.root.members())
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert source.bytes_read <= index
    assert len(members) == count
    assert kept < 500 * count
    del members
    assert peak_memory(lambda: sum(1 for _ in container.root.members())) < 4 << 20
