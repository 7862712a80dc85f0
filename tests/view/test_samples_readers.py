"""Every sample as others read its views: pyarrow, pandas, polars, DuckDB, zarr and xarray find what the .npy have."""

from __future__ import annotations

import csv
import io
import json
import math
from base64 import b64encode
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glassfs.content import Array, Table
from glassfs.content.table import slot_names
from glassfs.errors import GlassfsError
from glassfs.library import open_tree
from glassfs.tree import Directory, File, Node, Tree
from glassfs.view.parquet.columns import MOST_SLOTS, Names
from tests.formats.derived import LARGEST
from tests.helpers import file_data
from tests.view.test_samples import OTHERS, SMALL, nodes_of

ALWAYS = (
    "wshard/py_all_dtypes_zstd.wshard", "kastore/all_dtypes.kas", "kastore/ragged.trees", "idv/datatypes.idv",
    "idv/vectors_sparse.idv", "kinodb/special_floats.kdb", "ikv/arrays_v1.ikv", "wshard/py_hostile_names.wshard",
)
"""Containers that short runs read as well: together they have every dtype."""
PARAMETERS = [
    pytest.param(path, id=name, marks=[pytest.mark.slow] * (name not in ALWAYS))
    for name, path in {**SMALL, **OTHERS}.items()
]


