"""CSV files: Python, pandas and DuckDB find the values that NumPy and Python have."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import Array, Column, Records, Stream, Table, Unreadable, Zeros
from glassfs.errors import Damaged, TooLarge
from glassfs.view import Key
from glassfs.view import csv as csv_view
from tests.view.test_parquet import NUMBERS, TIMES, values_of
from tests.view.views import (
    PLACE,
    array_column,
    bytes_column,
    parquet_bytes,
    ragged_column,
    records_column,
    text_column,
    whole,
)

BAD = Damaged("not there")
HOSTILE = [
    '=cmd|" /C calc"!A0', "+1", "-1", "@SUM(A1)", '"', '""', "a,b", "a\nb", "a\r\nb", "\r", "nul\0nul", "", " ", "ü€𐍈",
    "\ufeffbom", ";", "\t", "'x", "NULL", "NaN", "true", "1e5",
]
SPECIAL = [0.0, -0.0, 1.5, 0.1, 1e-45, 5e-324, 1e16, 1e22, -1 / 3, float("nan"), float("inf"), float("-inf")]


@pytest.fixture(params=[64, 1 << 20])
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make lines of a few rows at a time, of a few cells each, or of very many."""
    monkeypatch.setattr(csv_view, "PIECE", 256 * request.param)
    return int(request.param)


def csv_data(table: Table, cache: BlockCache, key: Key) -> Stream:
    (shown,) = csv_view.show(table, cache, key)
    assert isinstance(shown.thing, Stream)
    return shown.thing


def csv_bytes(columns: Sequence[Column], rows: int, budget: int = 1 << 20) -> bytes:
    """Return the bytes of the file, after checking that its size and ranges in any order agree with them."""
    return whole(lambda: csv_data(Table(b"table", rows, lambda: columns), BlockCache(budget), PLACE))


def read(raw: bytes) -> tuple[list[str], list[list[str]]]:
    """Return the names and the rows."""
    assert raw.endswith(b"\r\n")
    csv.field_size_limit(1 << 30)
    names, *rows = csv.reader(io.StringIO(raw.decode(), newline=""), strict=True)
    return names, rows


def columns_of(raw: bytes) -> dict[str, list[str]]:
    names, rows = read(raw)
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


@pytest.mark.parametrize("rows", [0, 1, 9, 1000])
def test_numbers_are_exact(step: int, rows: int, tmp_path: Path) -> None:
    arrays = {dtype[1:]: values_of(dtype, (rows,)) for dtype in NUMBERS}
    raw = csv_bytes([array_column(name.encode(), array) for name, array in arrays.items()], rows)
    found = columns_of(raw)
    assert list(found) == list(arrays)
    for name, expected in arrays.items():
        cells = [cell == "true" if name == "b1" else cell for cell in found[name]]
        np.testing.assert_array_equal(np.array(cells, expected.dtype), expected)
    if rows:
        (tmp_path / "a.csv").write_bytes(raw)
        with duckdb.connect() as connection:
            shown = connection.execute("from read_csv(?)", [str(tmp_path / "a.csv")]).fetchnumpy()
        frame = pd.read_csv(io.BytesIO(raw), keep_default_na=False, na_values=[])
        for name in ("b1", "i2", "i8"):
            np.testing.assert_array_equal(shown[name], arrays[name])
            np.testing.assert_array_equal(frame[name].to_numpy(), arrays[name])


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_special_floats_are_short_and_exact(dtype: str) -> None:
    with np.errstate(over="ignore"):
        expected = np.array(SPECIAL).astype(dtype)
    cells = columns_of(csv_bytes([array_column(b"x", expected)], len(expected)))["x"]
    assert np.array(cells, dtype).tobytes() == expected.tobytes()
    assert cells[3] == "0.1" and cells[-3:] == ["NaN", "Infinity", "-Infinity"]
    assert all(len(cell) <= {"<f2": 10, "<f4": 14, "<f8": 22}[dtype] for cell in cells)


def test_times_are_iso_8601(step: int) -> None:
    arrays = {dtype[1:]: values_of(dtype, (50,)) for dtype in TIMES}
    for array in arrays.values():
        array[::5] = "NaT"
    found = columns_of(csv_bytes([array_column(name.encode(), array) for name, array in arrays.items()], 50))
    for name, array in arrays.items():
        assert [cell == "" for cell in found[name]] == np.isnat(array).tolist()
        if name[0] == "M":
            unit = "ns" if name.endswith("ns]") else "us"
            shown = np.array([cell or "NaT" for cell in found[name]], f"<M8[{unit}]")
            np.testing.assert_array_equal(shown, array.astype(f"<M8[{unit}]"))
        else:
            seconds = [Decimal(cell) for cell in found[name] if cell]
            counts = array[~np.isnat(array)].view("<i8").tolist()
            assert seconds == [count * seconds_of(name) for count in counts]


def seconds_of(name: str) -> Decimal:
    """Return the length of the unit in a name such as ``m8[100ns]``."""
    unit = np.timedelta64(1, name[3:-1]).astype("m8[ns]")
    return Decimal(int(unit.astype("i8"))) / 10**9


