"""Contents and tables of tskit tree sequences, compared with the tskit package."""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassfs.content import Array, Container, Content, Documents, Json, RaggedText, Text
from glassfs.errors import Damaged
from glassfs.formats.registry import open_container
from glassfs.library import open_tree
from tests.formats.derived import shown_in, table_file, tables_of, whole
from tests.formats.exercise import exercise
from tests.formats.test_kastore import store
from tests.helpers import CountingSource, open_path, opening, walk


def rewritten(items: dict[str, Any], path: Path) -> Path:
    return store(items, path.parent, path.name)


def rows_of(content: RaggedText) -> list[bytes]:
    offsets = np.frombuffer(content.offsets.whole(), content.offset_dtype).tolist()
    assert len(offsets) == content.rows + 1
    text = content.text.whole()
    return [text[start:end] for start, end in itertools.pairwise(offsets)]


def texts_of(container: Container) -> dict[bytes, Content]:
    return {name: content for name, content in walk(container.root) if not isinstance(content, Array)}


def tables() -> tskit.TableCollection:
    made = tskit.TableCollection(100)
    made.time_units = "years"
    made.metadata_schema = tskit.MetadataSchema({"codec": "json"})
    made.metadata = {"naïve": [1, 2]}
    made.reference_sequence.data = "ACGT" * 25
    made.reference_sequence.url = "https://example.org/ref"
    made.reference_sequence.metadata_schema = tskit.MetadataSchema({"codec": "json"})
    made.reference_sequence.metadata = {"assembly": "x"}
    made.nodes.metadata_schema = tskit.MetadataSchema({"codec": "json"})
    for name in ("A", "B"):
        made.populations.add_row(metadata=name.encode())
    made.individuals.add_row(location=[1.5, 2.5], parents=[-1, 1])
    made.individuals.add_row()
    for number in range(3):
        made.nodes.add_row(tskit.NODE_IS_SAMPLE, population=number % 2, individual=number % 2, metadata={"n": number})
    made.nodes.add_row(time=1.0, metadata={})
    made.nodes.add_row(time=2.0, metadata={})
    for left, right, parent, child in [(0, 100, 3, 0), (0, 100, 3, 1), (0, 100, 4, 2), (0, 100, 4, 3)]:
        made.edges.add_row(left, right, parent, child)
    made.migrations.add_row(0, 100, node=0, source=0, dest=1, time=0.5)
    for position, state in [(0, "A"), (10.5, ""), (99, "длинно\n")]:
        made.sites.add_row(position, state)
    made.mutations.add_row(site=0, node=0, derived_state="TT")
    made.mutations.add_row(site=2, node=3, derived_state="", time=1.0)
    made.provenances.add_row(json.dumps({"schema_version": "1.0.0"}), timestamp="2024-01-01T00:00:00")
    made.provenances.add_row("no json", timestamp="")
    made.sort()
    made.build_index()
    return made


def test_a_tree_sequence_shows_its_text(trees: Path) -> None:
    loaded, found = tskit.TableCollection.load(trees), texts_of(open_path(trees))
    plain = {name: content.data.whole().decode() for name, content in found.items() if isinstance(content, Text)}
    assert plain == {
        b"format/name": "tskit.trees", b"time_units": "years", b"uuid": loaded.file_uuid,
        b"reference_sequence/data": "ACGT" * 25, b"reference_sequence/url": "https://example.org/ref",
    }
    documents = {name: json.loads(content.data.whole()) for name, content in found.items() if isinstance(content, Json)}
    assert documents == {
        b"metadata": {"naïve": [1, 2]}, b"metadata_schema": {"codec": "json"},
        b"reference_sequence/metadata": {"assembly": "x"}, b"reference_sequence/metadata_schema": {"codec": "json"},
        b"nodes/metadata_schema": {"codec": "json"},
    }
    ragged = {name: content for name, content in found.items() if isinstance(content, RaggedText)}
    assert {name: rows_of(content) for name, content in ragged.items()} == {
        b"sites/ancestral_state": [site.ancestral_state.encode() for site in loaded.sites],
        b"mutations/derived_state": [mutation.derived_state.encode() for mutation in loaded.mutations],
        b"provenances/timestamp": [row.timestamp.encode() for row in loaded.provenances],
        b"provenances/record": [row.record.encode() for row in loaded.provenances],
    }
    assert [name for name, content in ragged.items() if content.is_json] == [b"provenances/record"]
    assert all(content.key == name for name, content in found.items())


