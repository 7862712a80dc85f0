"""The footer of a Parquet file: the schema, and the positions of the columns of each group of rows. Pure functions.

Its length follows from the names, the types and the number of groups: all other values have a fixed number of bytes
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from glassfs.codec.thrift import TypeCode, Value, binary, i32, i64, sequence, struct
from glassfs.view.parquet import arrow
from glassfs.view.parquet.kinds import Encoding, ParquetType, Physical

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
        message = base64.b64encode(arrow.message([_arrow(field) for field in fields]))
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


def _arrow(field: SchemaColumn) -> bytes:
    *above, name = field.path
    found = arrow.field(name, field.kind.arrow, field.is_nullable)
    for name in reversed(above[::2]):
        found = arrow.field(name, arrow.ArrowType(arrow.TypeNumber.LIST), field.is_nullable, found)
    return found
