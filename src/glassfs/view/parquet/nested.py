"""Columns of lists of lists of numbers that all have one shape, such as statistics of cameras. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from glassfs.content import Concatenated, Data, Memory, Slice
from glassfs.view.parquet.kinds import Kind
from glassfs.view.parquet.pages import HEADER, LEVELS_HEAD, EvenPages, page_header, rows_for
from glassfs.view.parquet.records import level_bytes, packed_levels

BITS = 2


class NestedPages(EvenPages):
    """Values with two levels of ``BITS`` bits each: which list an entry continues, and how many lists are around it.

    ``lengths`` are those of the two or three lists in each other, the outermost first; none is 0.
    """

    __slots__ = ("_depth", "_repeated", "_values", "_width")

    def __init__(self, values: Data, kind: Kind, lengths: Sequence[int], rows: int, rows_a_group: int) -> None:
        self._depth = len(lengths)
        self._repeated = [
            next((depth for depth in range(self._depth) if not number % prod(lengths[depth:])), self._depth)
            for number in range(prod(lengths))
        ]
        self._values = values
        self._width = len(self._repeated) * kind.width
        super().__init__(rows, rows_for(self._width, rows_a_group))

    def page_size(self, rows: int) -> int:
        levels = LEVELS_HEAD + level_bytes(self.entries(0, rows), BITS)
        return HEADER + 2 * levels + rows * self._width

    def entries(self, first: int, end: int) -> int:
        return (end - first) * len(self._repeated)

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first, rows = self.rows_of(number)
        entries = self.entries(0, rows)
        Concatenated([
            Memory(page_header(self.page_size(rows) - HEADER, entries)),
            Memory(packed_levels(self._repeated * rows, BITS)),
            Memory(packed_levels([self._depth] * entries, BITS)),
            Slice(self._values, first * self._width, rows * self._width),
        ]).read_into(buffer, offset)
