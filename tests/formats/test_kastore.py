"""kastore stores and rows of tree sequences, against the packages kastore and tskit, the samples, and hostile bytes."""

from __future__ import annotations

import json
import logging
import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import kastore
import numpy as np
import pytest
import tskit
from writers.kastore import KastoreWriter

from glassfs.cache import BlockCache
from glassfs.content import Array, Container, Fault, Summary, summary
from glassfs.errors import Damaged, Refused
from glassfs.formats import tree_sequences
from glassfs.formats import tskit as tskit_module
from glassfs.formats.registry import AHEAD, open_container
from glassfs.formats.tree_sequences import METADATA, MOST_PROPERTIES, NAME
from tests.formats.exercise import peak_memory
from tests.formats.tree_files import write_random, write_trees
from tests.helpers import CountingSource, contents_of, omitted_in, open_bytes, open_path, opening, values_of, walk

HEADER, DESCRIPTOR = 64, 64
KEY_START, KEY_LENGTH, ARRAY_START, ARRAY_LENGTH = 8, 16, 24, 32  # fields of a descriptor


def store(items: dict[Any, Any] | list[tuple[Any, Any]], folder: Path, name: str = "made.kas", **options: Any) -> Path:
    path = folder / name
    with KastoreWriter(path, **options) as writer:
        for key, values in items.items() if isinstance(items, dict) else items:
            writer.add(key, values)
    return path


def arrays_of(container: Container) -> dict[bytes, Array]:
    return {name: content for name, content in walk(container.root) if isinstance(content, Array)}


