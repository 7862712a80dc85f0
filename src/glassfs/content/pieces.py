"""Rows of containers as pieces: about a thousand rows of one container, as bytes that can be stored. Any thread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content.episodes import POSITION
from glassfs.content.summary import CONTAINER, Columns, Summary, value_of
from glassfs.errors import Damaged

LAYOUT = 9
"""Raise this when the same containers give other pieces than before."""
PIECE_ROWS = 1024
PIECE_BYTES = 256 << 10
"""A piece ends with the block of its table in which it reaches this size."""
AS_JSON = 24
"""The memory in bytes that rows take while they become a piece, for each character of their texts."""


class Piece(NamedTuple):
    """Consecutive rows of one container: ``data`` is a JSON list of the values of each column.

    The first row is that of block ``block`` of the container's own table.
    """

    rows: int
    data: bytes
    columns: Columns
    block: int = 0


class ContainerPiece(NamedTuple):
    """A piece of the container at ``path``, whose first row has the number ``first``."""

    path: str
    first: int
    piece: Piece


def pieces_of(summary: Summary, cache: BlockCache, first: int = 0) -> Iterator[Piece]:
    """Yield the rows of a container in pieces, from block ``first`` of its table on; at least one, even without rows.

    Memory is reserved from ``cache`` meanwhile. Raises Damaged if all rows are wanted and their number is not that of
    the table.
    """
    wanted, table = summary
    records = table.records
    blocks = records.blocks if records else 0
    columns: list[list[Any]] = [[] for _ in wanted]
    begin, size, rows, total = first, 0, 0, 0
    for block in range(first, blocks):
        work.check()
        cost = records.cost(block) if records else 0
        with cache.measuring(cost):
            for record in summary.block(block):
                rows += 1
                for (name, dtype), column in zip(wanted, columns, strict=True):
                    value = value_of(record, name, dtype)
                    column.append(value)
                    size += _weight(value)
        # A piece ends with a block of the container's table, so that a later opening can go on from that block.
        if rows >= PIECE_ROWS or size >= PIECE_BYTES or block == blocks - 1:
            with cache.measuring(AS_JSON * size):
                piece = piece_of(columns, wanted, begin, rows)
            total += rows
            columns, begin, size, rows = [[] for _ in wanted], block + 1, 0, 0
            yield piece
    if first >= blocks:
        yield piece_of(columns, wanted, begin, rows)
    if records and not first and total != table.rows:
        raise Damaged(f"has {total} rows, but its table should have {table.rows}")


def piece_of(values: Sequence[Sequence[Any]], columns: Columns, block: int = 0, rows: int | None = None) -> Piece:
    """Return rows as a piece, given their values by column."""
    return Piece(len(values[0]) if rows is None else rows, as_json(values), columns, block)


def values_of(piece: Piece) -> list[list[Any]]:
    """Return the columns of a piece. Raises Damaged for an invalid piece."""
    columns: list[list[Any]] = json.loads(piece.data)
    if len(columns) != len(piece.columns) or any(len(column) != piece.rows for column in columns):
        raise Damaged("has other rows than were counted")
    return columns


def rows_in(placed: ContainerPiece) -> Iterator[tuple[Any, ...]]:
    """Yield path, number and values of each row."""
    for number, values in enumerate(zip(*values_of(placed.piece), strict=True), placed.first):
        yield (placed.path, number, *values)


def records(placed: ContainerPiece) -> Iterator[dict[str, Any]]:
    """Yield each row by the names of its columns in a joined table."""
    names = CONTAINER, POSITION, *(name for name, _ in placed.piece.columns)
    return (dict(zip(names, row, strict=True)) for row in rows_in(placed))


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _weight(value: Any) -> int:
    """Return about how many bytes a value adds to a piece."""
    if isinstance(value, list):
        return sum(len(text) + 1 for text in value)
    return len(value) if isinstance(value, str) else 8
