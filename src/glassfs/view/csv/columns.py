"""The columns of a table as cells, some rows at a time, and one at a time in pieces if a row is long. Any thread.

Weights are estimates of the memory in bytes that cells take until they are lines.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassfs import work
from glassfs.content import Array, Data, Ragged, RaggedText, Records
from glassfs.content.growth import held
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
PIECE = 3 << 14
"""Bytes of a long cell that become text at a time: whole groups of Base64, and whole items of all usual dtypes."""
PIECE_WEIGHT = CELL * PIECE
_QUOTES, _ESCAPED = 4, 6
"""Characters between texts in JSON, and the most for one in a text."""


class FixedColumn:
    """An array with one value for each row, or ``slots`` of them, which become as many columns."""

    def __init__(self, content: Array, slots: int) -> None:
        self._content = content
        self.width = max(1, slots)

    def cells(self, first: int, end: int) -> list[list[Any]]:
        """Return the cells of the rows ``[first, end)``, one list for each column."""
        values = array_rows(self._content, first, end).reshape(end - first, self.width)
        return [cells.scalars(values[:, slot]) for slot in range(self.width)]


class RunColumn(ABC):
    """Rows that differ in length, or are long: runs of items of ``item`` bytes."""

    def __init__(self, data: Data, offsets: Offsets, item: int = 1) -> None:
        self._data, self._offsets, self._item = data, offsets, item

    @property
    @abstractmethod
    def weight(self) -> int:
        """The weight of an item."""

    @abstractmethod
    def cell(self, raw: bytes) -> str:
        """Return the cell of a run."""

    @abstractmethod
    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        """Yield the cell of a run in pieces."""

    @property
    def items(self) -> int:
        """The number of items in all rows."""
        return self._offsets.total

    def weights(self, first: int, end: int) -> NDArray[Any]:
        """Return the weight of each of the rows ``[first, end)``."""
        import numpy as np

        return CELL + np.diff(self._offsets.of(first, end)) * float(self.weight)

    def cells(self, first: int, end: int) -> list[str]:
        bounds: list[int] = (self._offsets.of(first, end) * self._item).tolist()
        return [self.cell(raw) for raw in runs(self._data, bounds)]

    def pieces(self, row: int) -> Iterator[str]:
        """Yield the cell of a row in pieces."""
        ((start, end),) = pairwise((self._offsets.of(row, row + 1) * self._item).tolist())
        step = max(PIECE - PIECE % self._item, self._item)

        def read() -> Iterator[bytes]:
            for position in range(start, end, step):
                work.check()
                yield self._data.read(position, min(step, end - position))

        return self.long_cell(read())


class TextColumn(RunColumn):
    weight = TEXT_WEIGHT

    def cell(self, raw: bytes) -> str:
        return cells.text(raw)

    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for raw in pieces:
            yield decoder.decode(raw).replace("\0", "\ufffd")
        yield decoder.decode(b"", final=True)


class BytesColumn(RunColumn):
    weight = TEXT_WEIGHT

    def cell(self, raw: bytes) -> str:
        return cells.base64(raw)

    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        return map(cells.base64, pieces)


class ListColumn(RunColumn):
    """Runs of numbers, as JSON."""

    weight = CELL

    def __init__(self, data: Data, offsets: Offsets, dtype: str) -> None:
        import numpy as np

        self._dtype = np.dtype(dtype)
        super().__init__(data, offsets, self._dtype.itemsize)

    def cell(self, raw: bytes) -> str:
        return "".join(self.long_cell(iter([raw])))

    def long_cell(self, pieces: Iterator[bytes]) -> Iterator[str]:
        import numpy as np

        separator = "["
        for raw in pieces:
            if raw:
                yield separator + ", ".join(cells.tokens(np.frombuffer(raw, self._dtype)))
                separator = ", "
        yield "]" if separator == ", " else "[]"


class RecordColumn:
    """Records. ``ends`` are the rows at which blocks end that a pass has seen, after a 0."""

    def __init__(self, records: Records, ends: array[int]) -> None:
        self.records = records
        self.ends = ends


class Cursor:
    """Reads records from rising rows, with one block in memory that takes ``cost`` bytes.

    Making a block takes more for a moment. ``reserve(cursor, cost)`` is called for both.
    """

    def __init__(
        self, column: RecordColumn, rows: int, reserve: Callable[[Cursor, int], AbstractContextManager[None]],
    ) -> None:
        self._column, self._rows, self._reserve = column, rows, reserve
        self._block: Sequence[Any] = ()
        self._begin = self.end = 0
        self.cost = 0
        self._reserved = ExitStack()

    def seek(self, row: int) -> None:
        """Have the block in memory that has ``row``; it ends before row ``end``. Raises Damaged if there is none."""
        ends = self._column.ends
        while not self._begin <= row < self.end:
            self._load(bisect_right(ends, row) - 1 if row < ends[-1] else len(ends) - 1)

    def weights(self, first: int, end: int) -> list[int]:
        """Return the weight of the text in each of the rows ``[first, end)``, which are in memory."""
        return [TEXT_WEIGHT * _length(value) for value in self._block[first - self._begin : end - self._begin]]

    def cells(self, first: int, end: int) -> list[Any]:
        """Return the cells of the rows ``[first, end)``, which are in memory."""
        return list(map(cells.cell, self._block[first - self._begin : end - self._begin]))

    def pieces(self, row: int) -> Iterator[str]:
        """Yield the cell of a row, which is in memory, in pieces."""
        whole = str(self.cells(row, row + 1)[0])
        return (whole[start : start + PIECE] for start in range(0, len(whole), PIECE))

    def finish(self) -> None:
        """Raise Damaged if there are rows after those of the table."""
        while len(self._column.ends) <= self._column.records.blocks:
            self._load(len(self._column.ends) - 1)
        self.close()

    def close(self) -> None:
        self._block, self.cost = (), 0
        self._begin = self.end = 0
        self._reserved.close()

    def _load(self, number: int) -> None:
        work.check()
        self.close()
        records, ends = self._column.records, self._column.ends
        if number >= records.blocks:
            raise self._damage(f"has {ends[-1]} rows, but its table has {self._rows}")
        cost = records.cost(number)
        with self._reserve(self, cost):
            self._block = records.block(number)
        self.cost = min(cost, sum(map(held, self._block)))  # rows may share values
        self._reserved.enter_context(self._reserve(self, self.cost))
        self._begin = ends[number]
        self.end = self._begin + len(self._block)
        if self.end > self._rows:
            raise self._damage(f"has more rows than the {self._rows} of its table")
        if number == len(ends) - 1:
            ends.append(self.end)
        elif self.end != ends[number + 1]:
            raise self._damage("has other rows than were counted")

    def _damage(self, reason: str) -> Damaged:
        return Damaged(reason, part=self._column.records.key.decode("utf-8", "replace"))


def _length(value: Any) -> int:
    """Return about how many characters the cell of a record has, those of a number not counted."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(_QUOTES + _ESCAPED * _length(item) for item in value)
    return 0


def column_of(layout: ColumnPlan, rows: int, ends: array[int]) -> FixedColumn | RunColumn | RecordColumn:
    """Return the cells of a column; ``ends`` are for those of records."""
    content = layout.column.content
    if isinstance(content, RaggedText):
        return TextColumn(content.text, offsets_of(content))
    if isinstance(content, Ragged):
        if layout.kind is BYTES:
            return BytesColumn(content.values, offsets_of(content))
        return ListColumn(content.values, offsets_of(content, layout.kind.stored), content.dtype)
    if not isinstance(content, Array):
        return RecordColumn(content, ends)
    if layout.length is None or layout.slots:
        return FixedColumn(content, layout.slots)
    return ListColumn(content.data, EvenOffsets(layout.length, rows), content.dtype)
