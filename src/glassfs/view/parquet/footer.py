"""The footer of a Parquet file: the schema, and where the columns of each group of rows are. Pure functions.

Its length follows from the names, the types and the number of groups: what else is in it has a number of bytes of its
own (https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from glassfs.codec.thrift import BINARY, I32, STRUCT, Value, binary, i32, i64, sequence, struct
from glassfs.view.parquet import arrow
from glassfs.view.parquet.kinds import FIXED
from glassfs.view.parquet.leaves import Leaf

_DIGITS = 9
_LIST = 3
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_PLAIN, _RLE = 0, 3
_DURATION = arrow.duration("s").number
CREATED_BY = b"glassfs"


class Chunk(NamedTuple):
    """Where a column of a group of rows begins, how many bytes it has, and how many values, nulls counted."""

    start: int
    size: int
    entries: int


def footer(leaves: Sequence[Leaf], rows: int, groups: Sequence[tuple[int, Sequence[Chunk]]]) -> bytes:
    """``groups`` has the rows of each, and a chunk for each leaf."""
    fields = {
        1: i32(2),
        2: sequence(STRUCT, list(_schema(leaves))),
        3: i64(rows, _DIGITS),
        4: sequence(STRUCT, [_group(leaves, count, chunks) for count, chunks in groups]),
    }
    if any(leaf.kind.arrow.number == _DURATION for leaf in leaves):
        message = base64.b64encode(arrow.message([_arrow(leaf) for leaf in leaves]))
        fields[5] = sequence(STRUCT, [struct({1: binary(b"ARROW:schema"), 2: binary(message)})])
    fields[6] = binary(CREATED_BY)
    return struct(fields).payload


def _schema(leaves: Sequence[Leaf]) -> Iterator[Value]:
    yield struct({4: binary(b"schema"), 5: i32(len(leaves))})
    for leaf in leaves:
        repetition = _OPTIONAL if leaf.is_nullable else _REQUIRED
        if leaf.is_list:
            outer, middle, _ = leaf.path
            lists = struct({3: struct({})})
            yield struct({3: i32(repetition), 4: binary(outer), 5: i32(1), 6: i32(_LIST), 10: lists})
            yield struct({3: i32(_REPEATED), 4: binary(middle), 5: i32(1)})
        kind = leaf.kind
        fields = {1: i32(kind.physical)}
        if kind.physical == FIXED:
            fields[2] = i32(kind.width)
        fields[3] = i32(repetition)
        fields[4] = binary(leaf.path[-1])
        if kind.converted is not None:
            fields[6] = i32(kind.converted)
        if kind.logical is not None:
            fields[10] = kind.logical
        yield struct(fields)


def _group(leaves: Sequence[Leaf], rows: int, chunks: Sequence[Chunk]) -> Value:
    columns = [_chunk(leaf, chunk) for leaf, chunk in zip(leaves, chunks, strict=True)]
    size = sum(chunk.size for chunk in chunks)
    return struct({1: sequence(STRUCT, columns), 2: i64(size, _DIGITS), 3: i64(rows, _DIGITS)})


def _chunk(leaf: Leaf, chunk: Chunk) -> Value:
    metadata = {
        1: i32(leaf.kind.physical),
        2: sequence(I32, [i32(_PLAIN), i32(_RLE)]),
        3: sequence(BINARY, [binary(name) for name in leaf.path]),
        4: i32(0),
        5: i64(chunk.entries, _DIGITS),
        6: i64(chunk.size, _DIGITS),
        7: i64(chunk.size, _DIGITS),
        9: i64(chunk.start, _DIGITS),
    }
    return struct({2: i64(chunk.start, _DIGITS), 3: struct(metadata)})


def _arrow(leaf: Leaf) -> arrow.Field:
    name = leaf.path[0].decode()
    if not leaf.is_list:
        return arrow.Field(name, leaf.kind.arrow, leaf.is_nullable)
    element = arrow.Field("element", leaf.kind.arrow, leaf.is_nullable)
    return arrow.Field(name, arrow.LIST, leaf.is_nullable, (element,))
