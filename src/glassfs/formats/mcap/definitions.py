"""Definitions of types of messages: what ROS writes, as plans for decoders (docs/formats/mcap.md §3). Pure functions.

A definition comes from a stranger: nothing is generated from it or executed. What contradicts itself, or is too large,
raises Damaged.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from glassfs.errors import Damaged
from glassfs.formats.mcap.recording import Schema
from glassfs.lazy import NDArray, np

LARGEST = 1 << 20
"""Bytes of a definition."""
DEEPEST, MOST_FIELDS, LONGEST_NAME = 24, 10_000, 255
"""Types inside types, fields in all, and characters of the name of one: paths of fields have all of them."""
LONGEST_ARRAY = 1 << 24
LONGEST_LIST = 1024
"""Longer sequences of numbers are not in JSON lines."""


@dataclass(frozen=True)
class Number:
    """A number: its format character of ``struct``, and its dtype. Sequences of ``is_byte`` are bytes."""

    form: str
    dtype: str
    is_byte: bool = False


@dataclass(frozen=True)
class Time:
    """A time or duration: two numbers, whose names these are in JSON; as one number, nanoseconds."""

    forms: str = "iI"
    names: tuple[str, str] = ("sec", "nanosec")
    dtype = "<i8"


@dataclass(frozen=True)
class Text:
    """A string."""


@dataclass(frozen=True)
class Sequence:
    """Items one after another: ``length`` of them, or as many as the message says."""

    item: Number | Time | Text | Struct
    length: int | None = None


@dataclass(frozen=True)
class Struct:
    """Fields with names. Without any, it is one byte in CDR."""

    fields: tuple[tuple[str, Node], ...]


Node: TypeAlias = "Number | Time | Text | Sequence | Struct"
Kind: TypeAlias = "tuple[str, int | None, bool]"
"""A type by its name; how many there are, and whether it is a sequence."""
Raw: TypeAlias = "list[tuple[str, Kind]]"
"""The fields of a type as they are defined."""


def _number(form: str, is_byte: bool = False) -> Number:
    kind = "b" if form == "?" else "f" if form in "fd" else "u" if form.isupper() else "i"
    size = struct.calcsize(f"<{form}")
    return Number(form, f"{'<' if size > 1 else '|'}{kind}{size}", is_byte)


PRIMITIVES: Mapping[str, Number | Time | Text] = {
    "bool": _number("?"), "int8": _number("b"), "uint8": _number("B", is_byte=True), "int16": _number("h"),
    "uint16": _number("H"), "int32": _number("i"), "uint32": _number("I"), "int64": _number("q"),
    "uint64": _number("Q"), "float32": _number("f"), "float64": _number("d"), "string": Text(),
    "byte": _number("B", is_byte=True), "char": _number("B", is_byte=True),
    "builtin_interfaces/Time": Time(), "builtin_interfaces/Duration": Time(),
}
ROS1: Mapping[str, Number | Time | Text] = {
    **PRIMITIVES, "byte": _number("b", is_byte=True), "time": Time("II"), "duration": Time("ii"),
}
IDL_NAMES = {
    "boolean": "bool", "octet": "byte", "short": "int16", "unsigned short": "uint16", "long": "int32",
    "unsigned long": "uint32", "long long": "int64", "unsigned long long": "uint64", "float": "float32",
    "double": "float64",
}
NO_FIELD = "structure_needs_at_least_one_member"
"""What ROS 2 adds to types without fields."""
_SECTION = re.compile(r"^={20,}\n", re.MULTILINE)
_HEADING = re.compile(r"(?:MSG|IDL): *(\S+)\s*\n?")
_FIELD = re.compile(r"([A-Za-z][\w/]*)(?:<=\d+)?(\[(?:<=)?(\d*)\])?\s+([A-Za-z]\w*)(\s*=)?")
_TEXT = r'"(?:\\.|[^"\\])*"'
_IGNORED = re.compile(
    rf'//[^\n]*|/\*.*?(?:\*/|\Z)|^[ \t]*#[^\n]*|@\w+\s*(?:\((?:{_TEXT}|[^()"])*\))?', re.DOTALL | re.MULTILINE,
)
"""In IDL: comments, lines of the preprocessor, annotations. What is not closed ends with the text: trying it again at
each character would take hours, during which no other thread runs."""
# The question mark makes the closing quote of a text optional.
_TOKEN = re.compile(rf"{_TEXT}?|[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*|\d[\w.]*|\S")


def plan_of(schema: Schema) -> Struct:
    """Return the plan of messages with this schema, in one of the languages of ROS. Raises Damaged."""
    if len(schema.data) > LARGEST:
        raise Damaged(f"the definition of {schema.name} is larger than {LARGEST} bytes")
    types: dict[str, Raw] = {}
    try:
        for section in _SECTION.split(schema.data.decode().replace("\r\n", "\n")):
            heading = _HEADING.match(section)
            name = _normal(heading[1] if heading else schema.name)
            body = section[heading.end() :] if heading else section
            for key, fields in _idl(body) if schema.encoding == "ros2idl" else [(name, _message(name, body))]:
                types.setdefault(key, fields)
    except (ValueError, IndexError) as error:
        raise Damaged(f"the definition of {schema.name} cannot be read") from error
    primitives = ROS1 if schema.encoding == "ros1msg" else PRIMITIVES
    return _Planner(types, primitives).plan(_normal(schema.name))


def float32(value: float) -> float:
    """Return a number of 32 bits with the fewest digits that give it back, which are those of NumPy's texts."""
    return float(str(np.float32(value)))


