"""Messages of Protocol Buffers in MCAP recordings, made without a compiler of definitions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import glassfs
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.mcap.fields import decoder_of
from glassfs.formats.mcap.protobuf import _is_repeated
from glassfs.formats.mcap.recording import Schema
from tests.formats.mcap_files import START, Message, files, picture, write

FIELDS = descriptor_pb2.FieldDescriptorProto
REPEATED = FIELDS.LABEL_REPEATED
TYPES: dict[str, Any] = {name.removeprefix("TYPE_").lower(): number for name, number in FIELDS.Type.items()}


def described(name: str, text: str) -> Any:
    """Return the descriptor of a type, given the type and name of each field, and whether it is repeated."""
    found = descriptor_pb2.DescriptorProto(name=name)
    for number, line in enumerate(text.split("; "), 1):
        kind, field, *label = line.split()
        added = found.field.add(name=field, number=number, label=REPEATED if label else FIELDS.LABEL_OPTIONAL)
        if kind in TYPES:
            added.type = TYPES[kind]
        else:
            added.type = TYPES["enum" if kind.endswith("Kind") else "message"]
            added.type_name = kind
    return found


def definition(*types: Any, package_name: str = "made", imports: tuple[Any, ...] = ()) -> bytes:
    """Return a FileDescriptorSet of proto3."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="made.proto", package=package_name, syntax="proto3", message_type=types)
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("NONE", "ONE")):
        kind.value.add(name=name, number=number)
    for one in imports:
        file.dependency.append(one.name)
        files.file.append(one)
    return files.SerializeToString()


