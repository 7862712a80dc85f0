"""Definitions of types of messages, as plans, and decoders of messages (docs/formats/mcap.md §3). Any thread.

A definition comes from a stranger: nothing is generated from it or executed. What contradicts itself, or is too large,
raises Damaged.

Messages of ROS (CDR of ROS 2, and the serialization of ROS 1) and of JSON are decoded here. A message of ROS becomes a
flat list: the values of all fields in order, those of structures in their places. Numbers between strings and sequences
are one run, which ``struct`` reads at once.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, TypeAlias

from glassfs.content.rows import refuse_constant
from glassfs.errors import Damaged
from glassfs.formats.mcap.recording import Schema
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE

LARGEST = 1 << 20
"""Bytes of a definition."""
DEEPEST, MOST_FIELDS, LONGEST_NAME = 24, 10_000, 255
"""Types inside types, fields in all, and characters of the name of one: paths of fields have all of them."""
LONGEST_ARRAY = 1 << 24
LONGEST_LIST = 1024
"""Longer sequences of numbers are not in JSON lines."""


class Number(NamedTuple):
    """A number: its format character of ``struct``, and its dtype. Sequences of ``is_byte`` are bytes."""

    form: str
    dtype: str
    is_byte: bool = False


@dataclass
class Time:
    """A time or duration: two numbers, whose names these are in JSON; as one number, nanoseconds."""

    forms: str = "iI"
    names: tuple[str, str] = ("sec", "nanosec")
    dtype = "<i8"


@dataclass
class Text:
    """A string."""


class Sequence(NamedTuple):
    """Items one after another: ``length`` of them, or as many as the message says."""

    item: Number | Time | Text | Struct
    length: int | None = None


class Struct(NamedTuple):
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
    return _planned(types, primitives, iter(range(MOST_FIELDS)), _normal(schema.name))


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


def _planned(
    types: Mapping[str, Raw], primitives: Mapping[str, Number | Time | Text], left: Iterator[int], name: str,
    around: tuple[str, ...] = (),
) -> Struct:
    """Return the plan of a type with this name, which may have as many fields as are ``left``. Raises Damaged."""
    if name not in types:
        raise Damaged(f"the type {name} is not defined")
    if name in around or len(around) > DEEPEST:
        raise Damaged(f"the type {name} contains itself, or too many others")
    fields: dict[str, Node] = {}
    for field, (kind, length, is_sequence) in types[name]:
        is_long = len(field) > LONGEST_NAME or (length or 0) > LONGEST_ARRAY
        if next(left, None) is None or field in fields or is_long or length == 0:
            raise Damaged(f"the type {name} has too many fields, too long or empty ones, or two of one name")
        item = primitives.get(kind) or _planned(types, primitives, left, kind, (*around, name))
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


HEADER_SIZE = 4
MOST_ITEMS = 1 << 20
KINDS = {0: (">", 8), 1: ("<", 8), 6: (">", 4), 7: ("<", 4)}
"""The order of bytes and the largest alignment, by the encapsulation: CDR, and XCDR2 of final types."""

Step: TypeAlias = Callable[[memoryview, int, list[Any]], int]
"""Appends the values at a position, and returns the position behind them."""


class JsonMessages:
    """Messages that are JSON. What a JSON Schema says of them is no promise that fields are there."""

    plan = Struct(())

    def values(self, message: memoryview) -> list[Any]:
        return []

    def json(self, message: memoryview) -> Any:
        if len(message) > 4 * PIECE:  # its values may take a hundred times the memory
            raise Damaged("is JSON of more than 4 MiB")
        try:
            return json.loads(bytes(message).decode(), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Damaged("is no JSON") from error


class Ros:
    """Decodes messages with a plan: those of ROS 1 if ``is_ros1``."""

    def __init__(self, plan: Struct, is_ros1: bool) -> None:
        self.plan, self._is_ros1 = plan, is_ros1
        self._steps = cache(lambda order, align: _Maker(order, align).of(plan))

    def values(self, message: memoryview) -> list[Any]:
        """Return the values of a message. Those of sequences of numbers refer to its bytes. Raises Damaged."""
        kind = ("<", 1)
        if not self._is_ros1:
            if len(message) < HEADER_SIZE or message[0] or message[1] not in KINDS:
                raise Damaged(f"begins with {bytes(message[:2]).hex()}, which is no CDR that glassfs knows")
            kind, message = KINDS[message[1]], message[HEADER_SIZE:]
        found: list[Any] = []
        try:
            self._steps(*kind)(message, 0, found)
        except (struct.error, ValueError) as error:
            raise Damaged("is shorter than its type says") from error
        return found

    def json(self, message: memoryview) -> Any:
        """Return a message as a JSON value. Raises Damaged."""
        return _shown(self.plan, iter(self.values(message)))


def _shown(node: Node, values: Iterator[Any]) -> Any:
    """Return the next value as a JSON value."""
    if isinstance(node, Struct):
        return {name: _shown(inner, values) for name, inner in node.fields}
    if isinstance(node, Time):
        return {name: next(values) for name in node.names}
    value = next(values)
    if isinstance(node, Number):
        return float32(value) if node.form == "f" else value
    if isinstance(node, Text) or isinstance(node.item, Text):
        return value
    if isinstance(node.item, Struct):
        return [_shown(node.item, iter(one)) for one in value]
    if isinstance(node.item, Time):
        return [dict(zip(node.item.names, one, strict=True)) for one in value.tolist()]
    return numbers_shown(value, node.item)


class _Maker:
    """Makes what reads the values of plans, for one order of bytes and one alignment (1 for ROS 1)."""

    def __init__(self, order: str, align: int) -> None:
        self._order, self._align = order, align
        self._counted = _counter(order, min(4, align))

    def of(self, plan: Node) -> Step:
        steps, run = list[Step](), ""
        for node in _leaves(plan, has_dummies=self._align > 1):
            if isinstance(node, (Number, Time, str)):
                run += node if isinstance(node, str) else node.form if isinstance(node, Number) else node.forms
                continue
            steps += [self._run(run)] if run else []
            steps.append(self._sequence(node) if isinstance(node, Sequence) else self._text())
            run = ""
        steps += [self._run(run)] if run else []

        def read(data: memoryview, position: int, found: list[Any]) -> int:
            for step in steps:
                position = step(data, position, found)
            return position

        return steps[0] if len(steps) == 1 else read

    def _run(self, forms: str) -> Step:
        @cache
        def layout(place: int) -> struct.Struct:
            made = self._order
            for form in forms:
                size = 0 if form == "x" else struct.calcsize(f"<{form}")
                padding = -place % min(size or 1, self._align)
                place += padding + (size or 1)
                made += f"{padding}x{form}"
            return struct.Struct(made)

        align = self._align

        def read(data: memoryview, position: int, found: list[Any]) -> int:
            known = layout(position % align)
            found.extend(known.unpack_from(data, position))
            return position + known.size

        return read

    def _text(self) -> Step:
        counted, end = self._counted, "\0" if self._align > 1 else ""

        def read(data: memoryview, position: int, found: list[Any]) -> int:
            size, position = counted(data, position)
            found.append(str(data[position : position + size], "utf-8", "replace").removesuffix(end))
            return position + size

        return read

    def _sequence(self, node: Sequence) -> Step:
        item, length, counted = node.item, node.length, self._counted
        if isinstance(item, (Number, Time)):
            forms = item.form if isinstance(item, Number) else item.forms
            parts = [("", f"{self._order}{form}") for form in forms]
            dtype = np.dtype(parts if len(parts) > 1 else parts[0][1])
            align = min(np.dtype(forms[0]).itemsize, self._align)

            def numbers(data: memoryview, position: int, found: list[Any]) -> int:
                count, position = (length, position) if length is not None else counted(data, position)
                if count:  # no items need no padding
                    position += -position % align
                found.append(np.frombuffer(data, dtype, count, position) if count else np.empty(0, dtype))
                return position + count * dtype.itemsize

            return numbers
        one = self.of(item)

        def items(data: memoryview, position: int, found: list[Any]) -> int:
            count, position = (length, position) if length is not None else counted(data, position)
            inner: list[Any] = []
            if count > MOST_ITEMS:
                raise Damaged(f"has more than {MOST_ITEMS} items, each of which takes memory")
            for _ in range(count):
                values = inner if isinstance(item, Text) else list[Any]()
                start, position = position, one(data, position, values)
                # Arrays of such items in one another would take a time that no message bounds.
                if position == start:
                    raise Damaged("has items without bytes, whose number could be any")
                if values is not inner:
                    inner.append(values)
            found.append(inner)
            return position

        return items


def _counter(order: str, align: int) -> Callable[[memoryview, int], tuple[int, int]]:
    """Return what reads the count at a position, and returns it with the position behind it."""
    unpack = struct.Struct(f"{order}I").unpack_from

    def counted(data: memoryview, position: int) -> tuple[int, int]:
        position += -position % align
        (count,) = unpack(data, position)
        if count > len(data) - position - 4:  # each item has a byte at least
            raise ValueError
        return count, position + 4

    return counted


def _leaves(node: Node, has_dummies: bool) -> Iterator[Node | str]:
    """Yield the fields of a plan that have values, and "x" for a structure without fields that is a byte in CDR."""
    if not isinstance(node, Struct):
        yield node
        return
    if not node.fields and has_dummies:
        yield "x"
    for _, inner in node.fields:
        yield from _leaves(inner, has_dummies)
