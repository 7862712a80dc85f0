"""Parquet files: four readers find the values of NumPy and Python, damage stays local, and sizes need no decoding."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Memory, Ragged, RaggedText, Records, Table, Unreadable
from glassfs.errors import Damaged, TooLarge
from glassfs.view.parquet import VIEW, Parquet
from glassfs.view.parquet.pages import LARGEST_PAGE, demand_possible
from tests.view.views import (
    Noted,
    array_column,
    bytes_column,
    memory_below,
    parquet_bytes,
    parquet_data,
    ragged_column,
    records_column,
    small_pages,
    text_column,
)

NUMBERS = ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]
TIMES = [f"<{kind}8[{unit}]" for kind in "Mm" for unit in ("ns", "us", "ms", "100ns", "s", "m", "h", "D", "7D", "W")]
SIZES = [0, 1, 9, 1000]
PAGES = [(1 << 20, 1 << 20), (64, 1 << 20), (100, 64)]


def values_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    chance = np.random.default_rng(7)
    if dtype[1] in "mM":
        return chance.integers(-100_000, 100_000, shape).astype(dtype)
    found = np.dtype(dtype)
    raw = chance.integers(0, 256, (*shape, found.itemsize), dtype=np.uint8)
    return (raw & 1 if dtype == "|b1" else raw).view(dtype).reshape(shape)


class Readers:
    """One file as four readers see it: columns as lists."""

    def __init__(self, columns: list[Column], rows: int, folder: Path) -> None:
        whole = parquet_bytes(columns, rows)
        self.path = folder / "table.parquet"
        self.path.write_bytes(whole)
        self.arrow = pq.read_table(io.BytesIO(whole))
        self.polars = pl.read_parquet(io.BytesIO(whole))
        self.pandas = pd.read_parquet(io.BytesIO(whole))
        with duckdb.connect() as connection:
            self.duckdb = connection.execute("from read_parquet(?)", [str(self.path)]).fetchnumpy()
            self.rows = connection.execute("from read_parquet(?)", [str(self.path)]).fetchall()

    def of(self, name: str) -> dict[str, list[Any]]:
        place = self.arrow.schema.names.index(name)
        return {
            "pyarrow": self.arrow[name].to_pylist(), "polars": self.polars[name].to_list(),
            "duckdb": [row[place] for row in self.rows],
        }


@pytest.mark.parametrize(("page", "group"), PAGES)
@pytest.mark.parametrize("rows", SIZES)
def test_numbers(tmp_path: Path, rows: int, page: int, group: int) -> None:
    arrays = {dtype[1:]: values_of(dtype, (rows,)) for dtype in NUMBERS}
    with small_pages(page, group):
        found = Readers([array_column(name.encode(), array) for name, array in arrays.items()], rows, tmp_path)
    for name, expected in arrays.items():
        for shown in (
            found.arrow[name].to_numpy(), found.polars[name].to_numpy(), found.pandas[name].to_numpy(),
            np.asarray(found.duckdb[name]),
        ):
            wanted = expected.astype("<f4") if name == "f2" and shown.dtype == np.float32 else expected
            assert shown.dtype == wanted.dtype
            np.testing.assert_array_equal(shown, wanted)


@pytest.mark.parametrize("rows", [0, 9, 1000])
@pytest.mark.parametrize("page", [1 << 20, 64])
def test_times(tmp_path: Path, rows: int, page: int) -> None:
    arrays = {dtype[1:]: values_of(dtype, (rows,)) for dtype in TIMES}
    for array in arrays.values():
        array[::5] = "NaT"
    with small_pages(page):
        found = Readers([array_column(name.encode(), array) for name, array in arrays.items()], rows, tmp_path)
    for name, array in arrays.items():
        expected = array.astype(f"<{name[0]}8[us]")  # rounds down
        for shown in (found.pandas[name].to_numpy(), found.arrow[name].to_pandas().to_numpy()):
            assert shown.dtype.kind == name[0]
            np.testing.assert_array_equal(shown.astype(expected.dtype), expected)
        assert isinstance(found.polars[name].dtype, pl.Datetime if name[0] == "M" else pl.Duration)
        in_polars = found.polars[name].to_numpy().astype(expected.dtype)
        np.testing.assert_array_equal(in_polars, expected)
        if name[0] == "M" and rows:
            in_duckdb = found.duckdb[name]
            assert (np.ma.getmaskarray(in_duckdb) == np.isnat(expected)).all()
            np.testing.assert_array_equal(np.ma.getdata(in_duckdb)[~np.isnat(expected)].astype("<M8[us]"),
                                          expected[~np.isnat(expected)])


def test_the_dates_of_dotnet_are_right(tmp_path: Path) -> None:
    """The first and the last date, beyond the range of nanoseconds, and rounding."""
    ticks = np.array([-621_355_968_000_000_000, 2_534_023_007_999_999_999, 15_778_368_000_000_009, -1], "<i8")
    found = Readers([array_column(b"when", ticks.view("<M8[100ns]"))], 4, tmp_path)
    expected = [
        "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "2020-01-01T00:00:00", "1969-12-31T23:59:59.999999",
    ]
    for shown in found.of("when").values():
        assert [value.isoformat() for value in shown] == expected


def test_times_beyond_64_bits_are_damage() -> None:
    column = array_column(b"when", np.array([1 << 60], "<i8").view("<M8[s]"))
    with pytest.raises(OSError, match="does not fit"):
        parquet_bytes([column], 1)


@pytest.mark.parametrize(("page", "group"), PAGES)
@pytest.mark.parametrize("rows", [0, 9, 300])
def test_vectors_runs_and_records(tmp_path: Path, rows: int, page: int, group: int) -> None:
    arrays = {
        "few": values_of("<u4", (rows, 3)), "matrix": values_of("<i2", (rows, 2, 4)),
        "truth": values_of("|b1", (rows, 5)), "slots": values_of("|u1", (rows, 64)),
        "many": values_of("<i4", (rows, 65)), "many_truths": values_of("|b1", (rows, 67)),
        "none": values_of("<f8", (rows, 0)),
    }
    expected = {name: arrays[name].tolist() for name in ("many", "many_truths", "none")}
    for name, width in (("few", 3), ("matrix", 8), ("truth", 5), ("slots", 64)):
        slots = arrays[name].reshape(rows, width).T
        expected |= {f"{name}.{slot}": values.tolist() for slot, values in enumerate(slots)}
    numbers = [np.arange(row % 4) / 3 for row in range(rows)]
    truths = [np.arange(row % 9) % 3 == 1 for row in range(rows)]
    expected |= {
        "text": [f"é☃x{row}" * (row % 5) for row in range(rows)],
        "raw": [bytes([row % 256] * (row % 3)) for row in range(rows)],
        "numbers": [row.tolist() for row in numbers], "truths": [row.tolist() for row in truths],
        "small": [row.astype(int).tolist() for row in truths],
        "texts": [None if row % 5 == 0 else f"ö{row}" * (row % 3) for row in range(rows)],
        "lists": [
            None if row % 7 == 0 else [None if item == 1 else f"i{item}" for item in range(row % 4)]
            for row in range(rows)
        ],
        "floats": [None if row % 3 == 0 else row / 3 for row in range(rows)],
        "booleans": [None if row % 4 == 0 else row % 3 == 0 for row in range(rows)],
        "bytes": [None if row % 4 == 0 else row % 200 for row in range(rows)],
        "nothing": [None] * rows,
    }
    columns = [
        *(array_column(name.encode(), array) for name, array in arrays.items()),
        text_column(b"text", [row.encode() for row in expected["text"]]), bytes_column(b"raw", expected["raw"]),
        ragged_column(b"numbers", numbers, "<f8"), ragged_column(b"truths", truths, "|b1", "<i8"),
        ragged_column(b"small", truths, "|u1", "<u4"),
        records_column(b"texts", expected["texts"]), records_column(b"lists", expected["lists"], is_list=True),
        records_column(b"floats", expected["floats"], 13, "<f8"),
        records_column(b"booleans", expected["booleans"], 100, "|b1"),
        records_column(b"bytes", expected["bytes"], 1, "|u1"), records_column(b"nothing", expected["nothing"]),
    ]
    with small_pages(page, group):
        found = Readers(columns, rows, tmp_path)
    assert sorted(found.arrow.schema.names) == sorted(expected)
    for name, values in expected.items():
        for reader, shown in found.of(name).items():
            assert shown == values, (reader, name)


def test_opaque_bytes(tmp_path: Path) -> None:
    arrays = {
        "S5": np.array([b"abcde", b"\0\1", b""], "S5"), "V16": np.frombuffer(bytes(range(48)), "V16"),
        "U2": np.array(["ab", "\u2603", ""], "<U2"), "c8": np.array([1, 2j, 3], "<c8"),
        "months": np.array([1, 2, 3], "<M8[M]"), "nothing": np.zeros(3, "V0"),
    }
    found = Readers([array_column(name.encode(), array) for name, array in arrays.items()], 3, tmp_path)
    assert found.arrow.schema.names == list(arrays)[:-1]
    for name in ("S5", "V16", "U2", "c8"):
        for shown in found.of(name).values():
            assert shown == [value.tobytes().ljust(arrays[name].itemsize, b"\0") for value in arrays[name]]
    assert found.arrow["months"].to_pylist() == [1, 2, 3]


def test_invalid_utf8_becomes_question_marks(tmp_path: Path) -> None:
    """One a byte, so that the size stays; also where a row ends within a character, and in rows made in parts."""
    long = b"\xc3\xa9" * 70_000 + b"\xff" + b"\xe2\x98\x83" * 30_000
    rows = [b"\xff", "é".encode()[:1], "é".encode()[1:], "é☃".encode(), b"\xe2\x98a\xed\xa0\x80", b"", long]
    found = Readers([text_column(b"text", rows)], len(rows), tmp_path)
    expected = ["?", "?", "?", "é☃", "??a???", "", "é" * 70_000 + "?" + "☃" * 30_000]
    for shown in found.of("text").values():
        assert shown == expected


def test_unpaired_surrogates_in_records_are_replaced(tmp_path: Path) -> None:
    found = Readers([records_column(b"text", ["a\ud800b"])], 1, tmp_path)
    for shown in found.of("text").values():
        assert shown == ["a\ufffdb"]


def test_names(tmp_path: Path) -> None:
    names = [b"a.b", b"a/b", b"q\"'`", b"", b"same", b"same", b"same~2", b"\xff\xfe", b"n\0l", b"new\nline"]
    names += ["ü☃".encode(), b"v", b"v.1"]
    values = [*range(11), [1, 2], 3]
    columns = [array_column(name, np.array([value], "<i4")) for name, value in zip(names, values, strict=True)]
    found = Readers(columns, 1, tmp_path)
    shown = [
        "a.b", "a/b", "q\"'`", "%", "same", "same~2", "same~2~2", "\\xff\\xfe", "n\\x00l", "new\nline", "ü☃",
        "v.0", "v.1", "v.1~2",
    ]
    assert found.arrow.schema.names == found.polars.columns == list(found.pandas) == list(found.duckdb) == shown
    assert found.rows == [(*range(11), 1, 2, 3)]


def test_only_wanted_rows_and_columns_are_read(tmp_path: Path) -> None:
    array = np.arange(100_000, dtype="<i4")
    with small_pages(1 << 12, 1 << 13):
        found = Readers([array_column(b"a", array), array_column(b"b", array * 2)], len(array), tmp_path)
    file = pq.ParquetFile(found.path)
    assert file.metadata.num_row_groups == 13
    assert file.read_row_group(5, columns=["b"])["b"].to_pylist() == (array[5 << 13 : 6 << 13] * 2).tolist()


@given(
    st.integers(0, 700), st.sampled_from([64, 100, 1000, 1 << 20]), st.sampled_from([8, 64, 1 << 20]),
    st.sampled_from([*NUMBERS, *TIMES, "|S3", "<c16"]), st.sampled_from(NUMBERS), st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_the_size_and_any_range_agree_with_the_whole(
    rows: int, page: int, group: int, dtype: str, item: str, block: int,
) -> None:
    texts = [b"%d" % row * (row * block % 7) for row in range(rows)]
    items = [None if row % 4 == block else f"r{row}" for row in range(rows)]
    columns = [
        *(array_column(b"array", values_of(dtype, (rows, *tail))) for tail in ((), (1,), (3,), (66,))),
        ragged_column(b"runs", [values_of(item, (row % 5,)) for row in range(rows)], item),
        text_column(b"text", texts), bytes_column(b"raw", texts), records_column(b"records", items, block),
        records_column(b"lists", [[item] for item in items], block, is_list=True),
    ]
    with small_pages(page, group):
        whole = parquet_bytes(columns, rows)
    table = pq.read_table(io.BytesIO(whole))
    table.validate(full=True)
    assert table.num_rows == rows


def test_many_threads_read_the_same(tmp_path: Path) -> None:
    """Threads share a file of which nothing is known yet."""
    rows = 5000
    columns = [
        array_column(b"vector", values_of("<f4", (rows, 7))), array_column(b"time", values_of("<M8[us]", (rows,))),
        text_column(b"text", [b"%d" % row for row in range(rows)]),
        records_column(b"records", ["x", None] * (rows // 2)),
    ]
    with small_pages(1000, 512), ThreadPoolExecutor(8) as pool:
        whole = parquet_bytes(columns, rows)
        data = parquet_data(columns, rows)
        starts = range(0, len(whole) - 5000, 1777)
        for start, found in zip(starts, pool.map(lambda start: data.read(start, 5000), starts), strict=True):
            assert found == whole[start : start + 5000]


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


@pytest.mark.parametrize(("budget", "passes"), [(8 << 20, 1), (64 << 10, 2)])
def test_pages_that_gave_the_size_are_read_from_the_cache(budget: int, passes: int) -> None:
    """As far as there is memory for them."""
    made: list[int] = []

    def block(number: int) -> list[str]:
        made.append(number)
        return [f"{number:01000}"] * 10

    data = parquet_data([Column(b"text", Records(b"text", 2, block))], 20, BlockCache(budget))
    assert data.size > 20_000
    assert pq.read_table(io.BytesIO(data.whole())).column("text").to_pylist()[-1] == f"{1:01000}"
    assert made == [0, 1] * passes


def test_records_that_change_are_damage() -> None:
    """The rows differ from those that were measured."""
    rows, cache = ["abc"], BlockCache(8 << 20)
    data = parquet_data([Column(b"text", Records(b"text", 1, lambda _: rows))], 1, cache)
    assert data.size
    cache.clear()
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
    with memory_below(60 << 20):
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
    assert max(numbers.bytes_read, vectors.bytes_read, texts.bytes_read, runs.bytes_read, ends.bytes_read) < 40 << 20


def test_too_large_page_is_refused() -> None:
    demand_possible(LARGEST_PAGE)
    with pytest.raises(TooLarge):
        demand_possible(LARGEST_PAGE + 1)
    for row in (LARGEST_PAGE, 3 << 30):
        offsets = Memory(struct.pack("<2Q", 0, row))
        data = parquet_data([Column(b"t", RaggedText(b"t", Noted(row), offsets, "<u8", 1))], 1)
        with pytest.raises(TooLarge, match="must stand in one page"):
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
def test_tables_too_wide_or_empty_are_left_out(width: int, error: type[Exception], reason: str) -> None:
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
