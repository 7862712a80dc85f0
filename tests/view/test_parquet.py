"""Parquet files: four readers find the values that NumPy and Python have."""

from __future__ import annotations

import io
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

from glassfs.content import Column
from tests.codec.test_thrift import Decoder
from tests.view.tables import (
    array_column,
    bytes_column,
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


COLUMN = st.one_of(
    st.tuples(
        st.just("array"), st.sampled_from([*NUMBERS, *TIMES, "|S3", "<c16"]), st.sampled_from([(), (1,), (3,), (66,)]),
    ),
    st.tuples(st.sampled_from(["text", "raw", "records", "lists"]), st.integers(0, 9), st.none()),
    st.tuples(st.just("ragged"), st.sampled_from(NUMBERS), st.none()),
)


@given(
    st.lists(COLUMN, min_size=1, max_size=5), st.integers(0, 700), st.sampled_from([16, 100, 1000, 1 << 20]),
    st.sampled_from([8, 64, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_the_size_and_any_range_agree_with_the_whole(
    kinds: list[tuple[str, Any, Any]], rows: int, page: int, group: int,
) -> None:
    columns = []
    for number, (kind, detail, tail) in enumerate(kinds):
        name = b"c%d" % number
        if kind == "array":
            columns.append(array_column(name, values_of(detail, (rows, *tail))))
        elif kind == "ragged":
            lists = [values_of(detail, (row % 5,)) for row in range(rows)]
            columns.append(ragged_column(name, lists, detail))
        elif kind in ("text", "raw"):
            texts = [b"%d" % row * (row * detail % 7) for row in range(rows)]
            columns.append((text_column if kind == "text" else bytes_column)(name, texts))
        else:
            items: list[Any] = [None if row % 4 == detail else f"r{row}" for row in range(rows)]
            is_list = kind == "lists"
            items = [[item] for item in items] if is_list else items
            columns.append(records_column(name, items, detail + 1, "", is_list))
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
    with small_pages(1000, 512):
        whole = parquet_bytes(columns, rows)
        data = parquet_data(columns, rows)

        def read(start: int) -> bool:
            end = min(data.size, start + 5000)
            return data.read(start, end - start) == whole[start:end]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(0, len(whole), 1777)))


def test_levels_fill_their_section_with_one_run() -> None:
    """Some readers go on where the run ends, others where its section does: so both are one place."""
    rows = [np.arange(row % 3) / 2 for row in range(100)]
    whole = parquet_bytes([ragged_column(b"runs", rows, "<f8")], len(rows))
    decoder = Decoder(whole)
    decoder.position = 4
    header = decoder.struct()
    assert header[5][1] == sum(max(1, len(row)) for row in rows)
    begin = decoder.position
    for _ in range(2):
        end = decoder.position + 4 + int.from_bytes(whole[decoder.position : decoder.position + 4], "little")
        decoder.position += 4
        run = decoder.varint()
        assert run & 1
        assert decoder.position + (run >> 1) == end
        decoder.position = end
    assert decoder.position + sum(map(len, rows)) * 8 == begin + header[2]
