"""Tables as CSV (RFC 4180), for spreadsheets, R and programs that read nothing else. UTF-8, lines end with CR LF.

The first line has the names of the columns, those of the Parquet view. Values are exact: ``glassfs.view.csv.cells``
says how each kind is written. All rows are written in one pass, a step of limited memory at a time, when the size is
first needed. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Stream, Table
from glassfs.content.table import demand_columns
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Shown, View
from glassfs.view.csv import cells
from glassfs.view.csv.columns import CELL, LONG_CELL, TEXT_WEIGHT, RecordColumn, RunColumn, column_of
from glassfs.view.parquet.columns import Names, layouts_of

RECORDS_MEMORY = 32 << 20
"""Blocks of records of all columns may take this memory in bytes, or as much as the cache if that is more."""
MOST_VALUES = 1 << 30
"""Limit of values in a table: a pass over more would take about half an hour."""


class CsvPass:
    """One pass over the rows of a table, of which some become lines at a time, at least PIECE bytes of memory."""

    def __init__(self, table: Table, cache: BlockCache) -> None:
        self._rows = rows = table.rows
        layouts = layouts_of(table)
        taken = Names()
        names = [name.decode() for layout in layouts for name in layout.names(taken)]
        self._header = cells.encoded([names])
        self._columns = [column_of(layout, rows, self._demand_memory) for layout in layouts]
        self._runs = [column for column in self._columns if isinstance(column, RunColumn)]
        self._records = [column for column in self._columns if isinstance(column, RecordColumn)]
        self._weight = CELL * (len(names) - len(self._runs))
        """That of a row, without its runs."""
        values = rows * max(1, len(names) - len(self._runs)) + sum(column.items for column in self._runs)
        if values > MOST_VALUES:
            raise TooLarge(f"a table of {values} values is too large for CSV; use the view parquet")
        self._step = max(PIECE, min(16 * PIECE, cache.budget // 16))
        self._budget = max(cache.budget, RECORDS_MEMORY)

    @property
    def cost(self) -> int:
        """The most memory in bytes that the pass takes: for a step, a piece of a long cell, and blocks of records."""
        in_runs = sum(CELL * self._rows + column.items * column.weight for column in self._runs)
        records = min(self._budget, sum(column.most for column in self._records))
        return min(self._rows * self._weight + in_runs, self._step + CELL * LONG_CELL) + records

    def lines(self) -> Iterator[bytes]:
        """Yield the names of the columns, then all rows."""
        yield self._header
        first = 0
        while first < self._rows:
            work.check()
            count, weight = self._next_step(first)
            # A row that is heavier than a step, such as one with a long list, is written in pieces of its cells.
            if weight > self._step:
                yield from self._long_line(first)
            else:
                columns = [cell for column in self._columns for cell in column.cells(first, first + count)]
                yield from cells.encoded_pieces(zip(*columns, strict=True))
            first += count
        for column in self._records:
            column.finish()

    def _demand_memory(self) -> None:
        # One column may take what it needs, as a line needs at least one block of it. Several together must keep to the
        # limit.
        costs = [column.cost for column in self._records]
        if max(costs) < sum(costs) > self._budget:
            reason = f"the rows of its columns take more than {self._budget >> 20} MiB of memory"
            raise TooLarge(f"{reason}, which a larger cache_size allows")

    def _next_step(self, first: int) -> tuple[int, int]:
        """Return how many rows become lines at a time, and their weight; one row may be heavier than a step."""
        import numpy as np

        # So many rows at most; those with long cells reach the weight of a step earlier.
        count = min(self._rows - first, max(1, self._step // max(1, self._weight)))
        weights = np.full(count, float(self._weight))
        for column in self._runs:
            weights += column.weights(first, first + count)
        sums = weights.cumsum()
        count = max(1, int(sums.searchsorted(self._step, "right")))
        return count, int(sums[count - 1])

    def _long_line(self, row: int) -> Iterator[bytes]:
        """Yield the line of a row in pieces."""
        separator = b""
        for column in self._columns:
            if isinstance(column, RunColumn) and column.weights(row, row + 1)[0] > LONG_CELL * TEXT_WEIGHT:
                yield separator + b'"'
                for piece in column.pieces(row):
                    yield piece.replace('"', '""').encode()
                yield b'"'
            else:
                row_cells = [cell for cell, in column.cells(row, row + 1)]
                # The writer quotes a line that is a single empty cell.
                yield separator + (b"" if row_cells == [""] else cells.encoded([row_cells])[: -len(cells.END)])
            separator = b","
        yield cells.END


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    demand_columns(table)
    made = Stream(cache, key, lambda: CsvPass(table, cache).lines(), lambda: CsvPass(table, cache).cost)
    yield Shown(made, ".csv")


VIEW = View("csv", "tables, for spreadsheets, R and others that read text", (Table,), show)
