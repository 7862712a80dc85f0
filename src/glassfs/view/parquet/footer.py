"""The footer of a Parquet file: the schema, and the positions of the columns of each group of rows. Pure functions.

Its length follows from the names, the types and the number of groups: all other values have a fixed number of bytes
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from glassfs.codec.thrift import TypeCode, Value, binary, i32, i64, sequence, struct
from glassfs.view.parquet import arrow
from glassfs.view.parquet.kinds import FIXED, Kind

Metadata: TypeAlias = tuple[tuple[bytes, bytes], ...]

_DIGITS = 9
_LIST = 3
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_PLAIN, _RLE = 0, 3
_DURATION = arrow.duration("s").number
CREATED_BY = b"glassfs"
_NAMES_KEPT = 2048
"""Limit of the bytes of names and metadata with which a length is cached."""


class Field(NamedTuple):
    """A column in the schema. ``path`` is its name, and the names below it in a list."""

    path: tuple[bytes, ...]
    kind: Kind
    is_nullable: bool

    @staticmethod
    def single(name: bytes, kind: Kind, is_nullable: bool = False) -> Field:
        return Field((name,), kind, is_nullable)

    @staticmethod
    def list_of(name: bytes, kind: Kind, is_nullable: bool = False, depth: int = 1) -> Field:
        return Field((name, *(b"list", b"element") * depth), kind, is_nullable)

    @property
    def lists(self) -> tuple[bytes, ...]:
        """The names of the lists, the outermost first."""
        return self.path[:-1:2]


class Chunk(NamedTuple):
    """The position of a column of a group of rows, its size in bytes and its number of values, nulls counted."""

    start: int
    size: int
    entries: int


_ENCODINGS = sequence(TypeCode.I32, [i32(_PLAIN), i32(_RLE)])
_NOWHERE = Chunk(0, 0, 0)


def length(fields: tuple[Field, ...], groups: int, metadata: Metadata = ()) -> int:
    """Return the length of the footer of a file with ``groups`` groups. The episodes of a dataset have equal
    columns.
    """
    if sum(len(field.path[0]) for field in fields) + sum(map(len, itertools.chain(*metadata))) > _NAMES_KEPT:
        return _length(fields, groups, metadata)
    return _known_length(fields, groups, metadata)


def _length(fields: tuple[Field, ...], groups: int, metadata: Metadata) -> int:
    return len(footer(fields, 0, [group(fields, 0, [_NOWHERE] * len(fields))] * groups, metadata))


_known_length = lru_cache(256)(_length)


def footer(fields: Sequence[Field], rows: int, groups: Sequence[Value], metadata: Metadata = ()) -> bytes:
    """Return the footer. ``groups`` are results of ``group``, ``metadata`` the keys and values for other programs."""
    written = {
        1: i32(2),
        2: sequence(TypeCode.STRUCT, list(_schema(fields))),
        3: i64(rows, _DIGITS),
        4: sequence(TypeCode.STRUCT, groups),
    }
    if any(field.kind.arrow.number == _DURATION for field in fields):
        message = base64.b64encode(arrow.message([_arrow(field) for field in fields]))
        metadata = (*metadata, (b"ARROW:schema", message))
    if metadata:
        written[5] = sequence(TypeCode.STRUCT, [struct({1: binary(key), 2: binary(value)}) for key, value in metadata])
    written[6] = binary(CREATED_BY)
    return struct(written).payload


def _schema(fields: Sequence[Field]) -> Iterator[Value]:
    yield struct({4: binary(b"schema"), 5: i32(len(fields))})
    for field in fields:
        repetition = _OPTIONAL if field.is_nullable else _REQUIRED
        for name in field.lists:
            lists = struct({3: struct({})})
            yield struct({3: i32(repetition), 4: binary(name), 5: i32(1), 6: i32(_LIST), 10: lists})
            yield struct({3: i32(_REPEATED), 4: binary(field.path[1]), 5: i32(1)})
        kind = field.kind
        element = {1: i32(kind.physical)}
        if kind.physical == FIXED:
            element[2] = i32(kind.width)
        element[3] = i32(repetition)
        element[4] = binary(field.path[-1])
        if kind.converted is not None:
            element[6] = i32(kind.converted)
        if kind.logical is not None:
            element[10] = kind.logical
        yield struct(element)


def group(fields: Sequence[Field], rows: int, chunks: Sequence[Chunk]) -> Value:
    """Return a group of ``rows`` rows, with a chunk for each field."""
    columns = [_chunk(field, chunk) for field, chunk in zip(fields, chunks, strict=True)]
    size = sum(chunk.size for chunk in chunks)
    return struct({1: sequence(TypeCode.STRUCT, columns), 2: i64(size, _DIGITS), 3: i64(rows, _DIGITS)})


def _chunk(field: Field, chunk: Chunk) -> Value:
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


def _arrow(field: Field) -> arrow.Field:
    found = arrow.Field(field.path[-1].decode(), field.kind.arrow, field.is_nullable)
    for name in reversed(field.lists):
        found = arrow.Field(name.decode(), arrow.LIST, field.is_nullable, (found,))
    return found