def numbers_shown(values: NDArray[Any], item: Number) -> Any:
    """Return a sequence of numbers as a JSON value: bytes and long ones by their size only."""
    if item.is_byte:
        return {"bytes": len(values)}
    if len(values) > LONGEST_LIST:
        return {"dtype": np.dtype(item.dtype).name, "shape": [len(values)]}
    return list(map(float32, values)) if item.form == "f" else values.tolist()


class _Planner:
    """Makes plans of types, by their names."""

    def __init__(self, types: Mapping[str, Raw], primitives: Mapping[str, Number | Time | Text]) -> None:
        self._types, self._primitives = types, primitives
        self._left = MOST_FIELDS

    def plan(self, name: str, around: tuple[str, ...] = ()) -> Struct:
        if name not in self._types:
            raise Damaged(f"the type {name} is not defined")
        if name in around or len(around) > DEEPEST:
            raise Damaged(f"the type {name} contains itself, or too many others")
        fields: dict[str, Node] = {}
        for field, (kind, length, is_sequence) in self._types[name]:
            self._left -= 1
            is_long = len(field) > LONGEST_NAME or (length or 0) > LONGEST_ARRAY
            if self._left < 0 or field in fields or is_long or length == 0:
                raise Damaged(f"the type {name} has too many fields, too long or empty ones, or two of one name")
            item = self._primitives.get(kind) or self.plan(kind, (*around, name))
            fields[field] = Sequence(item, length) if is_sequence else item
        return Struct(tuple(fields.items()))


def _normal(name: str) -> str:
    """Return the name of a type as package/Type."""
    parts = [part for part in re.split(r"/|::", name) if part]
    return f"{parts[0]}/{parts[-1]}" if len(parts) > 1 else name


def _message(name: str, text: str) -> Raw:
    """Return the fields of a type in a ``.msg`` file. Raises Damaged."""
    found: Raw = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _FIELD.match(line)
        if match is None:
            raise Damaged(f"the definition of {name} has a line that is no field: {line[:60]!r}")
        kind, brackets, length, field, is_constant = match.groups()
        if is_constant or field == NO_FIELD:
            continue
        if kind == "Header":
            kind = "std_msgs/Header"
        elif "/" not in kind and kind not in ROS1:
            kind = f"{name.partition('/')[0]}/{kind}"
        is_fixed = bool(length) and "<" not in (brackets or "")
        found.append((field, (_normal(kind), int(length) if is_fixed else None, brackets is not None)))
    return found


def _idl(text: str) -> Iterator[tuple[str, Raw]]:
    """Yield the structures in an IDL file with their fields. Raises Damaged."""
    aliases: dict[str, Kind] = {}
    modules: list[str] = []
    statement: list[str] = []
    fields: Raw | None = None
    for token in _TOKEN.findall(_IGNORED.sub(" ", text)):
        if token == "{":
            if statement[:1] == ["struct"]:
                fields, modules = [], [*modules, statement[1]]
            else:
                modules = [*modules, statement[-1] if statement else ""]
            statement = []
        elif token == "}":
            if fields is not None:
                yield _normal("/".join(modules)), fields
            fields, modules, statement = None, modules[:-1], []
        elif token != ";":
            statement.append(token)
        else:
            if statement and statement[0] != "const" and (fields is not None or statement[0] == "typedef"):
                field, declared = _declared(statement[statement[0] == "typedef" :], aliases)
                if statement[0] == "typedef":
                    aliases[field] = declared
                elif fields is not None and field != NO_FIELD:
                    fields.append((field, declared))
            statement = []


def _declared(words: list[str], aliases: Mapping[str, Kind]) -> tuple[str, Kind]:
    """Return the name that a declaration in IDL gives, its type, its length and whether it is a sequence."""
    lengths = [int(word) for before, word in pairwise(words) if before == "[" and word.isdigit()]
    words = words[: words.index("[")] if "[" in words else words
    *kind, field = words
    is_sequence = kind[:1] == ["sequence"]
    if is_sequence:
        kind = kind[2 : kind.index(",") if "," in kind else -1]
    if "<" in kind:  # a bounded string
        kind = kind[: kind.index("<")]
    name = " ".join(kind)
    if name in aliases and not (is_sequence or lengths):
        return field, aliases[name]
    name = IDL_NAMES.get(name, name)
    return field, (_normal(name), prod(lengths) if lengths else None, is_sequence or bool(lengths))
