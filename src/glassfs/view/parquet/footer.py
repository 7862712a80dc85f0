"""The footer of a Parquet file: the schema, and the positions of the columns of each group of rows. Pure functions.

Its length follows from the names, the types and the number of groups: all other values have a fixed number of bytes
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).

It may have an Arrow schema, for types that Parquet lacks: an encapsulated message of Arrow's IPC format with a
FlatBuffer (https://arrow.apache.org/docs/format/Columnar.html, Schema.fbs, Message.fbs).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from struct import calcsize, pack, pack_into
from typing import NamedTuple, TypeAlias

from glassfs.codec.thrift import TypeCode, Value, binary, i32, i64, sequence, struct
from glassfs.view.parquet.kinds import ArrowNumber, ArrowType, Encoding, ParquetType, Physical, Scalar

Metadata: TypeAlias = tuple[tuple[bytes, bytes], ...]

_DIGITS = 9
CREATED_BY = b"glassfs"
_LIST = 3
"""The older equivalent of the logical type LIST."""


class Repetition(IntEnum):
    """The enum ``FieldRepetitionType``."""

    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


class SchemaColumn(NamedTuple):
    """A column in the schema: values in ``lists`` lists around each other."""

    name: bytes
    kind: ParquetType
    is_nullable: bool = False
    lists: int = 0

    @property
    def path(self) -> tuple[bytes, ...]:
        """Its name, and the names below it in lists."""
        return (self.name, *(b"list", b"element") * self.lists)


class ColumnChunk(NamedTuple):
    """The position of a column of a group of rows, its size in bytes and its number of values, nulls counted."""

    start: int
    size: int
    entries: int


_ENCODINGS = sequence(TypeCode.I32, [i32(Encoding.PLAIN), i32(Encoding.RLE)])
_NOWHERE = ColumnChunk(0, 0, 0)


def length(fields: Sequence[SchemaColumn], groups: int, metadata: Metadata = ()) -> int:
    """Return the length of the footer of a file with ``groups`` groups."""
    some = group(fields, 0, [_NOWHERE] * len(fields))
    return len(footer(fields, 0, [some] * groups, metadata))


def footer(fields: Sequence[SchemaColumn], rows: int, groups: Sequence[Value], metadata: Metadata = ()) -> bytes:
    """Return the footer. ``groups`` are results of ``group``, ``metadata`` the keys and values for other programs."""
    written = {
        1: i32(2),
        2: sequence(TypeCode.STRUCT, list(_schema(fields))),
        3: i64(rows, _DIGITS),
        4: sequence(TypeCode.STRUCT, groups),
    }
    if any(field.kind.arrow.is_arrow_only for field in fields):
        # Parquet has no durations and no names of zones. pyarrow and polars look into this schema, others see integers.
        message = base64.b64encode(_arrow_message(fields))
        metadata = (*metadata, (b"ARROW:schema", message))
    if metadata:
        written[5] = sequence(TypeCode.STRUCT, [struct({1: binary(key), 2: binary(value)}) for key, value in metadata])
    written[6] = binary(CREATED_BY)
    return struct(written).payload


def _schema(fields: Sequence[SchemaColumn]) -> Iterator[Value]:
    yield struct({4: binary(b"schema"), 5: i32(len(fields))})
    for field in fields:
        repetition = Repetition.OPTIONAL if field.is_nullable else Repetition.REQUIRED
        *above, own = field.path
        for name in above[::2]:
            # A list is a group with a repeated group in it, which has the element: readers
            # tell a null list from an empty one by the outer group.
            lists = struct({3: struct({})})
            yield struct({3: i32(repetition), 4: binary(name), 5: i32(1), 6: i32(_LIST), 10: lists})
            yield struct({3: i32(Repetition.REPEATED), 4: binary(b"list"), 5: i32(1)})
        kind = field.kind
        element = {1: i32(kind.physical)}
        if kind.physical == Physical.FIXED:
            element[2] = i32(kind.width)
        element[3] = i32(repetition)
        element[4] = binary(own)
        if kind.converted is not None:
            element[6] = i32(kind.converted)
        if kind.logical is not None:
            element[10] = kind.logical
        yield struct(element)


def group(fields: Sequence[SchemaColumn], rows: int, chunks: Sequence[ColumnChunk]) -> Value:
    """Return a group of ``rows`` rows, with a chunk for each field."""
    columns = [_chunk(field, chunk) for field, chunk in zip(fields, chunks, strict=True)]
    size = sum(chunk.size for chunk in chunks)
    return struct({1: sequence(TypeCode.STRUCT, columns), 2: i64(size, _DIGITS), 3: i64(rows, _DIGITS)})


def _chunk(field: SchemaColumn, chunk: ColumnChunk) -> Value:
    metadata = {
        1: i32(field.kind.physical),
        2: _ENCODINGS,
        3: sequence(TypeCode.BINARY, [binary(name) for name in field.path]),
        4: i32(0),
        5: i64(chunk.entries, _DIGITS),
        6: i64(chunk.size, _DIGITS),
        7: i64(chunk.size, _DIGITS),
        9: i64(chunk.start, _DIGITS),
    }
    return struct({2: i64(chunk.start, _DIGITS), 3: struct(metadata)})


def _arrow_message(fields: Sequence[SchemaColumn]) -> bytes:
    """Return the message for the schema."""
    schema = _table({0: ("<h", 0), 1: _vector([_arrow_field(field) for field in fields])})
    version, header_type = 4, 1  # V5, Schema
    root = _table({0: ("<h", version), 1: ("<B", header_type), 2: schema, 3: ("<q", 0)})
    buffer = _aligned(pack("<I4x", 8) + root)
    return b"\xff\xff\xff\xff" + pack("<I", len(buffer)) + buffer


def _arrow_field(field: SchemaColumn) -> bytes:
    *above, own = field.path

    def made(name: bytes, kind: ArrowType, *children: bytes) -> bytes:
        scalars = [_string(scalar) if isinstance(scalar, bytes) else scalar for scalar in kind.scalars]
        return _table({
            0: _string(name), 1: ("<B", field.is_nullable), 2: ("<B", kind.number), 3: _table(dict(enumerate(scalars))),
            5: _vector(children),
        })

    found = made(own, field.kind.arrow)
    for name in reversed(above[::2]):
        found = made(name, ArrowType(ArrowNumber.LIST), found)
    return found


# What a FlatBuffer refers to is at a distance from the reference. So each table, vector and string is bytes that begin
# with it, and that may stand at any multiple of eight: those that it refers to follow it.


def _table(slots: Mapping[int, Scalar | bytes]) -> bytes:
    """Return a table of scalars and of references, then its vtable, then what it refers to."""
    places, size = [0] * (max(slots, default=-1) + 1), 4
    # Slots stand in the table in the order of the mapping, each at a multiple of its own width.
    for slot, value in slots.items():
        width = 4 if isinstance(value, bytes) else calcsize(value[0])
        size += -size % width
        places[slot] = size
        size += width
    made = bytearray(_aligned(bytes(size)))
    pack_into("<i", made, 0, -len(made))
    made += pack(f"<HH{len(places)}H", 4 + 2 * len(places), size, *places)
    for slot, value in slots.items():
        if isinstance(value, bytes):
            _refer(made, places[slot], value)
        else:
            pack_into(value[0], made, places[slot], value[1])
    return bytes(made)


def _vector(children: Sequence[bytes]) -> bytes:
    made = bytearray(pack("<I", len(children)) + bytes(4 * len(children)))
    for number, child in enumerate(children):
        _refer(made, 4 + 4 * number, child)
    return bytes(made)


def _string(text: bytes) -> bytes:
    return pack("<I", len(text)) + text + b"\0"


def _refer(made: bytearray, place: int, target: bytes) -> None:
    """Append what is referred to, and write its distance at a place."""
    made += bytes(-len(made) % 8)
    pack_into("<I", made, place, len(made) - place)
    made += target


def _aligned(made: bytes) -> bytes:
    return made + bytes(-len(made) % 8)
