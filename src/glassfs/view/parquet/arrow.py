"""The Arrow schema that a Parquet file may carry: it has types that Parquet lacks, such as durations.

An encapsulated message of Arrow's IPC format with a FlatBuffer of the schema and nothing else
(https://arrow.apache.org/docs/format/Columnar.html, Schema.fbs, Message.fbs). Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Scalar: TypeAlias = tuple[str, int]
"""A value in a table: its struct format, and the value; a string is bytes (``_string``)."""
UNITS = ("s", "ms", "us", "ns")


class TypeNumber(IntEnum):
    """The union ``Type`` of Schema.fbs."""

    INT = 2
    FLOATING_POINT = 3
    BINARY = 4
    UTF8 = 5
    BOOL = 6
    TIMESTAMP = 10
    LIST = 12
    FIXED_SIZE_BINARY = 15
    DURATION = 18


class ArrowType(NamedTuple):
    """A type: its number, and the values of its table."""

    number: TypeNumber
    scalars: tuple[Scalar | bytes, ...] = ()

    @property
    def is_arrow_only(self) -> bool:
        """Whether Parquet lacks this type, or a part of it: durations, and names of time zones."""
        return self.number == TypeNumber.DURATION or any(isinstance(scalar, bytes) for scalar in self.scalars)


def integer(bits: int, is_signed: bool) -> ArrowType:
    return ArrowType(TypeNumber.INT, (("<i", bits), ("<B", is_signed)))


def floating(width: int) -> ArrowType:
    return ArrowType(TypeNumber.FLOATING_POINT, (("<h", width // 4),))


def fixed(width: int) -> ArrowType:
    return ArrowType(TypeNumber.FIXED_SIZE_BINARY, (("<i", width),))


def time(number: TypeNumber, unit: str, zone: str = "") -> ArrowType:
    """Return the type of timestamps or durations."""
    return ArrowType(number, (("<h", UNITS.index(unit)), *([_string(zone.encode())] if zone else [])))


def message(fields: Sequence[bytes]) -> bytes:
    """Return the message for a schema of these fields, results of ``field``."""
    schema = _table({0: ("<h", 0), 1: _vector(fields)})
    version, header_type = 4, 1  # V5, Schema
    root = _table({0: ("<h", version), 1: ("<B", header_type), 2: schema, 3: ("<q", 0)})
    buffer = _aligned(struct.pack("<I4x", 8) + root)
    return b"\xff\xff\xff\xff" + struct.pack("<I", len(buffer)) + buffer


def field(name: bytes, kind: ArrowType, is_nullable: bool, *children: bytes) -> bytes:
    """Return a column, or the elements of a list."""
    return _table({
        0: _string(name),
        1: ("<B", is_nullable),
        2: ("<B", kind.number),
        3: _table(dict(enumerate(kind.scalars))),
        5: _vector(children),
    })


# What a FlatBuffer refers to is at a distance from the reference. So each table, vector and string is bytes that begin
# with it, and that may stand at any multiple of eight: those that it refers to follow it.


def _table(slots: Mapping[int, Scalar | bytes]) -> bytes:
    """Return a table of scalars and of references, then its vtable, then what it refers to."""
    places, size = [0] * (max(slots, default=-1) + 1), 4
    # Slots stand in the table in the order of the mapping, each at a multiple of its own width.
    for slot, value in slots.items():
        width = 4 if isinstance(value, bytes) else struct.calcsize(value[0])
        size += -size % width
        places[slot] = size
        size += width
    made = bytearray(_aligned(bytes(size)))
    struct.pack_into("<i", made, 0, -len(made))
    made += struct.pack(f"<HH{len(places)}H", 4 + 2 * len(places), size, *places)
    for slot, value in slots.items():
        if isinstance(value, bytes):
            _refer(made, places[slot], value)
        else:
            struct.pack_into(value[0], made, places[slot], value[1])
    return bytes(made)


def _vector(children: Sequence[bytes]) -> bytes:
    made = bytearray(struct.pack("<I", len(children)) + bytes(4 * len(children)))
    for number, child in enumerate(children):
        _refer(made, 4 + 4 * number, child)
    return bytes(made)


def _string(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text + b"\0"


def _refer(made: bytearray, place: int, target: bytes) -> None:
    """Append what is referred to, and write its distance at a place."""
    made += bytes(-len(made) % 8)
    struct.pack_into("<I", made, place, len(made) - place)
    made += target


def _aligned(made: bytes) -> bytes:
    return made + bytes(-len(made) % 8)
