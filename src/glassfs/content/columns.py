"""Rows in blocks in which each column is contiguous, made whole and kept by the cache.

Columns of a table are read one after another, but their values may stand side by side in a container: a block is read
or decoded once for all of them. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from math import prod

from glassfs.cache import BlockCache
from glassfs.content.blocks import Rendered
from glassfs.content.data import Data
from glassfs.content.model import Array
from glassfs.content.parts import Parted, Regular
from glassfs.content.table import Column
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

    def columns(self, described: Iterable[tuple[str, str, tuple[int, ...]]]) -> Iterator[Column]:
        """Yield all columns in order, given their names, their dtypes and the shapes of a row."""
        offset = 0
        for name, dtype, shape in described:
            width = prod(shape) * int(dtype[2:])
            values = Array(b"", self.column(offset, width), dtype, (self.rows, *shape))
            yield Column(name.encode(), values, is_list=bool(shape))
            offset += width

    def block(self, number: int) -> tuple[Data, int]:
        """Return a block, and its number of rows."""
        first = number * self.rows_a_block
        rows = min(self.rows_a_block, self.rows - first)
        # Making a block takes the values as they are stored, the same in columns, and the joined bytes.
        size = rows * self._width
        made = partial(self._make, first, rows)
        return Rendered(self._cache, (*self._key, "rows", first), made, size, cost=4 * size), rows


class _BlockColumn(Parted):
    bounds: Sequence[int] = ()

    def __init__(self, blocks: ColumnBlocks, offset: int, width: int) -> None:
        self._blocks = blocks
        self._offset = offset
        self.bounds = Regular(blocks.rows_a_block * width, blocks.rows * width)

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        block, rows = self._blocks.block(number)
        block.read_into(buffer, rows * self._offset + offset)
