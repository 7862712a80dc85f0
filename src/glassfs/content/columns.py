"""Rows in blocks in which each column is contiguous, made whole and kept by the cache.

Columns of a table are read one after another, but their values may stand side by side in a container: a block is read
or decoded once for all of them. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from glassfs.cache import BlockCache
from glassfs.content.blocks import Rendered
from glassfs.content.data import Data
from glassfs.content.parts import Parted, Regular
from glassfs.sizes import PIECE


class ColumnBlocks:
    """``rows`` rows of ``width`` bytes. ``make(first, count)`` returns some of them, one column after another."""

    def __init__(
        self, rows: int, width: int, make: Callable[[int, int], bytes], cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        self.rows = rows
        self.rows_a_block = 1 << max(1, PIECE // max(1, width)).bit_length() - 1
        self._width = width
        self._make = make
        self._cache = cache
        self._key = key

    def column(self, offset: int, width: int) -> Data:
        """Return the ``width`` bytes of each row that begin ``offset`` bytes after the start of the row."""
        return _BlockColumn(self, offset, width)

    def block(self, number: int) -> tuple[Data, int]:
        """Return a block, and its number of rows."""
        first = number * self.rows_a_block
        rows = min(self.rows_a_block, self.rows - first)
        # Making a block takes the values as they are stored, the same in columns, and the joined bytes.
        size = rows * self._width
        made = partial(self._make, first, rows)
        return Rendered(self._cache, (*self._key, "rows", first), made, size, cost=4 * size), rows


class _BlockColumn(Parted):
    def __init__(self, blocks: ColumnBlocks, offset: int, width: int) -> None:
        self._blocks = blocks
        self._offset = offset
        self._bounds = Regular(blocks.rows_a_block * width, blocks.rows * width)

    @property
    def bounds(self) -> Sequence[int]:
        return self._bounds

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        block, rows = self._blocks.block(number)
        block.read_into(buffer, rows * self._offset + offset)