def message_class(raw: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(descriptor_pb2.FileDescriptorSet.FromString(raw).file):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def google(*modules: Any) -> tuple[Any, ...]:
    found = []
    for module in modules:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        found.append(file)
    return tuple(found)


def with_entries(outer: Any) -> Any:
    """Add a map from texts to numbers to a type."""
    entry = outer.nested_type.add(name="MEntry")
    entry.CopyFrom(described("MEntry", "string key; int32 value"))
    entry.options.map_entry = True
    outer.field.add(name="m", number=90, label=REPEATED, type=TYPES["message"], type_name=".made.All.MEntry")
    return outer


ALL = definition(
    with_entries(described("All", (
        "double a; float b; int32 c; uint64 d; sint64 e; bool f; string g; bytes h; .made.Kind i; .made.Inner j; "
        "double k repeated; string l repeated; .made.Inner n repeated; .google.protobuf.Timestamp o; .made.All p; "
        "fixed32 q repeated; .made.Kind r repeated; bool s repeated"
    ))),
    described("Inner", "int32 x; double y repeated"), imports=google(timestamp_pb2),
)


def recorded(path: Path, raw: bytes, name: str, *messages: Any) -> Path:
    return write(path, [
        Message("/x", name, START + number, one if isinstance(one, bytes) else one.SerializeToString(), "protobuf",
                ("protobuf", raw))
        for number, one in enumerate(messages)
    ])


def test_fields_of_all_kinds(tmp_path: Path) -> None:
    kind = message_class(ALL, "made.All")
    first = kind(
        a=0.1, b=0.1, c=-5, d=(1 << 64) - 1, e=-(1 << 63), f=True, g="é", h=b"abc", i=1, j={"x": 3, "y": [1, 2]},
        k=[1, 2], l=["a", "b"], n=[{"x": 1}, {"x": 2, "y": [3]}], o={"seconds": 5, "nanos": 7}, p={"c": 1}, q=[7],
        r=[1, 9], s=[True, False], m={"k": 4},
    )
    with glassfs.open(recorded(tmp_path / "run.mcap", ALL, "made.All", first, kind())) as run:
        fields = run["topics/x/fields"]
        assert sorted(name for name, _ in files(fields)) == sorted([
            *(f"{name}.npy" for name in "abcdefi"), "g.jsonl", "j/x.npy", "j/y/values.npy", "j/y/offsets.npy",
            *(f"{name}/{part}.npy" for name in "kqrs" for part in ("values", "offsets")), "l.jsonl", "n/offsets.npy",
            "n/x.npy", "n/y/values.npy", "n/y/offsets.npy", "o.npy",
        ])
        expected = {
            "a": [0.1, 0], "c": [-5, 0], "d": [(1 << 64) - 1, 0], "e": [-(1 << 63), 0], "f": [True, False], "i": [1, 0],
            "j/x": [3, 0], "j/y/values": [1, 2], "j/y/offsets": [0, 2, 2], "k/values": [1, 2], "n/offsets": [0, 2, 2],
            "n/x": [1, 2], "n/y/offsets": [0, 0, 1], "o": [5 * 10**9 + 7, 0], "r/values": [1, 9],
            "s/values": [True, False],
        }
        assert {name: fields[name].numpy().tolist() for name in expected} == expected
        assert fields["d"].numpy().dtype == "u8" and fields["b"].numpy().tolist() == [np.float32(0.1), 0]
        assert fields["g.jsonl"].text() == '"é"\n""\n' and run["topics/x/schema.binpb"].bytes() == ALL
        shown, empty = (json.loads(line)["data"] for line in run["topics/x/messages.jsonl"].text().splitlines())
        nothing = {
            "a": 0, "b": 0, "c": 0, "d": 0, "e": 0, "f": False, "g": "", "h": {"bytes": 0}, "i": "NONE", "j": None,
            "k": [], "l": [], "n": [], "o": None, "p": None, "q": [], "r": [], "s": [], "m": {},
        }
        assert empty == nothing and shown == {
            "a": 0.1, "b": 0.1, "c": -5, "d": (1 << 64) - 1, "e": -(1 << 63), "f": True, "g": "é", "h": {"bytes": 3},
            "i": "ONE", "j": {"x": 3, "y": [1, 2]}, "k": [1, 2], "l": ["a", "b"],
            "n": [{"x": 1, "y": []}, {"x": 2, "y": [3]}], "o": {"seconds": 5, "nanos": 7}, "p": {**nothing, "c": 1},
            "q": [7], "r": ["ONE", 9], "s": [True, False], "m": {"k": 4},
        }


FOXGLOVE = {
    "CompressedImage": ".google.protobuf.Timestamp timestamp; string frame_id; bytes data; string format",
    "RawImage": (
        ".google.protobuf.Timestamp timestamp; string frame_id; fixed32 width; fixed32 height; string encoding; "
        "fixed32 step; bytes data"
    ),
    "PointCloud": (
        ".google.protobuf.Timestamp timestamp; string frame_id; .foxglove.PackedElementField fields repeated; "
        "fixed32 point_stride; bytes data"
    ),
}
FIELD = described("PackedElementField", "string name; fixed32 offset; .foxglove.Kind type")


def foxglove(name: str) -> bytes:
    return definition(
        described(name, FOXGLOVE[name]), FIELD, package_name="foxglove", imports=google(timestamp_pb2),
    )


@pytest.mark.parametrize(("name", "values", "file"), [
    ("CompressedImage", {"data": picture(1), "format": "jpeg"}, "images/000000.jpg"),
    ("CompressedImage", {"data": b"", "format": "jpeg"}, "images/000000.bin"),
    ("CompressedImage", {"data": b"\0\0\0\1", "format": "webp"}, "images/000000.bin"),
    ("RawImage", {"data": bytes(12), "width": 2, "height": 2, "step": 6, "encoding": "rgb8"}, "images/000000.png"),
    ("RawImage", {"data": bytes(16), "width": 2, "height": 2, "step": 8, "encoding": "32FC1"}, "images/000000.npy"),
    ("RawImage", {"data": bytes(15), "width": 2, "height": 2, "step": 8, "encoding": "32FC1"}, "images/000000.bin"),
    ("PointCloud", {
        "data": bytes(range(16)), "point_stride": 8, "fields": [{"name": "r", "offset": 3, "type": 1}],
    }, "points/000000.npy"),
])
def test_images_and_clouds_of_foxglove(tmp_path: Path, name: str, values: dict[str, Any], file: str) -> None:
    raw = foxglove(name)
    kind = message_class(raw, f"foxglove.{name}")
    with glassfs.open(recorded(tmp_path / "run.mcap", raw, f"foxglove.{name}", kind(**values))) as run:
        found = run[f"topics/x/{file}"]
        if file.endswith((".jpg", ".bin")):
            assert found.bytes() == values["data"]
        elif name == "PointCloud":
            assert found.numpy().tolist() == [(3,), (11,)]
        else:
            assert found.bytes() and "data" not in run["topics/x/fields"]


@pytest.mark.parametrize("type_number", [0, -1, 9, 1 << 20])
def test_points_of_unknown_types_are_damaged(tmp_path: Path, type_number: int) -> None:
    raw = foxglove("PointCloud")
    value = message_class(raw, "foxglove.PointCloud")(
        data=bytes(16), point_stride=8, fields=[{"name": "r", "offset": 0, "type": type_number}],
    )
    path = recorded(tmp_path / "run.mcap", raw, "foxglove.PointCloud", value)
    with glassfs.open(path) as run, pytest.raises(Damaged):
        next(iter(run["topics/x/points"].values())).bytes()


def test_messages_that_do_not_parse_have_a_reason(tmp_path: Path) -> None:
    kind = message_class(ALL, "made.All")
    deep = b""
    for _ in range(200):
        deep = kind(p=kind()).SerializeToString()[:-1] + _length(deep) + deep
    with glassfs.open(recorded(tmp_path / "run.mcap", ALL, "made.All", b"\xff\xff", kind(c=1), deep)) as run:
        lines = [json.loads(line) for line in run["topics/x/messages.jsonl"].text().splitlines()]
        assert [line["data"] is None for line in lines] == [True, False, True]
        assert all("no message of its type" in line["error"] for line in lines[::2])
        with pytest.raises(Damaged):
            run["topics/x/fields/c"].numpy()


@pytest.mark.parametrize(("seconds", "is_int64"), [
    (9_223_372_030, True), (-9_223_372_030, True), (253_402_300_799, False), (-62_135_596_800, False),
    (-(1 << 63), False),
])
def test_times_that_int64_does_not_have_are_damaged(tmp_path: Path, seconds: int, is_int64: bool) -> None:
    kind = message_class(ALL, "made.All")
    with glassfs.open(recorded(tmp_path / "run.mcap", ALL, "made.All", kind(o={"seconds": seconds}))) as run:
        line = json.loads(run["topics/x/messages.jsonl"].text())
        assert line["data"]["o"] == {"seconds": seconds, "nanos": 0}
        if is_int64:
            assert run["topics/x/fields/o"].numpy().tolist() == [seconds * 10**9]
        else:
            with pytest.raises(Damaged, match="no int64"):
                run["topics/x/fields/o"].numpy()


def test_repeated_fields_are_known_to_protobuf_5() -> None:
    for label, is_repeated in ((1, False), (3, True)):
        assert _is_repeated(SimpleNamespace(label=label, LABEL_REPEATED=REPEATED)) is is_repeated


def _length(raw: bytes) -> bytes:
    found, rest = bytearray(), len(raw)
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


@pytest.mark.parametrize(("raw", "name"), [
    (b"\xff", "made.All"), (b"", "made.All"), (ALL, "made.Missing"), (ALL, ""), (ALL, "made"),
    (bytes(1 << 21), "made.All"),
    (definition(described("All", ".made.Missing x")), "made.All"),
    (definition(described("All", "int32 x; int32 x")), "made.All"),
    (definition(described("All", "; ".join(f"int32 x{number}" for number in range(10_001)))), "made.All"),
])
def test_definitions_that_are_not_used(raw: bytes, name: str) -> None:
    with pytest.raises(Damaged):
        decoder_of("protobuf", Schema(name, "protobuf", raw))


def test_without_the_package_the_reason_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(NotInstalled, match=r"install glassfs\[mcap\]"):
        decoder_of("protobuf", Schema("made.All", "protobuf", ALL))
    with glassfs.open(recorded(tmp_path / "run.mcap", ALL, "made.All", b"\x18\1")) as run:
        assert run["topics/x/messages/000000.bin"].bytes() == b"\x18\1"
