"""The Arrow schema that a Parquet file may carry: it has types that Parquet lacks, such as durations.

An encapsulated message of Arrow's IPC format with a FlatBuffer of the schema and nothing else
(https://arrow.apache.org/docs/format/Columnar.html, Schema.fbs, Message.fbs). Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_V5, _SCHEMA = 4, 1
_LIST = 12
_TIMESTAMP, _DURATION = 10, 18
TIMES = (_TIMESTAMP, _DURATION)
_CONTINUED = b"\xff\xff\xff\xff"


class Type(NamedTuple):
    """A type: its number in the union ``Type``, and the scalars of its table by slot, as struct formats and values."""

    number: int
    scalars: tuple[tuple[int, str, int], ...] = ()


class Field(NamedTuple):
    """A column, or the elements of a list."""

    name: str
    type: Type
    is_nullable: bool = False
    children: tuple[Field, ...] = ()


BOOL, BINARY, UTF8, LIST = Type(6), Type(4), Type(5), Type(_LIST)


def integer(bits: int, is_signed: bool) -> Type:
    return Type(2, ((0, "<i", bits), (1, "<B", is_signed)))


def floating(width: int) -> Type:
    return Type(3, ((0, "<h", width // 4),))


def fixed(width: int) -> Type:
    return Type(15, ((0, "<i", width),))


def timestamp(unit: str) -> Type:
    return Type(_TIMESTAMP, ((0, "<h", _UNITS[unit]),))


def duration(unit: str) -> Type:
    return Type(_DURATION, ((0, "<h", _UNITS[unit]),))


def message(fields: Sequence[Field]) -> bytes:
    """Return the message for a schema of these fields."""
    buffer = bytearray(4)

    def schema() -> int:
        return _table(buffer, {0: ("<h", 0), 1: lambda: _vector(buffer, [_field(buffer, field) for field in fields])})

    root = _table(buffer, {0: ("<h", _V5), 1: ("<B", _SCHEMA), 2: schema, 3: ("<q", 0)})
    struct.pack_into("<I", buffer, 0, root)
    _align(buffer, 8)
    return _CONTINUED + struct.pack("<I", len(buffer)) + buffer


_Child: TypeAlias = Callable[[], int]
"""Writes what a table refers to, and returns its position."""


def _field(buffer: bytearray, field: Field) -> _Child:
    def write() -> int:
        kind = field.type
        slots: dict[int, tuple[str, int] | _Child] = {
            0: lambda: _string(buffer, field.name.encode()),
            1: ("<B", field.is_nullable),
            2: ("<B", kind.number),
            3: lambda: _table(buffer, {slot: (form, value) for slot, form, value in kind.scalars}),
            5: lambda: _vector(buffer, [_field(buffer, child) for child in field.children]),
        }
        return _table(buffer, slots)

    return write


def _table(buffer: bytearray, slots: Mapping[int, tuple[str, int] | _Child]) -> int:
    """Write the vtable, the table, then what it refers to; return the position of the table."""
    offsets = dict.fromkeys(range(max(slots, default=-1) + 1), 0)
    size = 4
    for slot, value in slots.items():
        width = struct.calcsize(value[0]) if isinstance(value, tuple) else 4
        size += -size % width
        offsets[slot] = size
        size += width
    _align(buffer, 2)
    head = len(buffer)
    buffer += struct.pack(f"<HH{len(offsets)}H", 4 + 2 * len(offsets), size, *offsets.values())
    _align(buffer, 8)
    start = len(buffer)
    buffer += struct.pack("<i", start - head) + bytes(size - 4)
    for slot, value in slots.items():
        if isinstance(value, tuple):
            struct.pack_into(value[0], buffer, start + offsets[slot], value[1])
        else:
            _refer(buffer, start + offsets[slot], value)
    return start


def _vector(buffer: bytearray, children: Sequence[_Child]) -> int:
    _align(buffer, 4)
    start = len(buffer)
    buffer += struct.pack("<I", len(children)) + bytes(4 * len(children))
    for number, child in enumerate(children):
        _refer(buffer, start + 4 + 4 * number, child)
    return start


def _string(buffer: bytearray, text: bytes) -> int:
    _align(buffer, 4)
    start = len(buffer)
    buffer += struct.pack("<I", len(text)) + text + b"\0"
    return start


def _refer(buffer: bytearray, position: int, child: _Child) -> None:
    target = child()
    struct.pack_into("<I", buffer, position, target - position)


def _align(buffer: bytearray, to: int) -> None:
    buffer += bytes(-len(buffer) % to)
