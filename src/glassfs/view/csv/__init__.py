"""Tables as CSV (RFC 4180), for spreadsheets, R and programs that read nothing else. UTF-8, lines end with CR LF.

The first line has the names of the columns, those of the Parquet view. Values are exact: ``glassfs.view.csv.cells``
says how each kind is written. All rows are written in one pass when the size is first needed, some rows at a time, in
limited memory. Weights are estimates of the bytes that cells take until they are lines.
Columns of records belong to one pass, all else to any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Array, Data, Records, Stream, Table
from glassfs.content.allowance import held
from glassfs.content.rows import Offsets, array_rows, runs
from glassfs.content.table import demand_columns
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.view.contract import Key, Shown, View
from glassfs.view.csv import cells
from glassfs.view.parquet.columns import ColumnPlan, Names, plans_of
from glassfs.view.parquet.kinds import BYTES, TEXT, ParquetType

CELL = 256
"""Weight of a cell, and of a value in a list."""
TEXT_WEIGHT = 32
"""Weight of a byte of text or Base64."""
RECORDS_MEMORY = 32 << 20
"""Blocks of records of all columns may take this memory in bytes, or as much as the cache if that is more."""
MOST_VALUES = 1 << 30
"""Limit of values in a table: a pass over more would take about half an hour."""


class FixedColumn:
    """An array with one value for each row, or ``slots`` of them, which become as many columns."""

    def __init__(self, content: Array, slots: int, zone: str) -> None:
        self._content = content
        self._end = "Z" if zone else ""
        self.width = max(1, slots)

    def cells(self, first: int, end: int) -> list[list[Any]]:
        """Return the cells of the rows ``[first, end)``, one list for each column."""
        values = array_rows(self._content, first, end).reshape(end - first, self.width)
        found = [cells.scalars(values[:, slot]) for slot in range(self.width)]
        return [[cell and cell + self._end for cell in column] for column in found] if self._end else found


class RunColumn:
    """Rows that differ in length, or are long: runs of text, of bytes or of numbers, each of which has a ``weight``."""

    def __init__(self, data: Data, offsets: Offsets, kind: ParquetType) -> None:
        self._data, self._offsets = data, offsets
        self._item = kind.stored or 1
        self.weight = TEXT_WEIGHT if kind in (TEXT, BYTES) else CELL
        shown = {TEXT: cells.text, BYTES: cells.base64}
        self._shown: Callable[[bytes], str] = shown.get(kind) or partial(cells.numbers, kind.dtype)

    @property
    def items(self) -> int:
        return self._offsets.total

    def weights(self, first: int, end: int) -> NDArray[Any]:
        """Return the weight of each of the rows ``[first, end)``."""
        return CELL + np.diff(self._offsets.of(first, end)) * float(self.weight)

    def cells(self, first: int, end: int) -> list[list[str]]:
        bounds: list[int] = (self._offsets.of(first, end) * self._item).tolist()
        return [list(map(self._shown, runs(self._data, bounds)))]


class RecordColumn:
    """Records, read from the first row to the last of ``rows``. One block is in memory, which takes ``cost`` bytes.

    ``on_load`` is called when another block is.
    """

    def __init__(self, records: Records, rows: int, on_load: Callable[[], None]) -> None:
        self._records, self._rows, self._on_load = records, rows, on_load
        self._values = self._read()
        self.cost = 0

    @property
    def most(self) -> int:
        """The most memory in bytes that a block may take."""
        return max(map(self._records.cost, range(self._records.blocks)), default=0)

    def cells(self, first: int, end: int) -> list[Iterator[Any]]:
        """Return the cells of the rows ``[first, end)``, which are the next ones."""
        return [map(cells.cell, islice(self._values, end - first))]

    def finish(self) -> None:
        """Raise Damaged if there are rows after those of the table."""
        if next(self._values, self) is not self:
            raise self._damage(f"has more rows than the {self._rows} of its table")

    def _read(self) -> Iterator[Any]:
        count = 0
        for number in range(self._records.blocks):
            block = list(self._records.block(number))
            self.cost = min(self._records.cost(number), sum(map(held, block)))  # rows may share values
            self._on_load()
            count += len(block)
            yield from block
            del block  # before there is another one
        if count < self._rows:
            raise self._damage(f"has {count} rows, but its table has {self._rows}")

    def _damage(self, reason: str) -> Damaged:
        return Damaged(reason, part=self._records.key.decode("utf-8", "replace"))


def column_of(plan: ColumnPlan, rows: int, on_load: Callable[[], None]) -> FixedColumn | RunColumn | RecordColumn:
    """Return the cells of a column."""
    content, values, offsets = plan.column.content, plan.values, plan.offsets
    if isinstance(values, Records):
        return RecordColumn(values, rows, on_load)
    if offsets is not None and not plan.slots:
        return RunColumn(values, offsets, plan.kind)
    assert isinstance(content, Array)
    return FixedColumn(content, plan.slots, plan.column.zone)


class CsvPass:
    """One pass over the rows of a table, of which some become lines at a time, at least PIECE bytes of memory."""

    def __init__(self, table: Table, cache: BlockCache) -> None:
        self._rows = rows = table.rows
        plans = plans_of(table)
        taken = Names()
        names = [name.decode() for plan in plans for name in plan.names(taken)]
        self._header = cells.encoded([names])
        self._columns = [column_of(plan, rows, self._demand_memory) for plan in plans]
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
        """The most memory in bytes that the pass takes: for a step, or a row that is heavier, and blocks of records."""
        in_runs = sum(CELL * self._rows + column.items * column.weight for column in self._runs)
        records = min(self._budget, sum(column.most for column in self._records))
        return min(self._rows * self._weight + in_runs, max(self._step, self._budget // 2)) + records

    def lines(self) -> Iterator[bytes]:
        """Yield the names of the columns, then all rows."""
        yield self._header
        first = 0
        while first < self._rows:
            work.check()
            count, weight = self._next_step(first)
            if weight > max(self._step, self._budget // 2):
                raise TooLarge(f"row {first} is too long for CSV; use the view parquet, or a larger cache_size")
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
        # So many rows at most; those with long cells reach the weight of a step earlier.
        count = min(self._rows - first, max(1, self._step // max(1, self._weight)))
        weights = np.full(count, float(self._weight))
        for column in self._runs:
            weights += column.weights(first, first + count)
        sums = weights.cumsum()
        count = max(1, int(sums.searchsorted(self._step, "right")))
        return count, int(sums[count - 1])


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    demand_columns(table)
    made = Stream(cache, key, lambda: CsvPass(table, cache).lines(), lambda: CsvPass(table, cache).cost)
    yield Shown(made, ".csv")


VIEW = View("csv", "tables, for spreadsheets, R and others that read text", (Table,), show)
