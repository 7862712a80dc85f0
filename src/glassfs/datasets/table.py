"""Encode the table of episodes, and write it.

Rows arrive as ``ContainerPiece`` and are written at once; a Parquet table is assembled at the end from an unnamed
temporary file. One thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO

from glassfs.cache import BlockCache
from glassfs.content.summary import (
    COLUMNS,
    CONTAINER,
    EPISODES,
    RECORD_COLUMNS,
    ContainerPiece,
    Joined,
    Piece,
    piece_of,
    records,
    rows_in,
    values_of,
)
from glassfs.datasets.snapshots import BlockTable, RowStore
from glassfs.view import json
from glassfs.view.csv import cell
from glassfs.view.csv import encoded as as_csv
from glassfs.view.parquet import Parquet

JSONL, CSV, PARQUET = "jsonl", "csv", "parquet"
FORMS = (JSONL, PARQUET, CSV)
CSV_SAFE = "csv for spreadsheets"
"""CSV whose texts no spreadsheet takes for formulas: an apostrophe precedes those that begin as one."""
_ALL_CSV = (CSV, CSV_SAFE)
# What owasp.org/www-community/attacks/CSV_Injection names. With the apostrophes, so that the rule can be undone.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def placed_in(path: str, first: int, piece: Piece, numbers: Sequence[int] | None) -> list[ContainerPiece]:
    """Return rows of a container from row ``first`` on, placed by their ``numbers``, if these are not consecutive."""
    if numbers is None:
        return [ContainerPiece(path, first, piece)]
    rows = zip(numbers[first:], zip(*values_of(piece), strict=True), strict=False)
    return [
        ContainerPiece(path, number, piece_of([[value] for value in values], piece.columns)) for number, values in rows
    ]


def chosen(
    placed: Iterable[ContainerPiece], is_chosen: Callable[[dict[str, Any]], bool], known: Counter[str],
) -> Iterator[ContainerPiece]:
    """Yield the rows that are chosen, each as a piece. For each column, ``known`` counts the rows with a value."""
    for one in placed:
        for row in records(one):
            known.update([name for name, value in row.items() if value is not None])
            if is_chosen(row):
                path, number, *values = row.values()
                yield ContainerPiece(path, number, piece_of([[value] for value in values], RECORD_COLUMNS))


def encoded(form: str, placed: Sequence[ContainerPiece]) -> Any:
    """Return the rows as a worker sends them: the bytes to write, or for Parquet the pieces."""
    if form == PARQUET:
        return tuple(placed)
    if form in _ALL_CSV:
        as_cell = _safe_cell if form == CSV_SAFE else cell
        return as_csv(map(as_cell, row) for one in placed for row in rows_in(one))
    return b"".join([json.line(record) + b"\n" for one in placed for record in records(one)])


def _safe_cell(value: Any) -> Any:
    shown = cell(value)
    return f"'{shown}" if isinstance(value, str) and _FORMULA.match(shown) else shown


def head(form: str) -> bytes:
    """Return what precedes all rows."""
    return as_csv([COLUMNS]) if form in _ALL_CSV else b""


def mark(form: str) -> bytes:
    """Return the first bytes of every file of rows."""
    return head(form) or {JSONL: f'{{"{CONTAINER}": '.encode(), PARQUET: b"PAR1"}[form]


@contextmanager
def writer(
    form: str, file: BinaryIO, folder: str | None = None,
    writing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Callable[[Any], None]]:
    """Provide what writes encoded rows to a file, each time in ``writing``.

    Parquet is written at the end of the ``with``, as the file that a mount of a folder with these containers has.
    ``folder`` is for temporary files.
    """
    if form != PARQUET:
        def write(rows: bytes) -> None:
            with writing():
                file.write(rows)
                file.flush()

        yield write
        return
    # The Parquet file needs the widths of all columns before its first byte: until then rows are in a file beside.
    cache = BlockCache(spool_directory=folder, spool_size=1 << 60)
    table = BlockTable(EPISODES, RowStore(cache))

    def add(pieces: Iterable[ContainerPiece]) -> None:
        for placed in pieces:
            if placed.piece.rows:
                table.add(placed)

    yield add
    with writing():
        table.close()
        table.finish()
        for piece in Parquet(Joined(EPISODES, lambda: table.rows), cache, (EPISODES,)).pieces():
            file.write(piece)
        file.flush()