@pytest.fixture(params=PARAMETERS)
def container(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def opened(path: Path) -> Tree:
    try:
        return open_tree(path, views="parquet+csv+zarr")
    except GlassfsError:
        pytest.skip("is refused")


def bytes_of(file: File) -> bytes | None:
    """Return the bytes of a file, or None if it is damaged or very large."""
    try:
        return file.read(0, file.size) if file.size <= LARGEST else None
    except GlassfsError:
        return None


def test_tables_equal_the_arrays(container: Path, tmp_path: Path) -> None:
    with opened(container) as tree, duckdb.connect() as connection:
        for place, node in nodes_of(tree):
            if place.endswith(".parquet") and isinstance(node, File) and isinstance(node.content, Table):
                raw = bytes_of(node)
                if raw is not None:
                    path = tmp_path / "table.parquet"
                    path.write_bytes(raw)
                    rows = connection.execute("from read_parquet(?)", [str(path)]).fetchall()
                    Compared(raw, rows).all_of(node.content)


class Compared:
    """A file as four readers see it, column by column."""

    def __init__(self, raw: bytes, rows: list[Any]) -> None:
        self._arrow = pq.read_table(io.BytesIO(raw))
        self._polars = pl.read_parquet(io.BytesIO(raw))
        self._pandas = pd.read_parquet(io.BytesIO(raw))
        self._rows = rows
        self._next = 0

    def all_of(self, table: Table) -> None:
        names, shown = Names(), self._arrow.schema.names
        assert self._arrow.num_rows == len(self._polars) == len(self._pandas) == len(self._rows) == table.rows
        for column in table.columns():
            if not isinstance(column.content, Array):
                assert shown[self._next] == names.new(column.name).decode()
                self._equal()
                continue
            array = np.load(io.BytesIO(file_data(column.content).whole()))
            if array.dtype.kind in "mM" and np.datetime_data(array.dtype) == ("ns", 100):
                # NumPy's own conversion overflows at the least of them.
                rounded = np.where(np.isnat(array), np.iinfo("<i8").min, array.view("<i8") // 10)
                array = rounded.astype(f"<{array.dtype.kind}8[us]")
            flat = array.reshape(len(array), math.prod(array.shape[1:]))
            if array.ndim > 1 and not 0 < flat.shape[1] <= MOST_SLOTS:
                assert shown[self._next] == names.new(column.name).decode()
                assert self._arrow.column(self._next).to_pylist() == flat.tolist()
                self._equal()
                continue
            for slot, name in enumerate(slot_names(column, flat.shape[1])):
                assert shown[self._next] == names.new(column.name, None if array.ndim == 1 else name).decode()
                self._values(flat[:, slot])
        assert self._next == len(shown)

    def _values(self, expected: np.ndarray[Any, Any]) -> None:
        """The next column is these values for all readers, in their dtype."""
        number = self._next
        self._next += 1
        arrow, polars = self._arrow.column(number), self._polars.to_series(number)
        if expected.dtype.kind in "mM":
            for found in (arrow.to_pandas().to_numpy(), polars.to_numpy(), self._pandas.iloc[:, number].to_numpy()):
                np.testing.assert_array_equal(found.astype(expected.dtype), expected)
            return
        for found in (arrow.to_numpy(), polars.to_numpy(), self._pandas.iloc[:, number].to_numpy()):
            assert found.dtype == expected.dtype or expected.dtype == np.float16
            np.testing.assert_array_equal(found, expected)
        in_duckdb = np.array([row[number] for row in self._rows], expected.dtype)
        np.testing.assert_array_equal(in_duckdb, expected)

    def _equal(self) -> None:
        """The next column is the same for three readers."""
        number = self._next
        self._next += 1
        arrow = plain(self._arrow.column(number).to_pylist())
        assert plain(self._polars.to_series(number).to_list()) == arrow
        in_duckdb = [row[number] for row in self._rows]
        if str(self._arrow.schema.types[number]) != "duration[us]":  # an integer to DuckDB
            assert plain(in_duckdb) == arrow


def test_csv_equals_parquet(container: Path) -> None:
    csv.field_size_limit(LARGEST)
    with opened(container) as tree:
        shown = dict(nodes_of(tree))
        for place, node in shown.items():
            other = shown.get(f"{place.removesuffix('.csv')}.parquet")
            if place.endswith(".csv") and isinstance(other, File) and isinstance(node, File):
                raws = bytes_of(node), bytes_of(other)
                if None not in raws:
                    names, *rows = csv.reader(io.StringIO(raws[0].decode(), newline=""), strict=True)
                    table = pq.read_table(io.BytesIO(raws[1]))
                    assert names == table.schema.names and len(rows) == table.num_rows, place
                    for number, field in enumerate(table.schema):
                        for row, expected in zip(rows, table.column(number).to_pylist(), strict=True):
                            assert is_cell(row[number], expected, field.type), (place, field, row[number], expected)


def is_cell(cell: str, value: Any, kind: pa.DataType) -> bool:
    """Return whether a cell of CSV has the value that Parquet has. Parquet has less of times and of invalid UTF-8."""
    if value is None or pa.types.is_boolean(kind):
        return cell == ("" if value is None else str(value).lower())
    if pa.types.is_floating(kind):
        found = np.array(cell, kind.to_pandas_dtype())
        return bool(np.array_equal(found, np.array(value, found.dtype), equal_nan=True))
    if pa.types.is_integer(kind):
        return int(cell) == value
    if pa.types.is_timestamp(kind):
        return bool(np.datetime64(cell, "us") == np.datetime64(value, "us"))
    if pa.types.is_duration(kind):
        return bool(Decimal(cell) // Decimal("0.000001") == value // timedelta(microseconds=1)) or "-" in cell
    if pa.types.is_list(kind):
        items = json.loads(cell)
        shown = ["" if item is None else item if isinstance(item, str) else json.dumps(item) for item in items]
        return len(items) == len(value) and all(
            one == two or is_cell(one, two, kind.value_type) for one, two in zip(shown, value, strict=True)
        )
    if isinstance(value, bytes):
        texts = cell.encode(), cell.encode("utf-32-le").rstrip(b"\0")
        return cell == b64encode(value).decode() or value.rstrip(b"\0") in texts or "\ufffd" in cell
    return cell == value.replace("\0", "\ufffd") or "\ufffd" in cell


def plain(value: Any) -> Any:
    """Return a value with NaN as text and tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def test_zarr_arrays_equal_the_npy_files(container: Path, tmp_path: Path) -> None:
    import zarr

    with opened(container) as tree:
        shown = dict(nodes_of(tree))
        for number, (place, node) in enumerate(shown.items()):
            npy = shown.get(f"{place.removesuffix('.zarr')}.npy")
            if place.count(".zarr") == 1 and place.endswith(".zarr") and isinstance(npy, File):
                raw = bytes_of(npy)
                if raw is not None and written(node, tmp_path / str(number)):
                    expected = np.load(io.BytesIO(raw))
                    found = zarr.open(tmp_path / str(number), mode="r")[...]
                    assert np.asarray(found).dtype == expected.dtype
                    assert np.asarray(found).tobytes() == expected.tobytes(), place


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized")
def test_xarray_opens_each_directory(container: Path, tmp_path: Path) -> None:
    import xarray

    with opened(container) as tree:
        groups = {place: node for place, node in nodes_of(tree) if place.endswith("/arrays.zarr")}
        for number, (place, node) in enumerate(groups.items()):
            if not isinstance(node, Directory) or not written(node, tmp_path / str(number)):
                continue
            options = {"decode_times": False, "mask_and_scale": False}
            found = xarray.open_zarr(tmp_path / str(number), **options)
            # A backslash is a slash to Zarr: it finds no array of that name, and says so.
            assert len(found.variables) == sum("\\" not in child.name for child in node.listing()) - 1, place


def written(node: Node, folder: Path) -> bool:
    """Write what is below a node as files; return False if some of it is damaged or very large."""
    if not isinstance(node, Directory):
        return False
    folder.mkdir()
    for child in node.listing():
        if isinstance(child, Directory):
            if not written(child, folder / child.name):
                return False
        elif isinstance(child, File):
            raw = bytes_of(child)
            if raw is None:
                return False
            (folder / child.name).write_bytes(raw)
    return True