def patched(path: Path, place: int, layout: str, *numbers: int) -> bytes:
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, place, *numbers)
    return bytes(data)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Two items: `a` (3 uint8, so that padding follows) and `bb` (2 int32)."""
    return store({"a": np.array([1, 2, 3], "u1"), "bb": np.array([4, 5], "i4")}, tmp_path)


def faults_of(data: bytes) -> list[Fault]:
    return list(open_bytes(data).check())


@pytest.mark.parametrize(("place", "words"), [
    (HEADER + 2 * DESCRIPTOR + len("abb") + 4, "the padding before the array"),
    (24, "of the header"), (63, "of the header"), (HEADER + 1, "of the descriptors"),
    (HEADER + 7, "of the descriptors"), (HEADER + DESCRIPTOR + 40, "of the descriptors"),
    (HEADER + DESCRIPTOR + 63, "of the descriptors"),
])
def test_verify_finds_nonzero_padding_and_reserved_bytes(pair: Path, place: int, words: str) -> None:
    (fault,) = faults_of(patched(pair, place, "B", 1))
    assert words in fault.reason


def test_a_later_minor_version_may_use_the_reserved_bytes(pair: Path) -> None:
    data = bytearray(patched(pair, 24, "B", 1))
    struct.pack_into("<H", data, 10, 7)
    container = open_bytes(bytes(data))
    assert container.version == "1.7"
    assert list(container.check()) == []


def test_the_depth_of_keys_is_limited(tmp_path: Path) -> None:
    key = b"/".join([b"d"] * 100_000)
    (member,) = open_path(store({key: [1]}, tmp_path)).root.members()
    assert b"/".join(member.name) == key
    assert len(member.name) == 256


@pytest.mark.parametrize(("keys", "reason"), [
    ([b"", b"a"], "empty"), ([b"k" * (17 << 20)], "takes 17M of memory or more for keys"),
])
def test_keys_that_cannot_be_names_are_refused(tmp_path: Path, keys: list[bytes], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        open_path(store([(key, [1]) for key in keys], tmp_path))


def test_of_equal_keys_the_last_comes_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    items = [("a", [1]), ("a", [2]), ("b", [2]), ("a", [3]), ("c", [4]), ("b", [5]), ("a", [6])]
    container = open_path(store(items, tmp_path, sort=False))
    with caplog.at_level(logging.WARNING):
        found = {name: [values_of(content).tolist() for content in same]
                 for name, same in contents_of(container.root).items()}
        list(container.root.members())
    assert found == {b"a": [[6], [1], [2], [3]], b"b": [[5], [2]], b"c": [[4]]}
    assert len(caplog.records) == 1
    reasons = [fault for fault in container.check() if "same key" in fault.reason]
    assert [(fault.place, fault.reason.split()[1]) for fault in reasons] == [
        ("a", "0"), ("a", "1"), ("b", "2"), ("a", "3"),
    ]
    (fault,) = (fault for fault in container.check() if fault not in reasons)
    assert fault.place == "a" and "out of order" in fault.reason


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    store({"x": np.array([1], "u1")}, tmp_path)
    store({}, tmp_path, append=True)
    return store({"y/z": np.array([2.5])}, tmp_path, append=True)


def test_appended_stores_have_numbered_directories(chain: Path) -> None:
    container = open_path(chain)
    groups = {member.name: member.content for member in container.root.members()}
    assert list(groups) == [(b"x",), (b"appended", b"1"), (b"appended", b"2")]
    assert list(contents_of(groups[b"appended", b"1"])) == []
    found = arrays_of(container)
    assert values_of(found[b"appended/2/y/z"]).tolist() == [2.5]
    assert found[b"appended/2/y/z"].key == b"y/z"
    assert container.facts["appended_stores"] == 2
    assert list(container.check()) == []
    with open(chain, "rb") as file:
        theirs = [dict(kastore.load(file, read_all=True)) for _ in range(3)]
    assert theirs[2]["y/z"].tolist() == [2.5]


def test_an_appended_store_that_is_damaged_costs_itself_only(chain: Path) -> None:
    data = bytearray(chain.read_bytes())
    third = data.rindex(b"\x89KAS")
    data[third + HEADER] = 99  # the element type
    container = open_bytes(bytes(data) + chain.read_bytes())
    members = {member.name: member.content for member in container.root.members()}
    with pytest.raises(Damaged, match="made: appended/2: item 0 has the unknown element type 99"):
        list(members[b"appended", b"2"].members())
    assert list(contents_of(members[b"appended", b"5"])) == [b"y/z"]
    assert list(container.check()) == [Fault("appended/2", "item 0 has the unknown element type 99")]


@pytest.mark.parametrize("left", [8, 20, 64, 100])
def test_cut_appended_stores_are_left_out_with_a_reason(
    pair: Path, left: int, caplog: pytest.LogCaptureFixture,
) -> None:
    data = pair.read_bytes()
    container = open_bytes(data + data + data[:left])
    assert list(arrays_of(container)) == [b"a", b"bb", b"appended/1/a", b"appended/1/bb"]
    (fault,) = container.check()
    assert fault.place == "appended/2" and "cut short" in fault.reason
    assert omitted_in(container.root) == {"appended/2": f"appended store: {fault.reason}"}
    assert [record.getMessage().partition("/made: ")[2] for record in caplog.records] == [f"appended/2: {fault.reason}"]


@pytest.mark.parametrize("junk", [b"\0" * 4096, b"hello", b"\x89KAS", b"x" * 100])
def test_junk_behind_the_last_store_is_ignored_and_logged(
    pair: Path, junk: bytes, caplog: pytest.LogCaptureFixture,
) -> None:
    container = open_bytes(pair.read_bytes() + junk)
    reason = f"{len(junk)} bytes after the last store are ignored"
    assert [record.getMessage().partition("/made: ")[2] for record in caplog.records] == [reason]
    assert list(arrays_of(container)) == [b"a", b"bb"] and not omitted_in(container.root)
    assert list(container.check()) == [Fault("", reason)]


@pytest.mark.slow
def test_the_number_of_appended_stores_is_limited(tmp_path: Path) -> None:
    (tmp_path / "many.kas").write_bytes(store({}, tmp_path).read_bytes() * 100_000)
    container = open_path(tmp_path / "many.kas", budget=1 << 20)
    assert omitted_in(container.root)["appended/65537"].startswith("too many stores: ")
    assert sum(1 for _ in container.root.members()) == container.facts["appended_stores"] + 1 == 65_537
    assert not list(container.check())


FIELDS = [
    (8, "<H", 0, "version 0.0"), (12, "<I", 2**32 - 1, ""),
    (12, "<I", 3, "the header declares 216 bytes, which do not fit 3 items"),
    (16, "<Q", 2**63, "is cut short: the header declares 9223372036854775808 bytes, but only 216 exist"),
    (HEADER, "B", 10, "unknown element type 10"), (HEADER + KEY_START, "<Q", 2**64 - 1, ""),
    (HEADER + KEY_LENGTH, "<Q", 0, ""), (HEADER + KEY_LENGTH, "<Q", 2**64 - 192, ""),
    (HEADER + KEY_LENGTH, "<Q", 100, "runs past the first array"),
    (HEADER + ARRAY_START, "<Q", 192, ""), (HEADER + ARRAY_START, "<Q", 2**64 - 8, ""),
    (HEADER + ARRAY_LENGTH, "<Q", 2**64 - 1, ""), (HEADER + DESCRIPTOR + ARRAY_LENGTH, "<Q", 2**62 + 2, ""),
    (HEADER + DESCRIPTOR + ARRAY_LENGTH, "<Q", 3, "the arrays lie from 200 to 220, but 200 to 216 is expected"),
]


@pytest.mark.parametrize(("place", "layout", "value", "reason"), FIELDS)
def test_an_index_that_contradicts_itself_is_refused(
    pair: Path, place: int, layout: str, value: int, reason: str,
) -> None:
    with pytest.raises(Refused) as caught:
        open_bytes(patched(pair, place, layout, value), "made.kas")
    error = caught.value
    assert error.source.endswith("/made.kas") and str(error) == f"{error.source}: {error.reason}"
    assert reason in error.reason and "made.kas" not in error.reason and "\n" not in str(error)


def test_similar_files_are_explained() -> None:
    with pytest.raises(Refused, match="text mode"):
        open_bytes(b"\x89KAS\n\x1a\n" + bytes(100), "old.trees")


def test_the_index_is_read_once_to_open_and_once_to_list(tmp_path: Path) -> None:
    """However many keys there are, and whatever of them is kept is small."""
    count = 10_000
    path = store([(b"%06d" % number, np.array([number % 7], "u1")) for number in range(count)], tmp_path)
    index = HEADER + (DESCRIPTOR + 6) * count
    source = CountingSource(path)
    container = open_container(opening(source))
    assert source.bytes_read <= index + AHEAD
    source.reads.clear()
    tracemalloc.start()
    members = list(container.root.members())
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert source.bytes_read <= index
    assert len(members) == count
    assert kept < 600 * count
    del members
    assert peak_memory(lambda: sum(1 for _ in container.root.members())) < 4 << 20


# Rows of tree sequences

SCHEMA = {
    "codec": "json", "type": "object", "properties": {
        "seed": {"type": "integer"}, "rate": {"type": ["number", "null"]},
        "name": {"type": "string", "default": "none"},
        "is_final": {"type": "boolean"}, "stages": {"type": "array", "items": {"type": "string"}},
        "SLiM": {"type": "object", "properties": {
            "cycle": {"type": "integer"}, "more": {"type": "object", "properties": {"model": {"type": "string"}}},
        }},
        "any": {}, "values": {"type": "array", "items": {"type": "number"}}, "mixed": {"type": ["string", "number"]},
    },
}
METADATA_COLUMNS = {
    "SLiM.cycle": "<i8", "SLiM.more.model": "", "is_final": "|b1", "name": "", "rate": "<f8", "seed": "<i8",
    "stages": "list",
}


def summary_of(path: Path) -> Summary | None:
    container = open_path(path, budget=256 << 20)
    assert list(container.summaries) in ([], [NAME])
    return container.summary(NAME)


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = summary_of(path)
    assert found is not None
    rows = []
    for piece in summary.pieces_of(found, BlockCache()):
        names = [name for name, _ in piece.columns]
        rows += [dict(zip(names, row, strict=True)) for row in zip(*summary.values_of(piece), strict=True)]
    return rows


def assert_same(row: dict[str, Any], sequence: tskit.TreeSequence) -> None:
    for name in (name for name, _ in tree_sequences.COLUMNS if not name.startswith("software")):
        assert row[name] == getattr(sequence, name), name


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_random_trees_are_what_tskit_says(tmp_path: Path, seed: int) -> None:
    sequence = write_random(tmp_path / "a.trees", seed)
    assert sequence.num_trees > 20
    (row,) = rows_of(tmp_path / "a.trees")
    assert_same(row, sequence)


def test_rows_of_samples_are_what_tskit_says(samples: Path) -> None:
    for name in ("small.trees", "ragged.trees", "empty.trees"):
        (row,) = rows_of(samples / "kastore" / name)
        assert_same(row, tskit.TableCollection.load(samples / "kastore" / name).tree_sequence())


def test_very_many_edges_and_nodes_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = write_trees(tmp_path / "a.trees", trees=40)
    monkeypatch.setattr(tree_sequences, "LARGEST_READ", 100)
    (row,) = rows_of(tmp_path / "a.trees")
    assert (row["num_trees"], row["num_samples"]) == (None, None)
    assert row["num_edges"] == sequence.num_edges


def test_declared_metadata_are_columns(tmp_path: Path) -> None:
    metadata = {
        "seed": 7, "rate": 1, "is_final": True, "stages": ["a", "b"], "SLiM": {"cycle": 9, "more": {"model": "WF"}},
        "any": 3, "values": [1.5], "mixed": 3, "undeclared": 1,
    }
    sequence = write_trees(tmp_path / "a.trees", schema=SCHEMA, metadata=metadata, units="generations")
    (row,) = rows_of(tmp_path / "a.trees")
    found = summary_of(tmp_path / "a.trees")
    assert found is not None
    columns = {name.removeprefix(METADATA): dtype for name, dtype in found.columns[len(tree_sequences.COLUMNS) :]}
    assert columns == METADATA_COLUMNS
    decoded = sequence.metadata
    assert decoded["name"] == "none", "a default of the schema"
    for name in columns:
        value = decoded
        for part in name.split("."):
            value = value[part]
        assert row[METADATA + name] == value, name
    assert row["time_units"] == "generations"


def changed(path: Path, **items: Any) -> dict[str, Any]:
    whole = dict(kastore.load(str(path), read_all=True))
    named = {key.replace("__", "/"): value for key, value in items.items()}
    whole = {key: value for key, value in (whole | named).items() if value is not None}
    kastore.dump(whole, str(path.with_name("changed.trees")))
    (row,) = rows_of(path.with_name("changed.trees"))
    return row


def text(value: Any) -> np.ndarray[Any, Any]:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return np.frombuffer(raw, "i1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_trees(tmp_path / "a.trees", schema=SCHEMA, metadata={"seed": 1})
    return tmp_path / "a.trees"


@pytest.mark.parametrize("metadata", [
    b"", b"{", b"[" * 5000, b"[1]", b"7", b"\xff", {"seed": "x"}, {"seed": 1 << 70}, {"seed": True},
    {"SLiM": 3}, {"SLiM": {"cycle": [1]}, "stages": ["a", 1]}, b'{"rate": NaN}', b'{"seed": ' + b"9" * 5000 + b"}",
])
def test_wrong_metadata_are_unknown(path: Path, metadata: Any) -> None:
    row = changed(path, metadata=text(metadata))
    known = {name for name in METADATA_COLUMNS if row[METADATA + name] is not None}
    assert known <= {"name", "rate"}
    assert row["num_trees"] == 3
    assert row[METADATA + "rate"] is None or math.isnan(row[METADATA + "rate"])


def test_integers_written_with_a_point_are_integers(path: Path) -> None:
    assert changed(path, metadata=text(b'{"seed": 3.0}'))[METADATA + "seed"] == 3
    assert changed(path, metadata=text(b'{"seed": 3.5}'))[METADATA + "seed"] is None


@pytest.mark.parametrize("schema", [
    b"", b"{", b"[]", b'"json"', {"codec": "json"}, {"codec": "json", "properties": []}, {"properties": {"a": {}}},
    {"codec": "struct", "type": "object", "properties": {"a": {"type": "integer", "binaryFormat": "i"}}},
    {"codec": "json", "properties": {"a": {"type": 3}, "b": {"type": [1]}, "c": {"type": []}, "d": 4, "e": None}},
    {"codec": "json", "properties": {"a": {"type": "object", "properties": 3}, "b": {"type": "array", "items": []}}},
    {"codec": "json", "properties": {name: {"type": "string"} for name in ("\n", "\ud800", "x" * 999)}},
    b'{"a":' * 5000,
])
def test_schemas_that_declare_nothing_simple_give_no_columns(path: Path, schema: Any) -> None:
    row = changed(path, metadata_schema=text(schema))
    assert list(row) == [name for name, _ in tree_sequences.COLUMNS]
    assert row["num_trees"] == 3


def test_columns_of_hostile_schemas_are_bounded(path: Path) -> None:
    names = {f"{number}": {"type": "integer"} for number in range(20_000)}
    row = changed(path, metadata_schema=text({"codec": "json", "properties": names}))
    assert len(row) == len(tree_sequences.COLUMNS) + MOST_PROPERTIES
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        nested = {"type": "object", "properties": {"a": nested, "b": {"type": "string"}}}
    row = changed(path, metadata_schema=text({"codec": "json"} | nested))
    assert len(row) == len(tree_sequences.COLUMNS) + tree_sequences.DEEPEST
    large = {"codec": "json", "properties": {"a": {"type": "integer"}}, "description": "x" * (4 << 20)}
    assert len(changed(path, metadata_schema=text(large))) == len(tree_sequences.COLUMNS)
    many = {f"{number}": {"type": "integer"} for number in range(100_000)}
    row = changed(path, metadata_schema=text({"codec": "json", "properties": many}))
    assert len(row) == len(tree_sequences.COLUMNS)


def test_names_of_other_columns_collide_with_none(path: Path) -> None:
    properties = {name: {"type": "string"} for name in ("num_trees", "container", "position", "a.b")}
    properties["a"] = {"type": "object", "properties": {"b": {"type": "integer"}}}  # type: ignore[dict-item]
    schema = {"codec": "json", "properties": properties}
    metadata = {"num_trees": "many", "container": "c", "a.b": "text", "a": {"b": 3}}
    row = changed(path, metadata_schema=text(schema), metadata=text(metadata))
    assert (row["num_trees"], row[METADATA + "num_trees"], row[METADATA + "container"]) == (3, "many", "c")
    assert row[METADATA + "a.b"] == "text"


@pytest.mark.parametrize(("items", "unknown"), [
    ({"edges__left": np.full(12, -1.0)}, "num_trees"), ({"edges__left": np.full(12, np.nan)}, "num_trees"),
    ({"edges__right": np.full(12, 101.0)}, "num_trees"), ({"edges__right": np.zeros(12)}, "num_trees"),
    ({"edges__left": np.zeros(11)}, "num_trees"), ({"edges__left": None}, "num_trees"),
    ({"edges__left": np.zeros(12, "f4")}, "num_trees"), ({"sequence_length": np.array([np.inf])}, "num_trees"),
    ({"sequence_length": np.array([np.nan])}, "sequence_length"), ({"sequence_length": np.array([-1.0])}, "num_trees"),
    ({"nodes__flags": None}, "num_samples"), ({"nodes__flags": np.ones(7, "i8")}, "num_samples"),
    ({"time_units": None}, "time_units"), ({"time_units": np.zeros(1 << 20, "i1")}, "time_units"),
    ({"sites__position": None, "sites__ancestral_state_offset": None, "sites__metadata_offset": None}, "num_sites"),
])
def test_values_that_break_the_rules_are_unknown(path: Path, items: dict[str, Any], unknown: str) -> None:
    assert changed(path, **items)[unknown] is None


def of_provenance(path: Path, *records: bytes, offsets: Any = None) -> tuple[Any, Any]:
    """Return names and versions of the programs in the row of a tree sequence with these records."""
    ends = np.cumsum([0, *map(len, records)], dtype="u4") if offsets is None else np.array(offsets, "u4")
    row = changed(
        path, provenances__record=np.frombuffer(b"".join(records), "u1"), provenances__record_offset=ends,
        provenances__timestamp=np.zeros(0, "u1"), provenances__timestamp_offset=np.zeros(len(ends), "u4"),
    )
    assert row["num_provenances"] == len(ends) - 1 and row["num_trees"] == 3
    return row["software"], row["software_version"]


def program(name: Any, version: Any) -> bytes:
    return json.dumps({"schema_version": "1.0.0", "software": {"name": name, "version": version}}).encode()


def test_programs_of_the_provenance_are_columns(path: Path) -> None:
    slim, msprime = program("SLiM", "4.3"), program("msprime", "1.3.3")
    found = of_provenance(path, slim, msprime, b'{"software": {"name": "own"}}', msprime)
    assert found == (["SLiM", "msprime", "own"], ["4.3", "1.3.3", ""])
    assert of_provenance(path) == (None, None)


@pytest.mark.parametrize("record", [
    b"", b"{", b"[" * 5000, b"[1]", b"\xff", b'{"software": "SLiM"}', program(7, "1"), program("", "1"),
    program("x" * 999, "1"), b'{"software": [{"name": "a"}]}',
])
def test_records_that_name_no_program_hide_no_other(path: Path, record: bytes) -> None:
    assert of_provenance(path, record, program("tskit", 1)) == (["tskit"], [""])


def test_hostile_provenance_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = program("a", "1"), program("b", "1")
    ends = [0, len(one), len(one) + len(other)]
    assert of_provenance(path, one, other, offsets=[*ends, 0, ends[2]]) == (["a", "b"], ["1", "1"])
    assert of_provenance(path, one, other, offsets=[0, 1 << 31, ends[2]]) == (None, None)
    monkeypatch.setattr(tskit_module, "MOST_RECORDS", 1)
    assert of_provenance(path, one, other) == (["a"], ["1"])
    monkeypatch.setattr(tskit_module, "RECORD_BYTES", len(one) - 1)
    assert of_provenance(path, one, other) == (None, None)


def test_every_tree_sequence_of_a_file_has_a_row(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.trees" for number in range(4)]
    for number, path in enumerate(paths):
        schema = {"codec": "json", "properties": {f"of_{number}": {"type": "integer"}}}
        write_trees(path, trees=number + 1, schema=schema, metadata={f"of_{number}": number})
    kastore.dump({"a": np.arange(3)}, str(paths[1]))  # is no tree sequence
    whole = tmp_path / "whole.trees"
    whole.write_bytes(b"".join(path.read_bytes() for path in paths))
    rows = rows_of(whole)
    assert [row["num_trees"] for row in rows] == [1, 3, 4]
    assert [row[f"{METADATA}of_2"] for row in rows] == [None, 2, None]


def test_other_stores_have_no_row(samples: Path) -> None:
    for name in ("all_dtypes.kas", "appended_stores.kas", "zero_items.kas"):
        assert summary_of(samples / "kastore" / name) is None
