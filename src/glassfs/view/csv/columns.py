"""The columns of a table as cells, some rows at a time, and one at a time in pieces if a row is long.

Weights are estimates of the memory in bytes that cells take until they are lines. Columns of records belong to one
pass, the others to any thread.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from glassfs import work
from glassfs.content import Array, Data, Ragged, RaggedText, Records
from glassfs.content.allowance import held
from glassfs.content.rows import EvenOffsets, Offsets, array_rows, offsets_of, runs
from glassfs.errors import Damaged
from glassfs.view.csv import cells
from glassfs.view.parquet.columns import ColumnPlan
from glassfs.view.parquet.kinds import BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

CELL = 256
"""Weight of a cell, and of a value in a list."""
TEXT_WEIGHT = 32
"""Weight of a byte of text or Base64."""
LONG_CELL = 3 << 14
"""Bytes of a long cell that become text at a time: whole groups of Base64, and whole items of all usual dtypes."""


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


class RunColumn(ABC):
    """Rows that differ in length, or are long: runs of items of ``item`` bytes, each of which has a ``weight``."""

    weight = TEXT_WEIGHT

    def __init__(self, data: Data, offsets: Offsets, item: int = 1) -> None:
        self._data, self._offsets, self._item = data, offsets, item

    @abstractmethod
    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        """Yield the cell of a run in pieces."""

    @property
    def items(self) -> int:
        return self._offsets.total

    def weights(self, first: int, end: int) -> NDArray[Any]:
        """Return the weight of each of the rows ``[first, end)``."""
        import numpy as np

        return CELL + np.diff(self._offsets.of(first, end)) * float(self.weight)

    def cells(self, first: int, end: int) -> list[list[str]]:
        bounds: list[int] = (self._offsets.of(first, end) * self._item).tolist()
        return [["".join(self.long_cell(iter([raw]))) for raw in runs(self._data, bounds)]]

    def pieces(self, row: int) -> Iterator[str]:
        """Yield the cell of a row in pieces."""
        ((start, end),) = pairwise((self._offsets.of(row, row + 1) * self._item).tolist())
        step = max(LONG_CELL - LONG_CELL % self._item, self._item)

        def read() -> Iterator[bytes]:
            for position in range(start, end, step):
                work.check()
                yield self._data.read(position, min(step, end - position))

        return self.long_cell(read())


class TextColumn(RunColumn):
    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for raw in pieces:
            yield decoder.decode(raw).replace("\0", "\ufffd")
        yield decoder.decode(b"", final=True)


class BytesColumn(RunColumn):
    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        return map(cells.base64, pieces)


class ListColumn(RunColumn):
    """Runs of numbers, as JSON."""

    weight = CELL

    def __init__(self, data: Data, offsets: Offsets, dtype: str) -> None:
        import numpy as np

        self._dtype = np.dtype(dtype)
        super().__init__(data, offsets, self._dtype.itemsize)

    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        import numpy as np

        # A list is cut between items, so its JSON can be joined from pieces.
        separator = "["
        for raw in pieces:
            if raw:
                yield separator + ", ".join(cells.tokens(np.frombuffer(raw, self._dtype)))
                separator = ", "
        yield "]" if separator == ", " else "[]"


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


def column_of(layout: ColumnPlan, rows: int, on_load: Callable[[], None]) -> FixedColumn | RunColumn | RecordColumn:
    """Return the cells of a column."""
    content = layout.column.content
    if isinstance(content, RaggedText):
        return TextColumn(content.text, offsets_of(content))
    if isinstance(content, Ragged):
        if layout.kind is BYTES:
            return BytesColumn(content.values, offsets_of(content))
        return ListColumn(content.values, offsets_of(content, layout.kind.stored), content.dtype)
    if not isinstance(content, Array):
        return RecordColumn(content, rows, on_load)
    if layout.length is None or layout.slots:
        return FixedColumn(content, layout.slots, layout.column.zone)
    return ListColumn(content.data, EvenOffsets(layout.length, rows), content.dtype)
