"""Test what reads a source: the parsing cursor, file objects for libraries that want one, and mapped bytes."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.errors import Changed, Damaged
from glassfs.source import Reader, SourceFile
from glassfs.source.sealed import SealedSource
from tests.helpers import CountingSource, local, opening
from tests.memory_store import MemoryStore

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


# The cursor.


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> CountingSource:
    path = tmp_path_factory.mktemp("reader") / "file.bin"
    path.write_bytes(CONTENT)
    return CountingSource(path)


KINDS = st.sampled_from(["take", "peek", "skip", "u8"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 300)), max_size=40)


@given(STEPS, st.integers(0, 19_000), st.integers(0, 1000), st.sampled_from([1, 16, 4096]))
def test_any_steps_equal_slicing_the_part(
    source: CountingSource, steps: list[tuple[str, int]], start: int, length: int, window: int,
) -> None:
    """A step beyond the end of the part raises Damaged."""
    reader = Reader(source, start, start + length, "the part", window)
    part, position = CONTENT[start : start + length], 0
    for step, size in steps:
        if step == "peek":
            assert reader.peek(size) == part[position : position + size]
            continue
        wanted = 1 if step == "u8" else size
        if position + wanted > len(part):
            with pytest.raises(Damaged, match=r"file\.bin: the part"):
                getattr(reader, step)(*(() if step == "u8" else (wanted,)))
        else:
            expected = part[position : position + wanted]
            if step == "take":
                assert reader.take(wanted) == expected
            elif step == "skip":
                reader.skip(wanted)
            else:
                assert reader.u8() == expected[0]
            position += wanted
        assert reader.remaining == len(part) - position


def test_fields_are_unpacked(source: CountingSource) -> None:
    reader = Reader(source, 3, 100, "header")
    assert reader.unpack("<HqB") == struct.unpack_from("<HqB", CONTENT, 3)
    with pytest.raises(Damaged):
        reader.unpack("<100s")


def test_small_fields_cost_one_read_and_long_skips_none(source: CountingSource) -> None:
    source.reads.clear()
    reader = Reader(source, 0, len(CONTENT), "chain")
    for _ in range(500):
        reader.u8()
    reader.skip(15_000)
    for _ in range(100):
        reader.unpack("<H")
    assert len(source.reads) == 2
    assert source.bytes_read <= 2 * 4096


def test_the_window_stays_inside_the_part(source: CountingSource) -> None:
    source.reads.clear()
    Reader(source, 100, 110, "part").take(2)
    assert source.reads == [(100, 10)]


@pytest.mark.parametrize(("start", "end"), [(0, 25_601), (-1, 5), (10, 9), (30_000, 30_001), (0, 1 << 70)])
def test_parts_outside_the_source_are_damage(source: CountingSource, start: int, end: int) -> None:
    with pytest.raises(Damaged, match="lies outside the file"):
        Reader(source, start, end, "index")


@pytest.mark.parametrize("size", [-1, 101, 1 << 62])
def test_lengths_that_lie_allocate_nothing(source: CountingSource, size: int) -> None:
    source.reads.clear()
    reader = Reader(source, 0, 100, "part")
    for step in (reader.take, reader.skip):
        with pytest.raises(Damaged, match=r"file\.bin: part: needs"):
            step(size)
    assert source.reads == []
    assert reader.position == 0


# File objects.


def test_it_reads_seeks_and_ends_like_a_file(path: Path) -> None:
    with opening(path).file() as file, path.open("rb") as real:
        assert file.readable() and file.seekable() and not file.writable()
        for one in (file, real):
            assert one.seek(-10, io.SEEK_END) == len(CONTENT) - 10
        assert file.read(100) == real.read(100) == CONTENT[-10:]
        assert file.read(1) == real.read(1) == b""
        assert file.seek(5) == 5 and file.read(7) == CONTENT[5:12] and file.tell() == 12
        assert file.seek(3, io.SEEK_CUR) == 15 and file.readline() == CONTENT[15:267]
        file.seek(len(CONTENT) + 9)
        assert file.read() == b""
        file.seek(0)
        assert file.read() == CONTENT
        with pytest.raises(ValueError, match="negative"):
            SourceFile(MemoryStore({"x": b""}).open(("x",))).seek(-1)


def test_libraries_read_through_it(tmp_path: Path) -> None:
    values = np.arange(1000.0)
    np.savez(tmp_path / "x.npz", a=values)
    with opening(tmp_path / "x.npz").file() as file, zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["a.npy"]
    assert np.array_equal(np.load(opening(tmp_path / "x.npz").file())["a"], values)


def test_small_reads_cost_one_read_of_the_source(path: Path) -> None:
    source = CountingSource(path)
    with opening(source).file() as file:
        assert b"".join(file.read(10) for _ in range(100)) == CONTENT[:1000]
    assert len(source.reads) == 1
    assert source.read(0, 4) == CONTENT[:4]  # closing the file object has not closed the source
    source.close()


def test_file_objects_have_positions_of_their_own_and_take_siblings(path: Path) -> None:
    (path.parent / "y").write_bytes(b"sibling")
    given = opening(path)
    first, second = given.file(), given.file(given.sibling("y"))
    first.seek(100)
    assert second.read() == b"sibling"
    assert first.read(2) == CONTENT[100:102]
    first.close()
    with pytest.raises(ValueError, match="closed"):
        first.read(1)


def test_errors_of_the_source_are_also_errors_of_the_system(path: Path) -> None:
    given = opening(path)
    file = given.file()
    path.write_bytes(b"")
    with pytest.raises(OSError) as raised:
        file.read(10)
    assert isinstance(raised.value, (Damaged, OSError)) and str(path.name) in str(raised.value)


# Mapped bytes.


@pytest.mark.parametrize(("offset", "size"), [(0, 25_600), (1, 3), (4095, 4098), (8192, 8192), (25_599, 1)])
def test_mapped_bytes_are_those_of_the_opened_file(path: Path, offset: int, size: int) -> None:
    source = local(path)
    mapped = source.mapped(offset, size)
    assert mapped is not None and mapped.readonly and bytes(mapped) == CONTENT[offset : offset + size]
    path.replace(path.with_name("b"))
    path.write_bytes(b"other" * 10_000)
    source.close()
    assert bytes(mapped) == CONTENT[offset : offset + size]


@pytest.mark.parametrize(("offset", "size"), [(0, len(CONTENT) + 1), (-1, 3), (len(CONTENT), 1), (1 << 70, 1), (5, 0)])
def test_nothing_outside_the_file_is_mapped(path: Path, offset: int, size: int) -> None:
    assert local(path).mapped(offset, size) is None


def test_a_changed_file_is_not_mapped(path: Path) -> None:
    source = local(path)
    os.truncate(path, 100)
    with pytest.raises(Changed):
        source.mapped(0, len(CONTENT))


def test_a_sealed_source_is_verified_before_mapping(path: Path) -> None:
    source = SealedSource(local(path), "0" * 64)
    source.seal()
    with pytest.raises(Damaged):
        source.mapped(0, 10)


def test_other_stores_map_nothing() -> None:
    assert MemoryStore({"a": CONTENT}).open(("a",)).mapped(0, 10) is None