def test_facts_of_a_tree_sequence(trees: Path) -> None:
    facts = open_path(trees).facts
    assert facts["tskit_version"].startswith("12.")
    assert facts["sequence_length"] == 100
    assert facts["rows"] == {
        "individuals": 2, "nodes": 5, "edges": 4, "migrations": 1, "sites": 3, "mutations": 2, "populations": 2,
        "provenances": 2,
    }
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(("name", "version", "is_known"), [("treez", 12, False), ("trees", 13, True)])
def test_other_names_and_versions_are_not_judged(trees: Path, name: str, version: int, is_known: bool) -> None:
    def change(items: dict[str, Any]) -> None:
        items["format/name"] = np.frombuffer(f"tskit.{name}".encode(), "i1")
        items["format/version"] = np.array([version, 0], "u4")
        del items["nodes/time"]

    container = changed(trees, change)
    assert bool(texts_of(container)) == ("rows" in container.facts) == is_known
    assert list(container.check()) == []


def test_facts_that_are_not_there_or_make_no_sense_are_none(trees: Path) -> None:
    def change(items: dict[str, Any]) -> None:
        items["sequence_length"] = np.array([1.0, 2.0])
        items["format/version"] = np.array([], "u4")
        items["provenances/timestamp_offset"] = np.array([], "u4")
        del items["populations/metadata_offset"]

    container = changed(trees, change)
    assert container.facts["tskit_version"] is None
    assert container.facts["sequence_length"] is None
    assert container.facts["rows"]["provenances"] == 0
    assert container.facts["rows"]["populations"] is None
    assert not any(name.startswith(b"provenances/") for name in texts_of(container))


def changed(trees: Path, change: Callable[[dict[str, Any]], None]) -> Container:
    items = dict(kastore.load(str(trees), read_all=True))
    change(items)
    return open_path(rewritten(items, trees.with_name("changed.trees")))


@pytest.mark.parametrize(("change", "lost"), [
    (lambda items: items.update(uuid=items["uuid"].astype("i2")), b"uuid"),
    (lambda items: items.update(time_units=items["time_units"].astype("u1")), b"time_units"),
    (lambda items: items.pop("sites/ancestral_state_offset"), b"sites/ancestral_state"),
    (lambda items: items.update({"sites/ancestral_state_offset": np.arange(3, dtype="u4")}), b"sites/ancestral_state"),
    (lambda items: items.update({"sites/ancestral_state_offset": np.arange(4, dtype="i4")}), b"sites/ancestral_state"),
    (lambda items: items.update({"provenances/record_offset": np.array([], "u4")}), b"provenances/record"),
    (lambda items: items.update({"mutations/derived_state": np.arange(2, dtype="i1")}), b"mutations/derived_state"),
    (lambda items: items.update({"metadata_schema": np.frombuffer(b'{"codec": "struct"}', "i1")}), b"metadata"),
    (lambda items: items.update({"metadata_schema": np.frombuffer(b"{", "i1")}), b"metadata"),
    (lambda items: items.update({"metadata_schema": np.frombuffer(b"[" * 100_000, "i1")}), b"metadata"),
    (lambda items: items.update({"metadata_schema": np.frombuffer(b'["codec"]', "i1")}), b"metadata"),
    (lambda items: items.update({"metadata_schema": np.frombuffer(b"\xff\xfe\xfd", "i1")}), b"metadata"),
    (lambda items: items.update({"metadata": np.array([], "i1")}), b"metadata"),
    (lambda items: items.update({"nodes/metadata_schema": np.array([], "u1")}), b"nodes/metadata_schema"),
])
def test_text_that_is_not_as_tskit_has_it_is_left_out_alone(
    trees: Path, change: Callable[[dict[str, Any]], None], lost: bytes,
) -> None:
    before = set(texts_of(open_path(trees)))
    container = changed(trees, change)
    assert before - set(texts_of(container)) == {lost}
    if not lost.endswith((b"metadata", b"metadata_schema")):
        assert list(container.check()) != []


