"""Parquet files of damaged or false tables: damage stays local, memory small, sizes need no decoding."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Memory, Ragged, RaggedText, Records, Table, Unreadable
from glassfs.errors import Damaged, TooLarge
from glassfs.view.parquet import VIEW, Parquet
from glassfs.view.parquet.pages import demand_possible
from tests.view.tables import (
    array_column,
    parquet_bytes,
    parquet_data,
    ragged_column,
    records_column,
    small_pages,
    text_column,
)
from tests.view.views import Noted

BAD = Damaged("not there")
ROWS = 1_000_000_000


class Rising(Noted):
    """Offsets of rows of three values each."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        super().read_into(buffer, offset)
        assert offset % 8 == len(buffer) % 8 == 0
        buffer[:] = (np.arange(offset // 8, (offset + len(buffer)) // 8) * 3).astype("<i8").tobytes()


def text(offsets: Sequence[int]) -> Column:
    packed = Memory(np.array(offsets, "<u4").tobytes())
    return Column(b"text", RaggedText(b"text", Memory(bytes(10)), packed, "<u4", len(offsets) - 1))


def numbers(offsets: Sequence[int]) -> Column:
    packed = Memory(np.array(offsets, "<i8").tobytes())
    return Column(b"runs", Ragged(b"runs", Memory(bytes(40)), "<f4", packed, "<i8", len(offsets) - 1))


def test_sizes_read_nothing_except_records() -> None:
    columns = [
        Column(b"a", Array(b"a", Unreadable(4000, BAD), "<f4", (1000,))),
        Column(b"b", Array(b"b", Unreadable(8000, BAD), "<M8[100ns]", (1000,))),
        Column(b"v", Array(b"v", Unreadable(3000, BAD), "|u1", (1000, 3))),
        Column(b"l", Array(b"l", Unreadable(90_000, BAD), "|b1", (1000, 90))),
        Column(b"t", RaggedText(b"t", Unreadable(500, BAD), Unreadable(4004, BAD), "<u4", 1000)),
        Column(b"r", Ragged(b"r", Unreadable(400, BAD), "<f4", Unreadable(8008, BAD), "<i8", 1000)),
    ]
    readable = [
        array_column(b"a", np.zeros(1000, "<f4")), array_column(b"b", np.zeros(1000, "<M8[100ns]")),
        array_column(b"v", np.zeros((1000, 3), "|u1")), array_column(b"l", np.zeros((1000, 90), bool)),
        text_column(b"t", [b"x" * (row // 500) for row in range(1000)]),
        ragged_column(b"r", [np.zeros(int(row % 10 == 3)) for row in range(1000)], "<f4"),
    ]
    for page in (1 << 20, 100):
        with small_pages(page):
            data = parquet_data(columns, 1000)
            assert data.is_sized
            assert data.size == len(parquet_bytes(readable, 1000))


def test_damaged_column_leaves_other_columns_readable() -> None:
    fine = array_column(b"fine", np.arange(1000, dtype="<i4"))
    bad = Column(b"bad", Array(b"bad", Unreadable(4000, BAD), "<i4", (1000,)))
    data = parquet_data([fine, bad], 1000)
    whole = parquet_bytes([fine, array_column(b"bad", np.zeros(1000, "<i4"))], 1000)
    assert data.size == len(whole)
    with pytest.raises(Damaged, match="not there"):
        data.read(0, data.size)
    begin = whole.rindex(bytes(4000))
    shown = data.read(0, begin) + bytes(4000) + data.read(begin + 4000, len(whole) - begin - 4000)
    assert pq.read_table(io.BytesIO(shown), columns=["fine"])["fine"].to_pylist() == list(range(1000))


@pytest.mark.parametrize("column", [text, numbers])
@pytest.mark.parametrize("offsets", [
    [1, 2, 3, 10], [0, 4, 3, 10], [0, 2, 3, 9], [0, 2, 3, 11], [0, 2, 2**31 - 1, 10], [0, 11, 11, 10],
    [0, 11, 3, 3, 4, 10], [0, 9, 1, 9, 1, 9, 1, 9, 1, 10],
])
@pytest.mark.parametrize(("page", "group"), [(1 << 20, 1 << 20), (1, 1 << 20), (1, 8)])
def test_false_offsets_are_damage(column: Any, offsets: list[int], page: int, group: int) -> None:
    with small_pages(page, group):
        data = parquet_data([column(offsets)], len(offsets) - 1)
        with pytest.raises(Damaged, match="do not rise"):
            data.read(0, data.size)


def test_negative_offsets_are_damage() -> None:
    data = parquet_data([numbers([0, -5, 3, 10])], 3)
    with pytest.raises(Damaged):
        data.read(0, data.size)


@pytest.mark.parametrize(("content", "rows", "reason"), [
    (Array(b"a", Memory(bytes(40)), "<f4", (11,)), 11, None), (Array(b"a", Memory(bytes(40)), "<f4", (5, 3)), 11, None),
    (RaggedText(b"t", Memory(b""), Memory(bytes(8)), "<u4", 11), 11, None),
    (Ragged(b"t", Memory(b""), "<f4", Memory(bytes(8)), "<u8", 11), 11, None),
    *((records_column(b"r", ["x"] * 10, 3).content, rows, "rows") for rows in (9, 11, 100)),
    *((records_column(b"r", [value], 3, dtype).content, 1, "not one of its column")
      for dtype, value in (("<i4", "x"), ("|u1", 1000), ("<f8", [1.0]), ("", 5))),
])
def test_false_lengths_and_types_are_damage(content: Any, rows: int, reason: str | None) -> None:
    with pytest.raises(Damaged, match=reason):
        _ = parquet_data([Column(b"a", content)], rows).size


def test_records_that_change_are_damage() -> None:
    """The rows differ from those that were measured."""
    rows = ["abc"]
    data = parquet_data([Column(b"text", Records(b"text", 1, lambda _: rows))], 1)
    assert data.size
    rows[0] = "longer"
    with pytest.raises(Damaged, match="were expected"):
        data.read(0, data.size)


def test_records_take_one_pass_when_size_is_needed() -> None:
    asked: list[int] = []

    def block(number: int) -> list[Any]:
        asked.append(number)
        return [1.5, None]

    data = parquet_data([Column(b"cells", Records(b"cells", 3, block, dtype="<f4"))], 6)
    assert not data.is_sized
    assert not asked
    size = data.size
    assert data.size == size
    assert asked == [0, 1, 2]
    assert data.is_sized


def test_a_billion_rows_take_little_memory() -> None:
    """Neither the footer nor any range takes memory for each page or reads much more than requested."""
    numbers, vectors = Noted(4 * ROWS), Noted(8 * ROWS)
    texts, ends, runs = Noted(3 * ROWS), Rising(8 * (ROWS + 1)), Noted(6 * ROWS)
    columns = [
        Column(b"n", Array(b"n", numbers, "<f4", (ROWS,))), Column(b"v", Array(b"v", vectors, "<f4", (ROWS, 2))),
        Column(b"t", RaggedText(b"t", texts, ends, "<i8", ROWS)),
        Column(b"w", Array(b"w", runs, "<i2", (ROWS, 3))),
    ]
    tracemalloc.start()
    try:
        data = parquet_data(columns, ROWS, BlockCache(64 << 20))
        size = data.size
        assert not ends.bytes_read
        footer = struct.unpack("<I", data.read(size - 8, 4))[0]
        assert footer < 1 << 20
        for part in range(17):
            data.read(size * part // 17, 100_000)
        # A file that is its footer only is enough for what it says about itself.
        metadata = pq.read_metadata(io.BytesIO(b"PAR1" + data.read(size - 8 - footer, footer + 8)))
        assert metadata.num_rows == ROWS
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert max(numbers.bytes_read, vectors.bytes_read, texts.bytes_read, runs.bytes_read, ends.bytes_read) < 40 << 20


def test_too_large_page_is_refused() -> None:
    demand_possible(2**31 - 1)
    with pytest.raises(TooLarge):
        demand_possible(2**31)
    row = 3 << 30
    offsets = Memory(struct.pack("<2Q", 0, row))
    data = parquet_data([Column(b"t", RaggedText(b"t", Noted(row), offsets, "<u8", 1))], 1)
    with pytest.raises(TooLarge):
        data.read(100, 10)


def test_a_vector_too_long_for_a_page_is_left_out() -> None:
    wide = Column(b"wide", Array(b"wide", Noted(8 << 30), "<f8", (1, 1 << 30)))
    whole = parquet_bytes([wide, array_column(b"a", np.array([5], "<i4"))], 1)
    assert pq.read_table(io.BytesIO(whole)).to_pydict() == {"a": [5]}


def test_many_vectors_are_lists() -> None:
    """A table of thousands of vectors has not a column for each of their elements."""
    columns = [array_column(b"v%d" % number, np.ones((2, 50), "|u1")) for number in range(100)]
    schema = pq.read_schema(io.BytesIO(parquet_bytes(columns, 2)))
    assert schema.names == [f"v{number}" for number in range(100)]
    assert {str(kind) for kind in schema.types} == {"list<element: uint8 not null>"}


def wide(columns: int, width: int | None = None) -> Table:
    made = [Column(b"c%d" % number, Array(b"", Noted(40), "<f4", (10,))) for number in range(columns)]
    return Table(b"wide", 10, lambda: made, width=columns if width is None else width)


@pytest.mark.parametrize(("width", "error", "reason"), [
    (10_001, TooLarge, "10001 columns is too wide"), (1 << 40, TooLarge, "too wide"), (0, Damaged, "no columns"),
])
def test_tables_too_wide_or_empty_are_left_out(
    width: int, error: type[Exception], reason: str,
) -> None:
    with pytest.raises(error, match=reason):
        list(VIEW.show(wide(1, width), BlockCache(), ("v",)))


def test_a_column_beyond_64_bits_is_refused() -> None:
    with pytest.raises(TooLarge):
        assert parquet_data([Column(b"n", Array(b"n", Noted(1 << 62), "<f4", (1 << 60,)))], 1 << 60).size


@pytest.mark.slow
def test_memory_for_many_wide_tables_is_bounded() -> None:
    """A listing keeps the files of thousands of tables; what is known of their columns is not kept with them."""
    cache, files = BlockCache(8 << 20), []
    tables = [wide(500) for _ in range(10)]
    tracemalloc.start()
    try:
        for number, table in enumerate(tables):
            files.append(Parquet(table, cache, ("v", number)))
            assert files[-1].size == files[0].size
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        assert 0 < cache.of_files.weight <= 2 << 20
    finally:
        tracemalloc.stop()
    first, last = (file.read(file.size - 5000, 5000) for file in (files[0], files[-1]))
    assert first == last
    del files[:]
    assert cache.of_files.weight == 0
