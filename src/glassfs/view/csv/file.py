"""A table as the bytes of a CSV file, in blocks of rows.

The first caller that needs the size has all rows made once, a step of limited memory at a time. Later reads make the
blocks that they touch; the cache keeps them. A block has at least so many rows as take one step, and ends where the
longest block of records ends that has its first row: so no block of records is decoded for more than two blocks of the
file. Any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Blocked, Table
from glassfs.errors import TooLarge
from glassfs.view.contract import Key
from glassfs.view.csv import cells
from glassfs.view.csv.columns import (
    CELL,
    PIECE,
    PIECE_WEIGHT,
    TEXT_WEIGHT,
    Cursor,
    FixedColumn,
    RecordColumn,
    RunColumn,
    column_of,
)
from glassfs.view.known import Known
from glassfs.view.lines import Measure, measured
from glassfs.view.parquet.columns import Names, layouts_of

LEAST_STEP, MOST_STEP, STEP_SHARE = 1 << 20, 16 << 20, 16
"""Limits of the memory in bytes for rows that become lines at a time, and which part of the cache's budget that is."""
RECORDS_MEMORY = 32 << 20
"""Blocks of records of all columns may take this memory in bytes, or as much as the cache if that is more."""
MOST_VALUES = 1 << 30
"""Limit of values in a table: a pass over more would take about half an hour."""
COLUMN_COST = 2 << 10
"""The memory in bytes that is known of a column, without its name."""

Reserve: TypeAlias = Callable[[int], AbstractContextManager[None]]


def csv_data(table: Table, cache: BlockCache, key: Key) -> Blocked:
    """Return the file for a table."""
    ends: list[array[int]] = []
    starts = array("Q")
    known = Known(cache, lambda: _Columns(table, cache, ends), lambda columns: columns.cost)

    def measure() -> Iterator[Measure]:
        columns = known.get()
        columns.forget_ends()
        starts[:] = array("Q", [0])
        with _Walk(columns, cache, cache.measuring) as walk:
            while not starts[1:] or starts[-1] < columns.rows:
                first = starts[-1]
                end = walk.block_end(first)
                size = sum(map(len, walk.lines(first, end)))
                starts.append(end)
                yield Measure(walk.take_cost(), size)
            walk.finish()

    def lines(number: int) -> Iterator[bytes]:
        with _Walk(known.get(), cache, lambda cost: nullcontext()) as walk:
            yield from walk.lines(starts[number], starts[number + 1])

    return measured(cache, measure, lines, key)