def test_names_and_vectors_are_those_of_parquet(step: int) -> None:
    rows = 30
    few = array_column(b"few", values_of("<f4", (rows, 3)))
    columns = [
        few._replace(slots=lambda: ["a,b", '"', "a,b"]), array_column(b"few.0", values_of("<i2", (rows,))),
        array_column(b"matrix", values_of("<i2", (rows, 2, 2))), array_column(b"many", values_of("<u4", (rows, 65))),
        array_column(b"none", values_of("<f8", (rows, 0))), array_column(b"", values_of("|b1", (rows,))),
        array_column(b"\xff\0", values_of("|u1", (rows,))), array_column(b"few", values_of("<i8", (rows,))),
        array_column(b"truths", values_of("|b1", (rows, 70))),
    ]
    raw = csv_bytes(columns, rows)
    names, _ = read(raw)
    found = columns_of(raw)
    parquet = pq.read_table(io.BytesIO(parquet_bytes(columns, rows)))
    assert names == parquet.schema.names and len(set(names)) == len(names)
    assert [int(cell) for cell in found["matrix.3"]] == parquet["matrix.3"].to_pylist()
    for name in ("many", "none", "truths"):
        assert [json.loads(cell) for cell in found[name]] == parquet[name].to_pylist()


def test_runs_are_json_and_bytes_are_base64(step: int) -> None:
    runs = [np.arange(length) / 4 for length in (0, 3, 1, 0, 5000)]
    runs[1][0], runs[2][0] = np.nan, np.inf
    when = [np.array(["2020-01-01", "NaT"][:length], "<M8[us]") for length in (0, 1, 2, 0, 2)]
    blobs = [b"", b"\0\xff", b"=", b"x" * 200_000, b"abc"]
    raw = csv_bytes([
        ragged_column(b"runs", runs, "<f8"), ragged_column(b"when", when, "<M8[us]"), bytes_column(b"blobs", blobs),
    ], 5)
    found = columns_of(raw)
    lists = [[float(value) for value in json.loads(cell)] for cell in found["runs"]]
    for shown, expected in zip(lists, runs, strict=True):
        np.testing.assert_array_equal(shown, expected)
    assert json.loads(found["runs"][1])[0] == "NaN"
    assert [json.loads(cell) for cell in found["when"]] == [
        [], ["2020-01-01T00:00:00.000000"], ["2020-01-01T00:00:00.000000", None], [],
        ["2020-01-01T00:00:00.000000", None],
    ]
    assert [base64.b64decode(cell) for cell in found["blobs"]] == blobs


DOTNET = np.array([-621_355_968_000_000_000, 2_534_023_007_999_999_999, 15_778_368_000_000_009, -1], "<M8[100ns]")


@pytest.mark.parametrize(("values", "cells"), [
    (DOTNET, ["0001-01-01T00:00:00.0000000", "9999-12-31T23:59:59.9999999", "2020-01-01T00:00:00.0000009",
              "1969-12-31T23:59:59.9999999"]),
    (np.array([1.5 - 2j, -1j]), ["1.5-2j", "-0-1j"]), (np.array([b"a\xff", b"=1"]), ["a\ufffd", "=1"]),
    (np.array(["a\0b", "ü"]), ["a\ufffdb", "ü"]), (np.array([b"\0\1\2", b"abc"], "V3"), ["AAEC", "YWJj"]),
    (np.array(["1970", "2020"], "<M8[Y]"), ["1970", "2020"]), (np.array([1, -2], "<m8[M]"), ["1", "-2"]),
], ids=lambda value: str(getattr(value, "dtype", "")))
def test_cells_of_other_dtypes(values: np.ndarray[Any, Any], cells: list[str]) -> None:
    assert columns_of(csv_bytes([array_column(b"x", values)], len(values)))["x"] == cells


def test_hostile_texts_come_back(step: int, tmp_path: Path) -> None:
    texts = HOSTILE * 3
    shown = [text.replace("\0", "\ufffd") for text in texts]
    raw = csv_bytes([
        text_column(b"text", [text.encode() for text in texts]), array_column(b"n", np.arange(len(texts))),
        records_column(b"record", texts), records_column(b"=cmd", [None, *texts[1:]]),
        records_column(b"list", [[text, None] for text in texts], is_list=True),
    ], len(texts))
    found = columns_of(raw)
    assert found["text"] == found["record"] == shown and found["=cmd"] == ["", *shown[1:]]
    assert [json.loads(cell) for cell in found["list"]] == [[text, None] for text in texts]
    (tmp_path / "a.csv").write_bytes(raw)
    frame = pd.read_csv(tmp_path / "a.csv", keep_default_na=False, na_values=[], dtype=str)
    columns = "{" + ", ".join(f"'{name}': 'varchar'" for name in found) + "}"
    options = f"""auto_detect=false, header=true, quote='"', escape='"', columns={columns}"""
    with duckdb.connect() as connection:
        rows = connection.execute(f"select text, n from read_csv(?, {options})", [str(tmp_path / "a.csv")]).fetchall()
    assert [text or "" for text, _ in rows] == frame["text"].tolist() == shown
    assert [number for _, number in rows] == frame["n"].tolist() == found["n"]


