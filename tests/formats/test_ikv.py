"""iKv documents in their binary forms: values, names, laziness, damage in parts, and what is large or hostile."""

from __future__ import annotations

import json
import logging
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writers.ikv import (
    ARRAY,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    MIXED,
    NULL,
    OBJECT,
    STRING,
    Typed,
    ikv1,
    ikv2,
    ikv2_of,
    string,
    varint,
    write_ikv1,
    write_ikv2,
)
from writers.ikv import payload as payload_of

from glassfs.content import Array, Blob, Document
from glassfs.content.allowance import LEAST, held
from glassfs.content.allowance import OBJECT as OBJECT_COST
from glassfs.errors import GlassfsError, Refused, Unrecognised
from glassfs.formats.ikv.contents import LARGEST_RENDERING, LARGEST_VALUE
from glassfs.formats.registry import open_container
from glassfs.view.json import render
from tests.conftest import ROOT
from tests.formats.exercise import peak_memory
from tests.formats.ikv_files import (
    V1,
    document_of,
    expected_of,
    faults_of,
    members_of,
    opened_v1,
    root_of,
    value_of,
    values,
)
from tests.helpers import CountingSource, omitted_in, open_bytes, open_path, opening, read_in_parts

BOTH = pytest.mark.parametrize("encode", [ikv1, ikv2])


def test_samples_have_the_same_values_as_a_tree_and_as_a_document(samples: Path) -> None:
    """The values of the document are compared with those of the writer by ``test_real_files``."""
    paths = [path for path in (samples / "ikv").rglob("*.ikv") if "malformed" not in path.parts]
    described = [path for path in paths if "tree" in expected_of(path)]
    assert len(described) > 40
    for path in described:
        expected = expected_of(path)
        container = open_path(path)
        assert repr(value_of(root_of(container))) == repr(document_of(container)), path
        assert container.facts["version"] == expected["version"]
        assert container.version == str(expected["version"] or "text")
        assert path.parent.name == "ambiguous" or list(container.check()) == [], path


def test_malformed_samples_are_refused_or_lose_one_entry(samples: Path) -> None:
    folder = samples / "ikv" / "malformed"
    verdicts = json.loads((folder / "expected.json").read_text())
    assert len(verdicts) > 60
    for name, verdict in verdicts.items():
        if verdict["scope"] == "document":
            with pytest.raises(Refused, match=name):
                open_path(folder / name)
            continue
        bad = verdict["scope"].rpartition(":")[2].encode()
        container = open_path(folder / name)
        members = members_of(root_of(container))
        assert [key for key, content in members.items() if isinstance(content, Blob)] == [bad], name
        readable = {key: value_of(content) for key, content in members.items() if key != bad}
        document = document_of(container)
        assert {key.encode(): value for key, value in document.items()} == readable
        for key, value in verdict.get("readable", {}).items():
            assert document[key] == value
        places = {fault.place for fault in container.check()} - {"root", "file"}
        assert places == {f"root/{bad.decode()}"}


@BOTH
def test_kinds_of_content(encode: Any) -> None:
    value = {
        "null": None, "text": "a\0b\n", "whole": 2**63 - 1, "least": -(2**63), "real": 1.0, "truth": True, "object": {},
        "ints": np.array([3, -1]), "reals": np.array([0.5]), "truths": np.array([True, False]),
        "mixed": [1, "x", None], "texts": ["a"], "objects": Typed(OBJECT, [{}]), "empty": [],
    }
    root = root_of(open_bytes(encode(value, b"name/of\xff")))
    assert root.key == b"name/of\xff"
    members = members_of(root)
    kinds = {key.decode(): type(content).__name__ for key, content in members.items()}
    assert kinds == {
        "null": "Null", "text": "Text", "whole": "Scalar", "least": "Scalar", "real": "Scalar", "truth": "Scalar",
        "object": "Group", "ints": "Array", "reals": "Array", "truths": "Array", "mixed": "Document",
        "texts": "Document", "objects": "Document", "empty": "Document",
    }
    arrays = [members[key] for key in (b"ints", b"reals", b"truths")]
    assert [(array.dtype, array.shape, array.type_name) for array in arrays if isinstance(array, Array)] == [
        ("<i8", (2,), "integer"), ("<f8", (1,), "double"), ("|b1", (2,), "boolean"),
    ]
    scalars = [value_of(members[key]) for key in (b"whole", b"least", b"real", b"truth")]
    assert [(type(scalar), scalar) for scalar in scalars] == [
        (int, 2**63 - 1), (int, -(2**63)), (float, 1.0), (bool, True),
    ]


