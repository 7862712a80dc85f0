"""Test the parsing cursor: bounds, number of reads, and errors that name the part."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.errors import Damaged
from glassfs.source import Reader
from tests.helpers import CountingSource

CONTENT = bytes(number * 7 % 256 for number in range(20_000))


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


@pytest.mark.parametrize(("start", "end"), [(0, 20_001), (-1, 5), (10, 9), (30_000, 30_001), (0, 1 << 70)])
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