class _Columns:
    """What is known of the columns of a table. ``ends`` has those of each column of records (``RecordColumn``)."""

    def __init__(self, table: Table, cache: BlockCache, ends: list[array[int]]) -> None:
        self.rows = rows = table.rows
        layouts = layouts_of(table)
        taken = Names()
        names = [name.decode() for layout in layouts for name in layout.names(taken)]
        self.header = cells.encoded([names])
        self._ends = ends
        if not ends:
            ends += (array("Q", [0]) for _ in layouts)
        self.columns = [column_of(layout, rows, seen) for layout, seen in zip(layouts, ends, strict=True)]
        self.runs = [column for column in self.columns if isinstance(column, RunColumn)]
        self.weight = CELL * (len(names) - len(self.runs))
        """That of a row, without its runs."""
        items = sum(column.items for column in self.runs)
        values = rows * max(1, len(names) - len(self.runs)) + items
        if values > MOST_VALUES:
            raise TooLarge(f"a table of {values} values is too large for CSV; use the view parquet")
        self.step = max(LEAST_STEP, min(MOST_STEP, cache.budget // STEP_SHARE))
        in_runs = sum(CELL * rows + column.items * column.weight for column in self.runs)
        self.block_rows = max(1, int(self.step / max(1, self.weight + in_runs / max(1, rows))))

    @property
    def cost(self) -> int:
        return COLUMN_COST * len(self.columns) + 2 * len(self.header)

    def forget_ends(self) -> None:
        for ends in self._ends:
            ends[:] = array("Q", [0])


class _Walk:
    """Makes lines of rising rows. Memory is reserved by ``reserve`` while it is in use."""

    def __init__(self, columns: _Columns, cache: BlockCache, reserve: Reserve) -> None:
        self._of = columns
        self._budget = max(cache.budget, RECORDS_MEMORY)
        self._reserve = reserve
        self._most = 0
        self._columns = [
            Cursor(column, columns.rows, self._reserve_records) if isinstance(column, RecordColumn) else column
            for column in columns.columns
        ]
        self._cursors = [column for column in self._columns if isinstance(column, Cursor)]

    def __enter__(self) -> _Walk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None,
    ) -> None:
        for cursor in self._cursors:
            cursor.close()

    def block_end(self, first: int) -> int:
        """Return where the block ends that begins with row ``first``."""
        if first >= self._of.rows:
            return first
        for cursor in self._cursors:
            cursor.seek(first)
        return min(self._of.rows, max([first + self._of.block_rows, *(cursor.end for cursor in self._cursors)]))

    def lines(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the lines of the rows ``[first, end)``, before the first row of the table also the names of columns."""
        if not first:
            yield self._of.header
        while first < end:
            work.check()
            count, weight = self._step(first, end)
            with self._reserved(min(weight, self._of.step + PIECE_WEIGHT)):
                if weight > self._of.step:
                    yield from self._long_line(first)
                else:
                    yield self._lines(first, first + count)
            first += count

    def finish(self) -> None:
        """Raise Damaged if there are rows after those of the table."""
        for cursor in self._cursors:
            cursor.finish()

    def take_cost(self) -> int:
        """Return the most memory in bytes that was in use at a time since the last call."""
        cost, self._most = self._most, 0
        return cost

    def _step(self, first: int, end: int) -> tuple[int, int]:
        """Return how many rows become lines at a time, and their weight; one row may be heavier than a step."""
        import numpy as np

        weight, step = self._of.weight, self._of.step
        for cursor in self._cursors:
            cursor.seek(first)
            end = min(end, cursor.end)
        count = min(end - first, max(1, step // max(1, weight)))
        weights = np.full(count, float(weight))
        long: list[RunColumn | Cursor] = [*self._of.runs, *self._cursors]
        for column in long:
            weights += column.weights(first, first + count)
        sums = weights.cumsum()
        count = max(1, int(sums.searchsorted(step, "right")))
        return count, int(sums[count - 1])

    def _lines(self, first: int, end: int) -> bytes:
        columns = []
        for column in self._columns:
            if isinstance(column, FixedColumn):
                columns += column.cells(first, end)
            else:
                columns.append(column.cells(first, end))
        return cells.encoded(zip(*columns, strict=True))

    def _long_line(self, row: int) -> Iterator[bytes]:
        """Yield the line of a row in pieces."""
        separator = b""
        for column in self._columns:
            if isinstance(column, FixedColumn):
                made: Iterable[bytes] = [_together(*(cell for cell, in column.cells(row, row + 1)))]
            elif column.weights(row, row + 1)[0] > PIECE * TEXT_WEIGHT:
                made = _quoted(column.pieces(row))
            else:
                made = [_together(*column.cells(row, row + 1))]
            yield separator
            yield from made
            separator = b","
        yield cells.END

    def _reserved(self, weight: int) -> AbstractContextManager[None]:
        self._most = max(self._most, weight + sum(cursor.cost for cursor in self._cursors))
        return self._reserve(weight)

    def _reserve_records(self, cursor: Cursor, cost: int) -> AbstractContextManager[None]:
        others = sum(other.cost for other in self._cursors if other is not cursor)
        self._most = max(self._most, others + cost)
        if others and others + cost > self._budget:
            reason = f"the rows of its columns take more than {self._budget >> 20} MiB of memory"
            raise TooLarge(f"{reason}, which a larger cache_size allows")
        return self._reserve(cost)


def _together(*row: object) -> bytes:
    """Return cells as a part of a line."""
    return b"" if row == ("",) else cells.encoded([row])[: -len(cells.END)]


def _quoted(pieces: Iterator[str]) -> Iterator[bytes]:
    yield b'"'
    for piece in pieces:
        yield piece.replace('"', '""').encode()
    yield b'"'