@pytest.mark.parametrize(("head", "error", "reason"), [
    (b"iKv3b\3\0\0\0", Refused, "has version iKv3, but"), (b"iKv9b\3\0\0\0", Refused, "has version iKv9, but"),
    (b"IKV1b\1\0\0\0", Unrecognised, "not a container of a known format"),
    (b"ikv2b\2\0\0\0\1\0\0\0", Unrecognised, "not a container of a known format"),
])
def test_other_versions_and_lookalikes_are_explained(head: bytes, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        open_bytes(head + b"\4root\5\0")


# Arrays

def test_many_integers_in_ranges_and_beyond_what_the_cache_keeps(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    values = chance.integers(-(2**62), 2**62, 400_000) >> chance.integers(0, 62, 400_000)
    write_ikv2(tmp_path / "many.ikv", {"a": values})
    array = members_of(root_of(open_path(tmp_path / "many.ikv", budget=1 << 20)))[b"a"]
    assert array.data.size == values.nbytes > 1 << 20
    assert array.data.read(8 * 399_990, 80) == values[399_990:].tobytes()
    assert array.data.read(12_345, 54_321) == values.tobytes()[12_345:66_666]
    assert read_in_parts(array.data, 1 << 20) == values.tobytes()


def test_size_of_an_array_needs_no_decoding(tmp_path: Path) -> None:
    values = np.arange(2_000_000)
    write_ikv1(tmp_path / "large.ikv", {"a": values, "b": values.astype(float)})
    source = CountingSource(tmp_path / "large.ikv")
    root = root_of(open_container(opening(source)))
    source.reads.clear()
    members = members_of(root)
    for array in members.values():
        assert array.data.is_sized
        assert array.data.size == values.nbytes
    assert source.bytes_read < 1.1 * source.size - 8 * len(values)  # the doubles are skipped
    source.reads.clear()
    assert np.frombuffer(members[b"b"].data.read(8_000_000, 80)).tolist() == list(range(1_000_000, 1_000_010))
    assert source.bytes_read == 80


def test_doubles_keep_their_bits_and_booleans_become_zero_or_one() -> None:
    bits = [0x7FF4000000000001, 0xFFF8000000000123, 0x8000000000000000, 1]
    reals = struct.pack("<4Q", *bits)
    raw = b"\5\2" + b"\1d" + bytes((ARRAY, DOUBLE, 4)) + reals + b"\1b" + bytes((ARRAY, BOOLEAN, 3)) + b"\0\2\xff"
    members = members_of(root_of(opened_v1(raw)))
    assert members[b"d"].data.whole() == reals
    assert members[b"b"].data.whole() == b"\0\1\1"


@pytest.mark.parametrize(("element", "items", "expected"), [
    (OBJECT, b"\5\0\0\5\0", [{}, None, {}]),
    (ARRAY, b"\6\0\0\0\6\1\1\1x", [[], None, ["x"]]),
    (MIXED, b"\0\2\2\4\7", [None, 1, True]),
    *((element, b"", []) for element in range(7)),
])
def test_arrays_whose_items_have_their_own_types(element: int, items: bytes, expected: list[Any]) -> None:
    assert document_of(opened_v1(bytes((ARRAY, element, len(expected))) + items)) == expected


# Numbers and limits

def test_padded_numbers_are_accepted_inside_their_limits() -> None:
    raw = bytes((OBJECT, 1)) + b"\x81\x80\x80\x80\x00k" + b"\2" + b"\x84" + b"\x80" * 8 + b"\x00"
    assert document_of(opened_v1(raw)) == {"k": 2}


@pytest.mark.parametrize("node", [
    b"\1\x81\x80\x80\x80\x10",  # a length of 33 bits
    b"\1\x81\x80\x80\x80\x80\x00",  # six bytes
    b"\2" + b"\xff" * 9 + b"\2",  # an integer of 65 bits
    b"\2" + b"\x80" * 10 + b"\0",  # eleven bytes
    b"\6\2\1" + b"\xff" * 9 + b"\2",
    bytes((ARRAY, INTEGER)) + varint(1000) + b"\1" * 600 + b"\x80" * 10 + b"\0" + b"\1" * 399,
])
def test_numbers_that_overflow_are_refused(node: bytes) -> None:
    with pytest.raises(Refused, match=r"more than (32|64) bits"):
        opened_v1(node + b"\0" * 40)


def test_a_document_that_is_cut_anywhere_is_refused() -> None:
    value = {"text": "some", "n": 5, "reals": np.array([1.0, 2.0]), "o": {"p": [None, {"q": -300}]}, "s": ["a", ""]}
    whole = ikv1(value)
    for size in range(len(whole)):
        with pytest.raises(Refused):
            open_bytes(whole[:size])


@pytest.mark.parametrize("shape", ["arrays", "objects", "typed"])
def test_depth_limit(shape: str) -> None:
    def nested(levels: int) -> bytes:
        head = {"arrays": b"\6\0\1", "objects": b"\5\1\1k", "typed": b"\6\6\1"}[shape]
        return head * (levels - 1) + (b"\5\0" if shape == "objects" else b"\6\0\0")

    value = document_of(opened_v1(nested(256)))
    for _ in range(255):
        value = value[0] if isinstance(value, list) else value["k"]
    assert not value
    for levels in (257, 100_000):
        with pytest.raises(Refused, match="nested more than 256"):
            opened_v1(nested(levels))


def test_depth_of_an_entry_counts_the_root() -> None:
    payload = {levels: b"\0\1" + b"\6\0\1" * (levels - 3) + b"\6\0\0" for levels in (256, 257)}
    members = members_of(root_of(open_bytes(ikv2_of([(b"%d" % n, ARRAY, raw) for n, raw in payload.items()]))))
    assert isinstance(members[b"256"], Document)
    assert isinstance(members[b"257"], Blob)


# iKv2: entries

def test_a_bad_entry_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    entries = [
        (b"bool", BOOLEAN, b"\1\1"), (b"double", DOUBLE, bytes(9)), (b"int", INTEGER, b""), (b"null", NULL, b"x"),
        (b"string", STRING, b"\5abc"), (b"long", STRING, b"\2abc"), (b"object", OBJECT, b"\2\1a\0"),
        (b"array", ARRAY, b"\3\xff\xff\xff\xff\x0f"), (b"over", INTEGER, b"\xff" * 9 + b"\2"),
        (b"good", INTEGER, b"\2"), (b"fine", OBJECT, b"\1\1a\4\1"),
    ]
    container = open_bytes(ikv2_of(entries))
    members = members_of(root_of(container))
    blobs = {key: content.data.whole() for key, content in members.items() if isinstance(content, Blob)}
    assert blobs == {key: raw for key, _, raw in entries[:9]}
    assert value_of(members[b"good"]) == 1
    assert document_of(container) == {"good": 1, "fine": {"a": True}}
    assert {fault.place for fault in container.check()} == {f"root/{key.decode()}" for key in blobs}
    members_of(root_of(container))
    assert len(caplog.records) == 1
    assert "bad entries: 9" in caplog.text


def test_only_the_offset_of_null_is_free() -> None:
    head = b"iKv2b\2\0\0\0\xff\0\0\1\4root\1\1k"  # with flags of later versions
    assert document_of(open_bytes(head + struct.pack("<BII", NULL, 3, 0))) == {"k": None}
    with pytest.raises(Refused, match="outside"):
        open_bytes(head + struct.pack("<BII", NULL, 0xFFFF, 0))


def test_entries_that_share_a_large_payload_are_checked_once() -> None:
    tag, payload = payload_of({"v": np.arange(500.0)})
    head = b"iKv2b\2\0\0\0\1\0\0\0\4root" + varint(2000) + b"".join(string(f"e{n:04}") for n in range(2000))
    data = head + struct.pack("<BII", tag, len(head) + 18_000, len(payload)) * 2000 + payload
    container = open_bytes(data)
    members = members_of(root_of(container))
    assert len(members) == 2000
    assert value_of(members[b"e1999"])["v"] == list(range(500))
    document = document_of(container)
    assert len(document) == 2000
    assert document["e0000"] == document["e1999"]
    assert not list(container.check())


def test_overlapping_payloads_do_not_cost_their_product(tmp_path: Path) -> None:
    # Each entry begins one byte later in the same run of nulls, and is found bad only at its end.
    entries = 3000
    head = b"iKv2b\2\0\0\0\1\0\0\0\4root" + varint(entries) + b"".join(string(f"{n:04}") for n in range(entries))
    start = len(head) + 9 * entries
    run = (b"\6\0\x80\x80\x10") + b"\2\1" * 130_000
    index = b"".join(struct.pack("<BII", ARRAY, start + 1, len(run) - 1 - number) for number in range(entries))
    path = tmp_path / "overlapping.ikv"
    path.write_bytes(head + index + run)
    source = CountingSource(path)
    container = open_container(opening(source))
    members = members_of(root_of(container))
    assert sum(isinstance(content, Blob) for content in members.values()) == entries
    assert source.bytes_read < 10 * source.size
    assert any("too many other entries" in fault.reason for fault in container.check())


# Objects

def test_nested_objects_are_listed_when_looked_into(tmp_path: Path) -> None:
    inner = {f"n{number}": {"text": "x" * 1000, "more": {"deep": number}} for number in range(2000)}
    write_ikv1(tmp_path / "a.ikv", {"large": inner, "small": 1})
    source = CountingSource(tmp_path / "a.ikv")
    root = root_of(open_container(opening(source)))
    source.reads.clear()
    members = members_of(root)
    assert source.bytes_read < 1.1 * source.size  # its nodes are passed over, and not listed
    nested = members_of(members[b"large"])
    assert value_of(members_of(nested[b"n1999"])[b"more"]) == {"deep": 1999}


def test_faults_that_reading_does_not_reveal(caplog: pytest.LogCaptureFixture) -> None:
    twice = b"\5\2\1k\0\1k\0"
    assert [fault.place for fault in faults_of(V1 + b"\5\1\1o\6\0\2\0" + twice)] == ["root/o/1"]
    assert caplog.records == []
    assert "3 bytes after the root" in faults_of(ikv1({}) + b"end")[0].reason
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert document_of(opened_v1(b"\6\5\1\0\0")) == [None]
    (repeated,) = faults_of(ikv2([("k", 1), ("x", {}), ("k", 2)], is_sorted=False))
    assert repeated.place == "root" and "'k'" in repeated.reason
    whole = ikv2({"k": "text", "x": {}})
    (unused,) = faults_of(whole + b"end")
    assert unused == ("file", f"3 bytes at {len(whole)}, after the payload of 'x', belong to nothing")


@pytest.mark.slow
@pytest.mark.parametrize("node", [
    b"\6\0" + varint(10_000_000) + bytes(10_000_000),
    b"\6\5" + varint(3_000_000) + b"\5\0" * 3_000_000,
    b"\6\3" + varint(6_000_000) + bytes(48_000_000),
    b"\1" + varint(70_000_000) + b"x" * 70_000_000,
    b"\6\0\1" * 250 + b"\6\0" + varint(300_000) + bytes(300_000),  # mostly indent
], ids=["nulls", "objects", "doubles", "string", "indent"])
def test_too_large_documents_are_refused_in_bounded_memory(node: bytes, tmp_path: Path) -> None:
    path = tmp_path / "large.ikv"
    path.write_bytes(V1 + node)
    script = r"""if True:
        import re, sys
        from glassfs.errors import TooLarge
        from tests.formats.ikv_files import document_of
        from tests.helpers import open_path
        try:
            document_of(open_path(sys.argv[1]))
        except TooLarge:
            with open("/proc/self/status") as status:
                print(int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) >> 10)
    """
    peak = subprocess.check_output([sys.executable, "-c", script, str(path)], cwd=ROOT, text=True)
    assert int(peak) < 250


MANY = 3000
COSTLY = {
    "nulls": b"\6\0" + varint(MANY) + bytes(MANY),
    "objects": b"\6\5" + varint(MANY) + b"\5\0" * MANY,
    "members": b"\6\5" + varint(MANY) + b"\5\1\0\0" * MANY,
    "keys": b"\5" + varint(MANY) + b"".join(b"\4%04x\0" % number for number in range(MANY)),
    "levels": b"\6\5" + varint(12) + (b"\5\1\0" * 249 + b"\5\0") * 12,
    "nulls inside": b"\6\0\1" * 250 + b"\6\0" + varint(MANY) + bytes(MANY),
    "integers": b"\6\2" + varint(MANY) + (b"\xff" * 9 + b"\1") * MANY,
    "strings": b"\6\1" + varint(MANY) + b"".join(b"\2%02x" % (number & 0xFF) for number in range(MANY)),
    "escapes": b"\1" + varint(MANY * 8) + b"\1" * MANY * 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_documents_take_no_more_memory_than_declared(name: str) -> None:
    """And declare no more than the limits allow, however much is stored."""
    for data in (V1 + COSTLY[name], ikv2_of([(b"k", COSTLY[name][0], COSTLY[name][1:])])):
        document = members_of(open_bytes(data).root)[b"document"]
        peak = peak_memory(lambda document=document: render(document.value()))
        assert len(render(document.value())) < peak <= document.cost
        assert document.cost <= LARGEST_VALUE + LARGEST_RENDERING * 5 // 4 + (1 << 20)


@pytest.mark.parametrize("count", [1, 5000, 300_000])
def test_integers_take_no_more_memory_than_declared(count: int) -> None:
    integers = members_of(root_of(open_bytes(ikv1({"a": np.arange(count) % 100}))))[b"a"].data
    ways = ((integers.whole, integers.cost), (lambda: sum(map(len, integers.pieces())), integers.stream_cost))
    for make, cost in ways:
        make()  # imports are not part of the cost
        assert peak_memory(make) <= cost <= 20 * 8 * count + (6 << 20)


def test_too_many_members_are_omitted_with_a_reason(tmp_path: Path) -> None:
    count = 100_000
    (tmp_path / "many.ikv").write_bytes(ikv1({f"{number:06x}": None for number in range(count)}))
    container = open_path(tmp_path / "many.ikv", budget=1 << 20)
    root = root_of(container)
    listed = LEAST // (OBJECT_COST + held(b"123456"))
    assert sum(1 for _ in root.members()) == listed + 1
    reason = f"too many members: {count - listed} more are not listed; a larger cache_size allows more"
    assert omitted_in(root) == {"": reason}
    assert len(document_of(container)) == count


@given(st.dictionaries(st.text(max_size=150), values(st.floats(allow_nan=False)), max_size=8))
def test_what_is_written_is_read(value: dict[str, Any]) -> None:
    assert document_of(open_bytes(ikv1(value))) == value
    assert document_of(open_bytes(ikv2(value))) == value
    assert value_of(root_of(open_bytes(ikv2(value)))) == value
    assert faults_of(ikv1(value)) == faults_of(ikv2(value)) == []


def test_a_file_that_changes_after_opening_gives_no_other_error(tmp_path: Path) -> None:
    path = tmp_path / "a.ikv"
    write_ikv1(path, {"a": Typed(INTEGER, range(1000)), "o": {"p": 1}, "m": [1, None]})
    container = open_path(path)
    members = members_of(root_of(container))
    with path.open("r+b") as file:
        file.truncate(30)
    for read in (
        lambda: value_of(members[b"a"]), lambda: value_of(members[b"o"]), lambda: value_of(members[b"m"]),
        lambda: document_of(container),
    ):
        with pytest.raises(GlassfsError):
            read()
