"""The tables of tree sequences as pyarrow reads them, against the arrays of the container and the tskit package."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kastore
import numpy as np
import pyarrow as pa
import pytest
import tskit

from glassfs.errors import Damaged
from glassfs.library import open_tree
from tests.formats.derived import assert_array, assert_runs, shown_in, table_file, tables_of, whole
from tests.formats.test_tskit import rewritten, texts_of
from tests.helpers import open_path

TEXT = {"ancestral_state", "derived_state", "timestamp", "record"}


@pytest.fixture
def change(trees: Path) -> Callable[..., Path]:
    """The container with other columns, or without those that are None."""

    def changed(**columns: Any) -> Path:
        items = dict(kastore.load(str(trees))) | {key.replace("__", "/"): value for key, value in columns.items()}
        return rewritten({key: value for key, value in items.items() if value is not None}, trees)

    return changed


def assert_table(path: Path, name: str, stored: dict[str, Any], place: str = "") -> pa.Table:
    """A table has the columns of its directory, those with offsets folded."""
    found = table_file(path, f"{place}{name}.parquet")
    columns = {key.partition("/")[2]: array for key, array in stored.items() if key.startswith(f"{name}/")}
    columns.pop("metadata_schema", None)
    seen = []
    for column, array in columns.items():
        if column.endswith("_offset"):
            continue
        offsets = columns.get(f"{column}_offset")
        if offsets is None:
            seen += assert_array(found, column, array)
            continue
        seen.append(column)
        if array.dtype == np.uint8:
            whole = array.tobytes()
            rows = [whole[start:end] for start, end in itertools.pairwise(offsets.tolist())]
            is_text = found[column].type == pa.string()
            assert is_text or found[column].type == pa.binary()
            assert found[column].to_pylist() == ([row.decode() for row in rows] if is_text else rows)
            assert is_text or column not in TEXT
        else:
            assert_runs(found, column, array, offsets)
    assert sorted(found.column_names) == sorted(seen)
    return found


def test_every_table(trees: Path) -> None:
    stored, loaded = dict(kastore.load(str(trees))), tskit.TableCollection.load(trees)
    shown = {name: assert_table(trees, name, stored) for name in loaded.table_name_map}
    assert {name: table.num_rows for name, table in shown.items()} == {
        name: table.num_rows for name, table in loaded.table_name_map.items()
    }
    assert shown["sites"]["ancestral_state"].to_pylist() == [site.ancestral_state for site in loaded.sites]
    assert shown["provenances"]["record"].to_pylist() == [row.record for row in loaded.provenances]
    assert shown["individuals"]["location"].to_pylist() == [row.location.tolist() for row in loaded.individuals]


def test_metadata_are_text_where_the_schema_says_json(trees: Path) -> None:
    nodes = table_file(trees, "nodes.parquet")["metadata"]
    assert nodes.type == pa.string() and nodes.to_pylist() == ['{"n":0}', '{"n":1}', '{"n":2}', "{}", "{}"]
    populations = table_file(trees, "populations.parquet")["metadata"]
    assert populations.type == pa.binary() and populations.to_pylist() == [b"A", b"B"]


@pytest.mark.parametrize("dtype", ["u4", "u8"])
def test_offsets_of_both_widths(change: Callable[..., Path], dtype: str) -> None:
    path = change(sites__ancestral_state_offset=np.array([0, 1, 1, 14], dtype))
    assert table_file(path, "sites.parquet")["ancestral_state"].to_pylist() == ["A", "", "длинно\n"]


@pytest.mark.parametrize("columns", [
    {"nodes__flags": np.zeros(4, "u4")}, {"nodes__time": np.zeros(0)}, {"nodes__metadata": None},
    {"nodes__metadata_offset": None}, {"nodes__metadata_offset": np.zeros(4, "u4")},
    {"nodes__metadata_offset": np.zeros(6, "i4")}, {"nodes__metadata_offset": np.zeros(0, "u4")},
])
def test_a_table_whose_columns_do_not_fit_is_left_out(change: Callable[..., Path], columns: dict[str, Any]) -> None:
    path = change(**columns)
    found = tables_of(open_path(path))
    assert b"nodes" not in found and b"sites" in found
    for file in shown_in(path).values():
        whole(file)


def test_offsets_that_do_not_rise_cost_their_table(change: Callable[..., Path]) -> None:
    path = change(sites__ancestral_state_offset=np.array([0, 9, 1, 14], "u4"))
    with pytest.raises(Damaged):
        table_file(path, "sites.parquet")
    assert table_file(path, "nodes.parquet").num_rows == 5


def test_columns_that_are_optional_may_be_missing(change: Callable[..., Path]) -> None:
    path = change(mutations__time=None, edges__metadata=None, edges__metadata_offset=None)
    assert "time" not in table_file(path, "mutations.parquet").column_names
    assert table_file(path, "edges.parquet").column_names == ["left", "right", "parent", "child"]


def test_other_types_than_tskit_has_are_shown_as_they_are(change: Callable[..., Path]) -> None:
    path = change(nodes__time=np.arange(5, dtype="i2"), sites__metadata=np.arange(4, dtype="i4"),
                  sites__metadata_offset=np.array([0, 1, 1, 4], "u4"))
    assert table_file(path, "nodes.parquet")["time"].to_pylist() == [0, 1, 2, 3, 4]
    assert table_file(path, "sites.parquet")["metadata"].to_pylist() == [[0], [], [1, 2, 3]]


def test_appended_stores_have_tables_of_their_own(trees: Path) -> None:
    first, stored = trees.read_bytes(), dict(kastore.load(str(trees)))
    trees.write_bytes(first + first)
    assert_table(trees, "nodes", stored)
    assert_table(trees, "sites", stored, "appended/1/")
    container = open_path(trees)
    assert texts_of(container)[b"appended/1/format/name"].key == b"format/name"
    assert list(container.check()) == []


def documents_in(path: Path) -> dict[str, list[Any]]:
    """The metadata of rows that a tree with views shows as JSON lines."""
    with open_tree(path, views="jsonl") as tree:
        files = {place: node for place, node in tree.walk("/") if place.endswith("/metadata.jsonl")}
        return {place: [json.loads(row) for row in whole(file).splitlines()] for place, file in files.items()}


def test_metadata_of_rows_are_lines_where_the_schema_says_json(trees: Path) -> None:
    rows = [row.metadata for row in tskit.TableCollection.load(trees).nodes]
    assert documents_in(trees) == {"/nodes/metadata.jsonl": rows}
    with open_tree(trees) as tree:
        assert not [place for place, _ in tree.walk("/") if place.endswith("metadata.jsonl")]


def test_rows_without_metadata_or_with_broken_ones(change: Callable[..., Path]) -> None:
    """tskit takes no bytes for an empty object, and refuses what is not JSON."""
    rows = [b"", b'{"n": [1,\n2]}', b"{", b"\xff", b"7"]
    path = change(
        nodes__metadata=np.frombuffer(b"".join(rows), np.uint8),
        nodes__metadata_offset=np.cumsum([0, *map(len, rows)], dtype="u4"),
    )
    assert documents_in(path) == {"/nodes/metadata.jsonl": [{}, {"n": [1, 2]}, "{", "\ufffd", 7]}
    assert tskit.TableCollection.load(path).nodes[0].metadata == {}


def test_offsets_that_do_not_fit_cost_the_lines(change: Callable[..., Path]) -> None:
    assert documents_in(change(nodes__metadata_offset=np.zeros(4, "u4"))) == {}
    path = change(nodes__metadata_offset=np.array([0, 9, 1, 2, 3, 21], "u4"))
    with open_tree(path, views="jsonl") as tree, pytest.raises(Damaged):
        tree.file("/nodes/metadata.jsonl").read(0, 10)