def put(key: str, place: int, value: float) -> Callable[[dict[str, Any]], None]:
    def change(items: dict[str, Any]) -> None:
        items[key] = items[key].copy()
        items[key][place] = value

    return change


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    return lambda items: [items.pop(key) for key in keys] and None


def cut(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda items: items.update({key: items[key][:-1]})


@pytest.mark.parametrize(("change", "place", "reason"), [
    (put("edges/child", 1, 5), "edges/child", "value 1, 5, is not a row of nodes, which has 5"),
    (put("edges/parent", 0, -1), "edges/parent", "value 0, -1, is not a row"),
    (put("nodes/population", 2, -2), "nodes/population", "value 2, -2"),
    (put("mutations/site", 1, 3), "mutations/site", "is not a row of sites"),
    (put("individuals/parents", 0, 2), "individuals/parents", "is not a row of individuals"),
    (put("indexes/edge_removal_order", 3, 4), "indexes/edge_removal_order", "is not a row of edges"),
    (put("mutations/time", 0, np.nan), "mutations/time", "unknown time"),
    (put("nodes/time", 4, np.inf), "nodes/time", "not finite"),
    (put("sites/position", 2, 100), "sites/position", "outside the sequence"),
    (put("edges/left", 2, 100), "edges/left", "100.0 to 100.0, is not an interval"),
    (put("migrations/right", 0, np.nan), "migrations/left", "is not an interval"),
    (put("sequence_length", 0, 0), "sequence_length", "positive"),
    (put("sites/ancestral_state_offset", 1, 2**32 - 1), "sites/ancestral_state_offset", "does not rise from 0 to"),
    (put("sites/ancestral_state_offset", 0, 1), "sites/ancestral_state_offset", "does not rise"),
    (put("nodes/metadata_offset", 5, 1000), "nodes/metadata_offset", "does not rise"),
    (cut("edges/right"), "edges/right", "has 3 rows, but its table has 4"),
    (cut("nodes/flags"), "nodes/flags", "has 4 rows, but its table has 5"),
    (cut("nodes/metadata_offset"), "nodes/metadata_offset", "uint32 [5], but uint32 or uint64 [6] is expected"),
    (cut("uuid"), "uuid", "has 35 elements, but 36 are expected"),
    (cut("indexes/edge_insertion_order"), "indexes/edge_insertion_order", "has 3 rows, but edges has 4"),
    (drop("indexes/edge_insertion_order"), "indexes/edge_removal_order", "the other index is missing"),
    (drop("format/version"), "format/version", "is missing"),
    (lambda items: items.update({"edges/left": items["edges/left"].astype("f4")}), "edges/left", "is float32"),
    (lambda items: items.update(metadata=items["metadata"].astype("u1")), "metadata", "is uint8, but int8 is expected"),
])
def test_verify_finds_what_breaks_the_rules_of_tskit(
    trees: Path, change: Callable[[dict[str, Any]], None], place: str, reason: str,
) -> None:
    faults = list(changed(trees, change).check())
    assert any(fault.place == place and reason in fault.reason for fault in faults), faults
    assert len(faults) <= 3


def test_verify_misses_what_tskit_misses_and_nothing_else(trees: Path) -> None:
    """Without each key in turn, alone and with its offsets: what tskit loads has no fault, what it refuses has one."""
    items = dict(kastore.load(str(trees), read_all=True))
    groups = [keys for key in items for keys in ({key}, {key, f"{key}_offset"}) if keys <= items.keys()]
    loaded = 0
    for keys in groups:
        path = rewritten({key: items[key] for key in items.keys() - keys}, trees.with_name("less.trees"))
        faults = [] if "format/name" in keys else list(open_path(path).check())
        try:
            tskit.TableCollection.load(path)
            loaded += 1
        except tskit.LibraryError:
            assert faults or "format/name" in keys, keys
        else:
            assert faults == [], keys
    assert 10 < loaded < len(groups) - 10


def test_verify_finds_wrong_values_late_in_a_long_column(tmp_path: Path) -> None:
    made = tskit.TableCollection(1)
    made.nodes.set_columns(flags=np.zeros(400_000, "u4"), time=np.arange(400_000.0))
    made.dump(tmp_path / "x.trees")
    assert list(open_path(tmp_path / "x.trees").check()) == []
    items = dict(kastore.load(str(tmp_path / "x.trees")))
    items["nodes/time"] = np.where(np.arange(400_000) == 399_998, np.nan, items["nodes/time"])
    offsets = np.zeros(400_001, "u4")
    offsets[(1 << 18) - 1] = 1  # falls back between the first MiB and the second
    items["nodes/metadata_offset"] = offsets
    faults = dict(open_path(rewritten(items, tmp_path / "y.trees")).check())
    assert faults["nodes/time"].startswith("value 399998, nan,")
    assert "does not rise" in faults["nodes/metadata_offset"]
    assert len(faults) == 2


def test_of_equal_keys_the_last_is_the_text(trees: Path) -> None:
    items = [*kastore.load(str(trees)).items(), ("time_units", np.frombuffer(b"ticks", "i1"))]
    text = texts_of(open_path(store(items, trees.parent, sort=False)))[b"time_units"]
    assert isinstance(text, Text)
    assert text.data.whole() == b"ticks"


def test_listing_reads_neither_text_nor_schemas(tmp_path: Path) -> None:
    made = tables()
    made.reference_sequence.data = "A" * 3_000_000
    made.nodes.metadata_schema = tskit.MetadataSchema({"codec": "json", "title": "x" * 1_000_000})
    made.dump(tmp_path / "x.trees")
    source = CountingSource(tmp_path / "x.trees")
    contents = [content for _, content in open_container(opening(source, 256 << 20)).root.members()]
    assert b"reference_sequence/data" in [content.key for content in contents]
    assert source.bytes_read < 40_000
    (documents,) = [one for one in contents if isinstance(one, Documents) and one.key == b"nodes/metadata"]
    assert documents.rows() is not None and source.bytes_read > 1_000_000


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_columns_of_any_type_and_length_raise_only_known_errors(trees: Path, data: st.DataObject) -> None:
    items = dict(kastore.load(str(trees)).items())
    for key in data.draw(st.lists(st.sampled_from(sorted(set(items) - {"format/name"})), max_size=5)):
        length = data.draw(st.integers(0, 6))
        dtype = np.dtype(data.draw(st.sampled_from(["f8", "i4", "u4", "u8", "u1", "i1"])))
        raw = data.draw(st.binary(min_size=length * dtype.itemsize, max_size=length * dtype.itemsize))
        items[key] = np.frombuffer(raw, dtype)
    exercise(rewritten(items, trees.with_name("edited.trees")))


# Tables

TEXT = {"ancestral_state", "derived_state", "timestamp", "record"}


@pytest.fixture
def change(trees: Path) -> Callable[..., Path]:
    def changed(**columns: Any) -> Path:
        items = dict(kastore.load(str(trees))) | {key.replace("__", "/"): value for key, value in columns.items()}
        return rewritten({key: value for key, value in items.items() if value is not None}, trees)

    return changed


def assert_table(path: Path, name: str, place: str = "") -> None:
    """A table has the columns and the rows of tskit's; texts are those of bytes."""
    with path.open("rb") as file:
        table = getattr(tskit.TableCollection.load(file), name)
    found = table_file(path, f"{place}{name}.parquet")
    wanted = {column: getattr(table, column) for column in table.column_names if not column.endswith("_offset")}
    assert sorted(found.column_names) == sorted(wanted)
    for column, array in wanted.items():
        offsets = getattr(table, f"{column}_offset", None)
        shown = found[column].to_pylist()
        if offsets is None:
            assert found[column].type == pa.from_numpy_dtype(array.dtype)
            np.testing.assert_array_equal(shown, array)
        elif array.dtype == np.int8:
            stored = [row.encode() if isinstance(row, str) else row for row in shown]
            assert stored == tskit.unpack_bytes(array, offsets)
            assert isinstance(shown[0], str) or column not in TEXT
        else:
            assert shown == [array[start:end].tolist() for start, end in itertools.pairwise(offsets)]


def test_every_table(trees: Path) -> None:
    for name in tskit.TableCollection(1).table_name_map:
        assert_table(trees, name)


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
    trees.write_bytes(trees.read_bytes() * 2)
    assert_table(trees, "nodes")
    assert_table(trees, "sites", "appended/1/")
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
