"""What a tree with all views shows, for tests: files by their paths, sizes, ranges."""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from glassfs.content import Container, Data, Table, members_of
from glassfs.library import open_tree
from glassfs.tree import File

BUDGET = 8 << 20
LARGEST = 4 << 20
"""Files up to this are read whole."""


def shown_in(source: Path | bytes, views: str = "all", cache_size: int = BUDGET) -> dict[str, File]:
    """All files below a container. One that was made of bytes stays readable."""
    if isinstance(source, bytes):
        with tempfile.NamedTemporaryFile(suffix=".made") as file:
            file.write(source)
            file.flush()
            return {path: node for path, node in shown_in(Path(file.name), views, cache_size).items() if node.size >= 0}
    tree = open_tree(source, cache_size=cache_size, views=views)
    return {path: node for path, node in tree.walk(on_error=lambda place, error: None) if isinstance(node, File)}


def whole(file: File | Data) -> bytes:
    """All bytes. The size that was said before agrees, and so do ranges."""
    size = file.size
    found = file.read(0, size)
    assert len(found) == size and (isinstance(file, Data) or file.read(size, 1) == b"")
    chance = random.Random(size)
    for _ in range(30 if size else 0):
        start = chance.randrange(size)
        length = min(size - start, chance.choice((1, 3, 17, 1000, 70_000)))
        assert file.read(start, length) == found[start : start + length]
    return found


# Tables, as pyarrow reads them, and what they are compared with.

MOST_SLOTS = 64


def table_file(path: Path, name: str) -> pa.Table:
    """Read a table in the tree of a container; check its size and ranges."""
    with open_tree(path, views="parquet") as tree:
        return pq.read_table(io.BytesIO(whole(tree.file(name))))


def tables_of(container: Container) -> dict[bytes, Table]:
    """The tables at the root of a container."""
    return {name[-1]: content for name, content in members_of(container.root) if isinstance(content, Table)}


def assert_array(table: pa.Table, name: str, array: np.ndarray[Any, Any]) -> Iterator[str]:
    """The columns of an array are its values: itself, one for each slot, or one of lists. Gives their names."""
    assert table.num_rows == len(array)
    flat = array.reshape(len(array), int(np.prod(array.shape[1:], dtype=int)))
    if array.ndim == 1:
        assert_values(table[name], array)
        yield name
    elif 0 < flat.shape[1] <= MOST_SLOTS:
        for slot in range(flat.shape[1]):
            assert_values(table[f"{name}.{slot}"], flat[:, slot])
            yield f"{name}.{slot}"
    else:
        assert_runs(table, name, array.reshape(-1), np.arange(len(array) + 1) * flat.shape[1])
        yield name


def assert_runs(table: pa.Table, name: str, values: np.ndarray[Any, Any], offsets: Sequence[int] | Any) -> None:
    """A column of lists; values that have several numbers are bytes there."""
    column = table[name]
    assert np.array_equal(pc.list_value_length(column).to_numpy(), np.diff(offsets))
    assert_values(pc.list_flatten(column), values)


def assert_values(column: Any, array: np.ndarray[Any, Any]) -> None:
    assert len(column) == len(array)
    if array.ndim > 1:
        assert b"".join(column.to_pylist()) == array.tobytes()
    elif array.dtype.kind in "mM":
        wanted = np.where(np.isnat(array), np.iinfo("<i8").min, array.view("<i8") // 10)
        assert column.type == (pa.timestamp("us") if array.dtype.kind == "M" else pa.duration("us"))
        found = pc.fill_null(column.cast(pa.int64()), np.iinfo("<i8").min).to_numpy()
        np.testing.assert_array_equal(found, wanted)
    else:
        found = column.to_numpy()
        assert found.dtype == array.dtype or not len(array)
        np.testing.assert_array_equal(found, array)
