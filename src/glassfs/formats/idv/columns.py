"""Columns as byte ranges and as rows of text.

Where values are shown as stored and no vector is sparse, a column range maps to a block range, or to a file range if
uncompressed. Other values are converted for the requested range, a limited number at a time, and texts in small groups
of rows. Each group reports its memory cost, so that callers can reserve it. Any thread may read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

from glassfs.content import Data, Location, Made, Parted, Records, Regular, Slice
from glassfs.content.data import SizedData
from glassfs.errors import TooLarge
from glassfs.formats.idv.blocks import Blocks, Vectors
from glassfs.formats.idv.runs import Item, Texts, ValueRun
from glassfs.lazy import NDArray, np
from glassfs.once import once
from glassfs.sizes import PIECE

TEXT_SLOTS = 1 << 16
"""Texts of vectors that are made at a time."""
MOST_TEXT_SLOTS = 1 << 20
"""The same for a vector of unknown size, which is made as a whole."""


class _Array(SizedData, Made):
    """``count`` values of ``unit`` bytes, made by ``give(first, count)``."""

    unit = 0

    def __init__(self, unit: int, count: int, give: Callable[[int, int], NDArray[Any]]) -> None:
        super().__init__(unit * count)
        self.unit, self._give = unit, give

    @property
    def at_once(self) -> int:
        return PIECE // max(8, self.unit)

    def make(self, first: int, count: int) -> memoryview:
        return np.ascontiguousarray(self._give(first, count)).view("u1").data


@dataclass(eq=False)
class ColumnValues(Parted):
    """Values of a column, one part per block: all elements of vectors, or only the stored ones, or the slots of these.
    """

    blocks: Blocks
    item: Item
    is_stored: bool = False
    is_index: bool = False
    _last: int = -1

    @property
    def is_sized(self) -> bool:
        return self.blocks.codec.size > 0 and not self.is_stored

    @property
    def bounds(self) -> Sequence[int]:
        slots, width = self.blocks.codec.size, self.item.width
        if self.is_sized:
            return Regular(self.blocks.rows_per_block * slots * width, self.blocks.rows * slots * width)
        return self._bounds

    @once
    def _bounds(self) -> Sequence[int]:
        return [total * self.item.width for total in self.blocks.totals(self.is_stored)]

    def _part(self, vectors: Vectors) -> Data:
        """Return the values of a block."""
        if self.is_index:
            return _Array(self.item.width, vectors.stored, vectors.indices)
        run = vectors.run(self.item)
        # Plain values of dense vectors are as in the file: a range of the column is one of the block.
        if type(run) is ValueRun and (self.is_stored or vectors.is_dense):
            return Slice(run.block.data, run.base, run.total * self.item.width)
        if self.is_stored:
            return _Array(self.item.width, vectors.stored, run.values)
        return _Array(self.item.width, vectors.elements, partial(vectors.spread, run))

    def location(self) -> Location | None:
        return self.blocks.location()

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        # A large first read is taken for the start of a sequential one, as is a step to the next block.
        if number - self._last == 1 and (self._last >= 0 or len(buffer) >= 64 << 10):
            self.blocks.ahead(number + 1)
            self.blocks.ahead(number + 2)
        self._last = number
        self._part(self.blocks.vectors(number)).read_into(buffer, offset)


def row_ends(blocks: Blocks) -> Data:
    """Return the offsets of rows among all elements (the stored ones if vectors have a known size), and the end.

    These are rows + 1 values of int64.
    """
    is_stored = blocks.codec.size > 0

    def ends(first: int, count: int) -> NDArray[Any]:
        bounds = blocks.totals(is_stored)
        found, end = [], min(first + count, blocks.rows)
        row = first
        while row < end:
            number, inside = divmod(row, blocks.rows_per_block)
            taken = min(end - row, blocks.rows_in(number) - inside)
            found.append(blocks.vectors(number).starts(inside, taken, is_stored) + bounds[number])
            row += taken
        if first + count > blocks.rows:
            found.append(np.array(bounds[-1:], np.int64))
        return np.concatenate(found)

    return _Array(8, blocks.rows + 1, ends)


def text_rows(key: bytes, blocks: Blocks) -> Records:
    """Return the texts of a column, or its vectors of texts as lists, in small groups of rows of one block."""
    # ML.NET puts fewer rows into a block the larger they are.
    rows = max(1, min(128, blocks.rows_per_block // 8, TEXT_SLOTS // max(1, blocks.codec.size)))
    # Groups do not cross blocks, so the last group of each block may be shorter.
    groups = -(-blocks.rows_per_block // rows)
    rest = blocks.rows_in(blocks.count - 1) if blocks.count else 0

    def texts(group: int) -> tuple[Vectors, list[int]]:
        number, inside = divmod(group, groups)
        vectors, first = blocks.vectors(number), inside * rows
        count = min(rows, blocks.rows_in(number) - first)
        return vectors, vectors.starts(first, count + 1).tolist()

    count = max(0, blocks.count - 1) * groups + -(-rest // rows)
    return _records(key, blocks, count, texts, is_list=blocks.codec.dimensions is not None)


def text_slots(key: bytes, blocks: Blocks) -> Records:
    """Return the texts of a single value or vector, a few thousand at a time."""
    size = blocks.codec.size

    def texts(group: int) -> tuple[Vectors, list[int]]:
        vectors, first = blocks.vectors(0), group * TEXT_SLOTS
        return vectors, [first, min(first + TEXT_SLOTS, vectors.elements) if size else vectors.elements]

    return _records(key, blocks, -(-size // TEXT_SLOTS) or 1, texts)


def _records(
    key: bytes, blocks: Blocks, count: int, texts: Callable[[int], tuple[Vectors, list[int]]], is_list: bool = False,
) -> Records:
    """Return ``count`` groups of texts, or of lists of them.

    ``texts`` returns a block, and where each list of a group begins among its elements, and the last one ends.
    """
    item = blocks.codec.item

    def read(group: int) -> list[Any]:
        vectors, starts = limited(group)
        first = starts[0]
        found: list[Any] = vectors.spread(vectors.run(item), first, starts[-1] - first).tolist()
        return [found[start - first : end - first] for start, end in pairwise(starts)] if is_list else found

    def cost(group: int) -> int:
        vectors, starts = limited(group)
        first, end = vectors.stored_at(starts[0]), vectors.stored_at(starts[-1])
        return 32 * (starts[-1] - starts[0]) + cast(Texts, vectors.run(item)).cost(first, end - first)

    def limited(group: int) -> tuple[Vectors, list[int]]:
        vectors, starts = texts(group)
        if starts[-1] - starts[0] > MOST_TEXT_SLOTS:
            block = vectors.block
            raise TooLarge(f"has vectors of text of more than {MOST_TEXT_SLOTS} slots", block.source, block.part)
        return vectors, starts

    return Records(key, count, read, blocks.codec.type_name, cost)
