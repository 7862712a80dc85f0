"""Messages of MCAP recordings: definitions and values, against rosbags and google.protobuf."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from writers.mcap import Cdr, McapWriter

import glassfs
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.mcap.definitions import DEEPEST, LARGEST, MOST_FIELDS, plan_of
from glassfs.formats.mcap.fields import decoder_of
from glassfs.formats.mcap.recording import Schema
from tests.formats.mcap_files import START, STORE, Message, files, write

INTEGERS = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(), "float32": st.floats(width=32, allow_nan=False), "float64": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
    "Time": st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, 10**9 - 1)),
    **{
        name: st.integers(0, (1 << bits) - 1) if sign else st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        for name, (sign, bits) in INTEGERS.items()
    },
}
TIMES = {"ros2msg": "builtin_interfaces/Time", "ros1msg": "time"}
INNER = "made/Inner"


class Field(NamedTuple):
    """A field of a made type: what it holds, and how many: one, a number of them, or as many as there are."""

    kind: str
    count: int | str | None

    @property
    def brackets(self) -> str:
        return {None: "", "some": "[]", "few": "[<=3]"}.get(self.count, f"[{self.count}]")  # type: ignore[arg-type]


Types = dict[str, list[Field]]
KINDS = st.sampled_from([*VALUES])
COUNTS = st.sampled_from([None, None, 1, 3, "some", "few"])
TYPES = st.fixed_dictionaries({
    INNER: st.lists(st.builds(Field, KINDS, COUNTS), max_size=4),
    "made/Outer": st.lists(st.builds(Field, st.one_of(KINDS, st.just(INNER)), COUNTS), min_size=1, max_size=8),
})


def definition(types: Types, name: str, language: str) -> str:
    kinds = {"Time": TIMES[language], INNER: "Inner"}
    counts = {"few": "some"} if language == "ros1msg" else {}
    lines = [
        f"{kinds.get(kind, kind)}{Field(kind, counts.get(count, count)).brackets} f{number}"  # type: ignore[arg-type]
        for number, (kind, count) in enumerate(types[name])
    ]
    return "".join(f"{line}  # a comment\n" for line in lines)


def whole(types: Types, language: str) -> str:
    """Return the definition of the outer type with those of all others behind it."""
    parts = [definition(types, "made/Outer", language), f"MSG: {INNER}\n{definition(types, INNER, language)}"]
    parts.append("MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n")
    return ("=" * 80 + "\n").join(parts)


def drawn(data: st.DataObject, types: Types, name: str, store: Any) -> tuple[Any, dict[str, Any]]:
    """Return a message of a type as rosbags has it, and the JSON value that glassfs shows."""
    values, shown = [], {}
    for number, (kind, count) in enumerate(types[name]):
        size = 1 if count is None else count if isinstance(count, int) else data.draw(st.integers(0, 3))
        if kind == INNER:
            found = [drawn(data, types, INNER, store) for _ in range(size)]
            items, texts = [one for one, _ in found], [text for _, text in found]
        else:
            items = texts = [data.draw(VALUES[kind]) for _ in range(size)]
        if kind == "Time":
            time = store.types["builtin_interfaces/msg/Time"]
            items = [time(*pair) for pair in texts]
            texts = [{"sec": sec, "nanosec": nanosec} for sec, nanosec in texts]
        if kind == "float32":
            texts = [float(str(np.float32(one))) for one in items]  # the fewest digits that give it back
        is_number = kind in INTEGERS or kind in ("bool", "float32", "float64")
        values.append(items[0] if count is None else np.array(items, kind) if is_number else items)
        text: Any = texts[0] if count is None else texts
        shown[f"f{number}"] = {"bytes": size} if kind == "uint8" and count is not None else text
    return store.types[name.replace("/", "/msg/")](*values), shown


@given(TYPES, st.data())
def test_messages_of_any_type_are_those_of_rosbags(types: Types, data: st.DataObject) -> None:
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg("int32 sec\nuint32 nanosec\n", "builtin_interfaces/msg/Time"))
    for name in types:
        store.register(get_types_from_msg(definition(types, name, "ros2msg"), name.replace("/", "/msg/")))
    message, shown = drawn(data, types, "made/Outer", store)
    name = "made/msg/Outer"
    for raw, language in (
        (store.serialize_cdr(message, name), "ros2msg"),
        (store.serialize_cdr(message, name, little_endian=False), "ros2msg"),
        (store.serialize_ros1(message, name), "ros1msg"),
    ):
        if language == "ros1msg" and not types[INNER]:
            continue  # sequences of items without bytes are refused, as their number could be any
        schema = Schema(name, language, whole(types, language).encode())
        decoder = decoder_of("cdr" if language == "ros2msg" else "ros1", schema)
        assert decoder.json(memoryview(bytes(raw))) == shown
        for end in range(0, len(raw), 7):
            with suppress(Damaged):  # a cut may be behind all fields
                decoder.values(memoryview(bytes(raw[:end])))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_damaged(raw: bytes) -> None:
    text = "string a\nInner[] b\nfloat64[] c\nbool[3] d\nstring[] e\n" + "=" * 80 + "\nMSG: made/Inner\nuint8 x\n"
    for encoding, language in (("cdr", "ros2msg"), ("ros1", "ros1msg")):
        decoder = decoder_of(encoding, Schema("made/msg/Outer", language, text.encode()))
        for start in (b"\0\1\0\0", b"\0\0\0\0", b""):
            with suppress(Damaged):
                decoder.json(memoryview(start + raw))


def test_arrays_of_items_without_bytes_are_refused_at_once() -> None:
    inner = [f"MSG: a/T{number}\n{f'T{number + 1}[1000] x' if number < 9 else ''}\n" for number in range(10)]
    text = ("=" * 80 + "\n").join(["T0[1000] x\n", *inner])
    decoder = decoder_of("ros1", Schema("a/Outer", "ros1msg", text.encode()))
    with pytest.raises(Damaged, match="items without bytes"):  # else 10^30 items
        decoder.values(memoryview(b"\0\1\0\0" + bytes(4000)))


@pytest.mark.parametrize("text", [
    "/* " * 200_000, "\n" * 200_000 + "x", '"' + '\\"' * 200_000, "@a(" * 200_000, "struct {\n long x;\n};",
    "typedef ;", "struct T {\n long x[\u00b2];\n};",
])
def test_definitions_in_idl_take_no_time(text: str) -> None:
    """None but the limit of the test: quadratic ones would take minutes."""
    with pytest.raises(Damaged):
        plan_of(Schema("a/Outer", "ros2idl", text.encode()))


def test_sequences_of_structures_without_fields_have_offsets(tmp_path: Path) -> None:
    text = f"Empty[] x\nint32 y\n{'=' * 80}\nMSG: a/Empty\n"
    with McapWriter(tmp_path / "run.mcap") as writer:
        writer.add(writer.add_channel("/x", "a/Outer", text), START, b"\0\1\0\0\2\0\0\0\0\0\0\0\7\0\0\0")
    with glassfs.open(tmp_path / "run.mcap") as run:
        assert json.loads(run["topics/x/messages.jsonl"].text())["data"] == {"x": [{}, {}], "y": 7}
        assert run["topics/x/fields/x/offsets"].numpy().tolist() == [0, 2] and run["topics/x/fields/y"].numpy() == [7]


def test_sequences_of_many_structures_are_refused() -> None:
    text = "Inner[] x\n" + "=" * 80 + "\nMSG: a/Inner\nuint8 a\n"
    count = (1 << 20) + 1
    with pytest.raises(Damaged, match="items"):
        decoder_of("cdr", Schema("a/Outer", "ros2msg", text.encode())).values(
            memoryview(b"\0\1\0\0" + count.to_bytes(4, "little") + bytes(count)),
        )


@given(st.text(max_size=300), st.sampled_from(["ros2msg", "ros1msg", "ros2idl"]))
def test_any_text_is_a_definition_or_damaged(text: str, language: str) -> None:
    with suppress(Damaged):
        plan_of(Schema("made/msg/Outer", language, text.encode("utf-8", "replace")))


NESTED = "".join(f"{'=' * 80}\nMSG: a/T{number}\nT{number + 1} t\n" for number in range(DEEPEST + 2))
WIDE = "".join(f"{'=' * 80}\nMSG: a/T{number}\n" + f"T{number + 1} a\nT{number + 1} b\n" for number in range(20)) + (
    f"{'=' * 80}\nMSG: a/T20\nint8 x\n"
)


@pytest.mark.parametrize(("text", "reason"), [
    ("int32 x\nint32 x", "two of one name"), ("int32", "no field"), ("int32 x y z\n$", "no field"),
    ("Missing x", "not defined"), ("T x", "contains itself"), (f"T0 t\n{NESTED}", "too many others"),
    (f"T0 t\n{WIDE}", "too many fields"), (f"uint8[{1 << 62}] x", "too long"), ("int32 x\xff", "cannot be read"),
    ("uint8[0] x", "empty"), (f"int32 {'a' * 300}", "too long"), (f"int32[{'9' * 5000}] x", "cannot be read"),
    ("".join(f"int8 x{number}\n" for number in range(MOST_FIELDS + 1)), "too many fields"),
    ("#" * (LARGEST + 1), "larger than"), ("__import__('os').x y", "no field"),
])
def test_definitions_that_are_not_used(text: str, reason: str) -> None:
    with pytest.raises(Damaged, match=reason):
        decoder_of("cdr", Schema("a/msg/T", "ros2msg", text.encode("latin1")))


def test_topics_without_a_usable_definition_are_bytes(tmp_path: Path) -> None:
    with McapWriter(tmp_path / "run.mcap") as writer:
        for number, definition in enumerate(("int32 x", "T x", "int32 x\nint32 x")):
            channel = writer.add_channel(f"/{number}", "a/msg/T", definition)
            writer.add(channel, START, b"\0\1\0\0\5\0\0\0")
    with glassfs.open(tmp_path / "run.mcap") as run:
        assert run["topics/0/fields/x"].numpy().tolist() == [5]
        for number in (1, 2):
            assert run[f"topics/{number}/messages/000000.bin"].bytes() == b"\0\1\0\0\5\0\0\0"
            assert "schema.msg" in run[f"topics/{number}"] and "fields" not in run[f"topics/{number}"]


def test_a_message_that_does_not_decode_has_a_reason(tmp_path: Path) -> None:
    """Lines of other messages are there, and arrays fail; those in other batches would as well."""
    with McapWriter(tmp_path / "run.mcap") as writer:
        channel = writer.add_channel("/x", "a/msg/T", "float64 x\nint8[] y")
        for number in range(3):
            whole = Cdr().put("d", number).put_sequence("b", [1])
            writer.add(channel, START + number, bytes(whole)[: 10 if number == 1 else None])
    with glassfs.open(tmp_path / "run.mcap") as run:
        topic = run["topics/x"]
        lines = [json.loads(line) for line in topic["messages.jsonl"].text().splitlines()]
        assert [line["data"] and line["data"]["x"] for line in lines] == [0, None, 2]
        assert "shorter" in lines[1]["error"] and lines[1]["log_time"] == START + 1
        assert topic["log_time"].numpy().tolist() == [START, START + 1, START + 2]
        found = dict(files(topic["fields"]))
        assert sorted(found) == ["x.npy", "y.npy"]
        assert all(isinstance(one, Damaged) for one in found.values())


IDL = """
// generated
#include "other.idl"
module made { module msg {
  typedef double double__3[3];
  typedef unsigned long number;
  module Outer_Constants { const int32 LIMIT = 4; };
  @verbatim (language="comment", text="a (text); with } { characters")
  struct Outer {
    /* the state */ boolean a;
    octet b; @default (value=3) long c; long long d; unsigned short e; float f; double g;
    string h; string<5> i; double__3 j; number k;
    sequence<double> l; sequence<string, 4> m; sequence<made::msg::Inner> n; sequence<made::msg::Inner, 2> o;
    uint8 p; double q[2][2];
  };
  struct Inner { int32 x; };
}; };
"""
AS_MSG = f"""
bool a
byte b
int32 c
int64 d
uint16 e
float32 f
float64 g
string h
string<=5 i
float64[3] j
uint32 k
float64[] l
string[<=4] m
Inner[] n
Inner[<=2] o
uint8 p
float64[4] q
int32 LIMIT=4
string TEXT = "a text"
{"=" * 80}
MSG: made/Inner
int32 x
"""


def test_idl_and_msg_have_one_plan() -> None:
    assert plan_of(Schema("made/msg/Outer", "ros2idl", IDL.encode())) == plan_of(
        Schema("made/msg/Outer", "ros2msg", AS_MSG.encode())
    )


ALL = """int32 LIMIT=7
bool a
int8[] b
float32[3] c
string[] d
builtin_interfaces/Time e
made/Inner[] f
std_msgs/Empty g
builtin_interfaces/Duration[] h
uint8[] data
"""


def test_columns_of_sequences_of_structures(tmp_path: Path) -> None:
    for name, text in (("made/msg/Inner", "float64[] x\nstring y\nuint16 z\n"), ("made/msg/All", ALL)):
        if name not in STORE.types:
            STORE.register(get_types_from_msg(text, name))
    types = STORE.types
    time, span = types["builtin_interfaces/msg/Time"], types["builtin_interfaces/msg/Duration"]
    inner, empty = types["made/msg/Inner"], types["std_msgs/msg/Empty"]
    messages = []
    for number in range(4):
        items = [inner(np.arange(at, dtype="f8"), f"{number} {at}", at) for at in range(number)]
        floats = np.array([math.nan, math.inf, number], "f4")
        messages.append(Message("/all", "made/msg/All", START + number, types["made/msg/All"](
            number % 2 == 1, np.arange(number, dtype="i1"), floats, ["a"] * number, time(number, 1), items, empty(),
            [span(-1, 5)] * 2, np.zeros(number, np.uint8),
        )))
    with glassfs.open(write(tmp_path / "run.mcap", messages)) as run:
        fields = run["topics/all/fields"]
        assert sorted(name for name, _ in files(fields)) == [
            "a.npy", "b/offsets.npy", "b/values.npy", "c.npy", "d.jsonl", "data/offsets.npy", "data/values.npy",
            "e.npy", "f/offsets.npy", "f/x/offsets.npy", "f/x/values.npy", "f/y.jsonl", "f/z.npy", "h.npy",
        ]
        expected = {
            "a": [False, True, False, True], "b/offsets": [0, 0, 1, 3, 6], "b/values": [0, 0, 1, 0, 1, 2],
            "e": [number * 10**9 + 1 for number in range(4)], "f/offsets": [0, 0, 1, 3, 6],
            "f/x/offsets": [0, 0, 0, 1, 1, 2, 4], "f/x/values": [0, 0, 0, 1],
            "f/z": [0, 0, 1, 0, 1, 2], "h": [[5 - 10**9] * 2] * 4, "data/offsets": [0, 0, 1, 3, 6],
        }
        assert {name: fields[name].numpy().tolist() for name in expected} == expected
        assert np.array_equal(fields["c"].numpy()[3], np.array([math.nan, math.inf, 3], "f4"), equal_nan=True)
        texts = [json.loads(line) for line in fields["f/y.jsonl"].text().splitlines()]
        assert texts == [f"{number} {at}" for number in range(4) for at in range(number)]
        lines = [json.loads(line)["data"] for line in run["topics/all/messages.jsonl"].text().splitlines()]
        assert lines[3]["c"] == ["NaN", "Infinity", 3.0] and lines[3]["g"] == {} and lines[3]["data"] == {"bytes": 3}
        assert lines[1]["f"] == [{"x": [], "y": "1 0", "z": 0}] and "LIMIT" not in lines[0]


ENCODINGS = [
    ("cdr", None), ("cdr", "private"), ("protobuf", None), ("cbor", "cbor"), ("", ""), ("json", "protobuf"),
    ("ros1", "ros2msg"),
]


@pytest.mark.parametrize(("encoding", "language"), ENCODINGS)
def test_other_encodings_are_bytes(encoding: str, language: str | None) -> None:
    with pytest.raises(NotInstalled, match="shown as bytes"):
        decoder_of(encoding, Schema("a/T", language, b"int8 x") if language is not None else None)


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b"[" * 100_000, b'"\xff"', b"1 2"])
def test_what_is_no_json_is_damaged(raw: bytes) -> None:
    with pytest.raises(Damaged, match="no JSON"):
        decoder_of("json", None).json(memoryview(raw))