VALUES = st.one_of(st.none(), st.text(max_size=6), st.booleans(), st.integers(), st.floats())


@given(st.lists(st.tuples(st.text(max_size=5), VALUES, st.binary(max_size=5)), max_size=40), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_any_rows_come_back(rows: list[tuple[str, Any, bytes]], block: int) -> None:
    texts, values, raws = zip(*rows, strict=True) if rows else ((), (), ())
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    _, lines = read(csv_bytes([
        text_column(b"a", encoded), records_column(b"b", values, block), text_column(b"c", raws),
    ], len(rows)))
    for cells, (_, value, raw), stored in zip(lines, rows, encoded, strict=True):
        for cell, text in ((cells[0], stored), (cells[2], raw)):
            assert cell == text.decode("utf-8", "replace").replace("\0", "\ufffd")
        if isinstance(value, float):
            assert np.array(float(cells[1])).tobytes() == np.array(value).tobytes() or value != value
        elif isinstance(value, str):
            shown = value.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            assert cells[1] == shown
        else:
            assert cells[1] == ("" if value is None else str(value).lower())


def test_one_empty_column_has_a_line_for_each_row() -> None:
    assert csv_bytes([text_column(b"a", [b"", b"x", b""])], 3) == b'a\r\n""\r\nx\r\n""\r\n'


def test_blocks_that_do_not_align_are_read_once(step: int) -> None:
    """Those of the pass that finds the size are those of all reads."""
    counts: dict[tuple[str, int], int] = {}
    rows = 1200

    def records(name: str, size: int) -> Column:
        def block(number: int) -> list[int]:
            counts[name, number] = counts.get((name, number), 0) + 1
            return list(range(number * size, min((number + 1) * size, rows)))

        return Column(name.encode(), Records(name.encode(), -(-rows // size), block, cost=lambda number: 500))

    columns = [records("a", 1), records("b", 7), records("c", 500), records("d", rows)]
    data = csv_data(Table(b"t", rows, lambda: columns), BlockCache(8 << 20), PLACE)
    assert not data.is_sized and not counts
    _, found = read(data.read(0, data.size))
    assert found == [[str(number)] * 4 for number in range(rows)]
    assert data.read(data.size - 5, 3) == b"199" and set(counts.values()) == {1}


def test_long_cells_need_memory() -> None:
    long = [b"a" * (2 << 20), b'"\xf0\x90\x8d\x88' * 1000, b"\xff", b"\0"]
    columns = [text_column(b"text", long), array_column(b"n", np.arange(4))]
    with pytest.raises(TooLarge, match="more than 32 MiB of memory as CSV; use the view parquet"):
        assert csv_data(Table(b"t", 4, lambda: columns), BlockCache(4 << 20), PLACE).size
    data = csv_data(Table(b"t", 4, lambda: columns), BlockCache(256 << 20), PLACE)
    found = columns_of(data.read(0, data.size))
    assert found["text"] == [text.decode("utf-8", "replace").replace("\0", "\ufffd") for text in long]


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 40, 0), (1 << 10, 1 << 25)])
def test_too_many_values_are_refused_at_once(shape: tuple[int, ...]) -> None:
    rows, inner = shape[0], shape[1] if shape[1:] else 1
    column = Column(b"n", Array(b"n", Zeros(rows * inner), "|u1", shape))
    with pytest.raises(TooLarge, match="too large for CSV; use the view parquet"):
        assert csv_data(Table(b"t", rows, lambda: [column]), BlockCache(), PLACE).size


def test_records_of_many_columns_keep_to_their_memory() -> None:
    def size(cost: int) -> int:
        records = Records(b"", 1, lambda block: ["x" * cost], cost=lambda block: 2 * cost)
        columns = [Column(b"%d" % number, records) for number in range(40)]
        return csv_data(Table(b"t", 1, lambda: columns), BlockCache(1 << 20), PLACE).size

    assert size(500_000) - size(1000) == 40 * (500_000 - 1000)
    with pytest.raises(TooLarge, match="more than 32 MiB of memory as CSV; use the view parquet"):
        size(1 << 20)


@pytest.mark.parametrize(("stored", "reason"), [
    ([1, 2], "has 2 rows, but its table has 3"), ([1, 2, 3, 4], "has more rows than the 3 of its table"),
    ([], "has 0 rows, but its table has 3"),
])
def test_records_with_other_rows_are_damage(stored: list[int], reason: str) -> None:
    for block in (1, 3, 9):
        with pytest.raises(Damaged, match=reason):
            csv_bytes([array_column(b"n", np.arange(3)), records_column(b"r", stored, block)], 3)


def test_a_bad_column_is_damage_and_is_tried_again() -> None:
    column = Column(b"n", Array(b"n", Unreadable(4000, BAD), "<i4", (1000,)))
    data = csv_data(Table(b"t", 1000, lambda: [column]), BlockCache(), PLACE)
    for _ in range(2):
        with pytest.raises(Damaged, match="not there"):
            _ = data.size
