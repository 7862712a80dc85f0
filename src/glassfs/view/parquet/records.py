"""Columns whose rows are Python values, known a block at a time: text, lists of text, numbers, with nulls.

Only the values give the sizes of pages: one pass makes all pages and remembers the size of those of each group; they
are made again when they are read, and the cache keeps them. Any thread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from heapq import heappop, heapreplace
from typing import Any

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Data, Records
from glassfs.errors import Damaged
from glassfs.view.parquet.kinds import ParquetType
from glassfs.view.parquet.pages import (
    Pages,
    Streamed,
    demand_possible,
    levels_head,
    packed_levels,
    page_header,
)

PAGE_COST = 8
"""The memory in bytes that making a page takes for each of its bytes, beside the rows of one block."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class RecordColumns:
    """The columns of records of one file.

    The first caller that needs the size of one has all measured, row by row: columns may be made from shared blocks,
    which the cache then has for all of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: list[RecordPages] = []
        self.is_measured = False

    def add(self, pages: RecordPages) -> None:
        """Add a column. All must be known before one is measured."""
        self._columns.append(pages)

    def measure(self) -> None:
        with work.holding(self._lock):
            if self.is_measured:
                return
            for column in self._columns:
                column.reset()
            behind = [(0, number) for number in range(len(self._columns))]
            while behind:
                work.check()
                column = self._columns[behind[0][1]]
                if column.measure_block():
                    heapreplace(behind, (column.total, behind[0][1]))
                else:
                    heappop(behind)
            self.is_measured = True


class RecordPages(Pages):
    """Rows of records that are values, or lists of them. A part has the pages of a group, one for each block."""

    def __init__(
        self, columns: RecordColumns, records: Records, kind: ParquetType, is_list: bool, rows: int, rows_a_group: int,
        cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(rows, rows_a_group)
        self._columns = columns
        self._records = records
        self._kind = kind
        self._is_list = is_list
        self._cache = cache
        self._key = key
        self.reset()
        columns.add(self)

    def reset(self) -> None:
        """Forget what was measured."""
        self.total = self._next_block = 0
        """The rows of the blocks that were measured, and the block after them."""
        self._sizes, self._entries = [0], [0]
        """Bytes and values up to the end of each group, after none."""
        self._begins: list[tuple[int, int]] = []
        """The block with the first row of each group, and how many of its rows are before that."""
        self._costs: list[int] = []

    @property
    def is_sized(self) -> bool:
        return self._columns.is_measured

    def start(self, row: int) -> int:
        if not self._columns.is_measured:
            self._columns.measure()
        return self._sizes[-(-row // self.rows_a_page)]

    def entries(self, first: int, end: int) -> int:
        return self._entries[-(-end // self.rows_a_page)] - self._entries[first // self.rows_a_page]

    def body(self, first: int, end: int) -> Sequence[Data]:
        raise NotImplementedError

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        size = self._sizes[number + 1] - self._sizes[number]
        make = partial(self._pages, number)
        Streamed(self._cache, (*self._key, "group", number), size, make, self._costs[number]).read_into(buffer, offset)

    def measure_block(self) -> bool:
        """Make the pages of the next block, of which only the sizes are kept; return False if there is none."""
        block = self._next_block
        if block == self._records.blocks:
            if self.total != self.rows:
                raise Damaged(f"has {self.total} rows, but its table has {self.rows}")
            return False
        cost = self._records.cost(block)
        with self._cache.measuring(cost):
            rows, skipped = self._records.block(block), 0
            if self.total + len(rows) > self.rows:
                raise Damaged(f"has more rows than the {self.rows} of its table")
            while skipped < len(rows):
                inside = self.total % self.rows_a_page
                if not inside:
                    self._begins.append((block, skipped))
                    self._costs.append(0)
                    for ends in (self._sizes, self._entries):
                        ends.append(ends[-1])
                part = rows[skipped : skipped + self.rows_a_page - inside]
                entries, page = self._page(part)
                self._sizes[-1] += len(page)
                self._entries[-1] += entries
                self._costs[-1] = max(self._costs[-1], cost + PAGE_COST * len(page))
                skipped, self.total = skipped + len(part), self.total + len(part)
        self._next_block += 1
        return True

    def _pages(self, group: int) -> Iterator[bytes]:
        """Yield the pages of a group."""
        block, skipped = self._begins[group]
        left = min(self.rows_a_page, self.rows - group * self.rows_a_page)
        while left:
            if block == self._records.blocks:
                raise Damaged("has fewer rows than were counted")
            part = self._records.block(block)[skipped : skipped + left]
            if part:
                yield self._page(part)[1]
            block, skipped, left = block + 1, 0, left - len(part)

    def _page(self, rows: Sequence[Any]) -> tuple[int, bytes]:
        """Return the number of values in the page of some rows, and the page."""
        if self._is_list:
            repeated, depths, values = _list_levels(rows)
            body = _levels(repeated, 1) + _levels(depths, 2) + self._packed(values)
        else:
            depths = [int(row is not None) for row in rows]
            body = _levels(depths, 1) + self._packed([row for row in rows if row is not None])
        demand_possible(len(body))
        return len(depths), page_header(len(body), len(depths)) + body

    def _packed(self, values: Sequence[Any]) -> bytes:
        """Return values as a page has them. Raises Damaged if they are not of the column's type."""
        kind = self._kind
        try:
            if kind.is_text:
                return b"".join([len(raw).to_bytes(4, "little") + raw for raw in map(_encoded, values)])
            import numpy as np

            array = np.array(values, kind.dtype)
            if array.shape != (len(values),):
                raise ValueError("a list")
            if kind.is_bits:
                return np.packbits(array, bitorder="little").tobytes()
            return bytes(array.tobytes() if kind.convert is None else kind.convert(array.tobytes()))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise Damaged(f"has a value that is not one of its column: {error}") from error


def _list_levels(rows: Sequence[Any]) -> tuple[list[int], list[int], list[Any]]:
    """Return for each entry whether it continues a row, and its depth: 0 for no list, 1 for an empty one, 2 for None
    in a list, 3 for a value; and the values.
    """
    repeated, depths, values = [], [], []
    for row in rows:
        for number, value in enumerate(row or [None]):
            repeated.append(int(number > 0))
            depths.append((2 if value is None else 3) if row else int(row is not None))
            if value is not None:
                values.append(value)
    return repeated, depths, values


def _encoded(text: Any) -> bytes:
    """Encode as UTF-8; unpaired surrogates, which .NET allows, become U+FFFD."""
    try:
        return bytes(text.encode())
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def _levels(levels: Sequence[int], bits: int) -> bytes:
    """Return the section of a page that has these levels."""
    import numpy as np

    padded = np.zeros(-(-len(levels) // 8) * 8, np.uint8)
    padded[: len(levels)] = levels
    packed = packed_levels(padded, bits)
    return levels_head(len(packed), bits) + packed
