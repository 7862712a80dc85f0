"""Columns whose rows are Python values, known a block at a time: text, lists of text, numbers, with nulls.

Only the values give the sizes of pages. One pass over the blocks of all columns, with one in memory at a time, measures
them and remembers some integers for each page. The cache keeps the pages. Any thread.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Hashable, Sequence
from functools import partial
from heapq import heappop, heapreplace
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Records, Rendered
from glassfs.errors import Damaged
from glassfs.view.parquet.kinds import Kind
from glassfs.view.parquet.pages import HEADER, LEVELS_HEAD, PAGE, Pages, demand_possible, levels_head, page_header

MOST_ROWS = 1 << 17
ROW_COST, BYTE_COST = 40, 8
"""The memory in bytes that a page takes for each of its rows and bytes, beside the rows of one block."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Shape(NamedTuple):
    """Rows of records that are values, or lists of them."""

    kind: Kind
    is_list: bool

    def entries(self, rows: Sequence[Any]) -> tuple[list[int], list[int], list[Any]]:
        """Return for each entry whether it continues a row, and its level; and the values other than None."""
        if not self.is_list:
            return [], [int(row is not None) for row in rows], [row for row in rows if row is not None]
        repeated, levels, values = [], [], []
        for row in rows:
            if not row:
                repeated.append(0)
                levels.append(int(row is not None))
                continue
            for number, value in enumerate(row):
                repeated.append(int(number > 0))
                levels.append(2 if value is None else 3)
                if value is not None:
                    values.append(value)
        return repeated, levels, values

    def packed(self, values: Sequence[Any]) -> bytes:
        """Return values as a page has them. Raises Damaged if they are not of the column's type."""
        kind = self.kind
        try:
            if kind.is_text:
                return b"".join([len(raw).to_bytes(4, "little") + raw for raw in map(_encoded, values)])
            import numpy as np

            found = np.array(values, kind.dtype)
            if found.shape != (len(values),):
                raise ValueError("a list")
            if kind.is_bits:
                return np.packbits(found, bitorder="little").tobytes()
            return bytes(found.tobytes() if kind.convert is None else kind.convert(found.tobytes()))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise Damaged(f"has a value that is not one of its column: {error}") from error

    def size(self, entries: int, width: int) -> int:
        """Return the bytes of a page after its header; ``width`` is the size of its values."""
        levels = [1, 2] if self.is_list else [1]
        return sum(LEVELS_HEAD + level_bytes(entries, bits) for bits in levels) + width

    def page(self, rows: Sequence[Any]) -> bytes:
        """Return the page of these rows."""
        repeated, levels, values = self.entries(rows)
        parts = [packed_levels(repeated, 1)] if self.is_list else []
        parts += [packed_levels(levels, 2 if self.is_list else 1), self.packed(values)]
        body = b"".join(parts)
        return page_header(len(body), len(levels)) + body


def _encoded(text: Any) -> bytes:
    """Encode as UTF-8; unpaired surrogates, which .NET allows, become U+FFFD."""
    try:
        return bytes(text.encode())
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def level_bytes(entries: int, bits: int) -> int:
    """Return the size of packed levels without their head."""
    return -(-entries // 8) * bits


def packed_levels(levels: Sequence[int], bits: int) -> bytes:
    """Return the levels of a page, of one or two bits each."""
    import numpy as np

    groups = -(-len(levels) // 8)
    found = np.zeros(groups * 8, np.uint8)
    found[: len(levels)] = levels
    if bits == 2:
        found = np.stack([found & 1, found >> 1], axis=1).reshape(-1)
    packed = np.packbits(found, bitorder="little").tobytes()
    return levels_head(len(packed), bits) + packed


class RecordColumns:
    """The columns of records of one file, in groups of ``rows_a_group`` rows.

    The first caller that needs the size of one has all measured, row by row: columns may be made from shared blocks,
    which the cache then has for all of them.
    """

    def __init__(self, rows: int, rows_a_group: int, cache: BlockCache) -> None:
        self.rows, self.rows_a_group = rows, rows_a_group
        self.cache = cache
        self._lock = threading.Lock()
        self._columns: list[tuple[Records, Shape]] = []
        self._measured: list[_Measured] | None = None

    @property
    def is_measured(self) -> bool:
        return self._measured is not None

    def new(self, records: Records, shape: Shape, key: tuple[Hashable, ...]) -> RecordPages:
        """Return the pages of a further column. All columns must be known before one is measured."""
        self._columns.append((records, shape))
        return RecordPages(self, len(self._columns) - 1, records, shape, key)

    def measured(self, column: int) -> _Measured:
        if self._measured is None:
            with work.holding(self._lock):
                if self._measured is None:
                    self._measured = self._measure()
        return self._measured[column]

    def _measure(self) -> list[_Measured]:
        found = [_Measured(shape, self.rows, self.rows_a_group) for _, shape in self._columns]
        behind = [(0, number, 0) for number in range(len(found))]
        while behind:
            work.check()
            _, number, block = behind[0]
            records, column = self._columns[number][0], found[number]
            if block < records.blocks:
                cost = records.cost(block)
                with self.cache.measuring(cost):
                    column.add_block(block, records.block(block), cost)
                heapreplace(behind, (column.total, number, block + 1))
            else:
                column.end()
                heappop(behind)
        return found


class RecordPages(Pages):
    """Pages of rows of records. No page has rows of two groups."""

    def __init__(
        self, columns: RecordColumns, number: int, records: Records, shape: Shape, key: tuple[Hashable, ...],
    ) -> None:
        self._columns, self._number = columns, number
        self._records = records
        self._shape = shape
        self._key = key

    @property
    def is_sized(self) -> bool:
        return self._columns.is_measured

    @property
    def bounds(self) -> Sequence[int]:
        return self._pages.bounds

    def start(self, row: int) -> int:
        pages = self._pages
        return pages.bounds[pages.group_pages[-(-row // self._columns.rows_a_group)]]

    def entries(self, first: int, end: int) -> int:
        entries, rows_a_group = self._pages.group_entries, self._columns.rows_a_group
        return entries[-(-end // rows_a_group)] - entries[first // rows_a_group]

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        pages = self._pages
        size = pages.bounds[number + 1] - pages.bounds[number]
        make = partial(self._page, pages.first_blocks[number], pages.skipped[number], pages.rows[number])
        cost = pages.costs[number] + ROW_COST * pages.rows[number] + BYTE_COST * size
        Rendered(self._columns.cache, (*self._key, number), make, size, cost).read_into(buffer, offset)

    def _page(self, block: int, skipped: int, count: int) -> bytes:
        """Return the page of ``count`` rows, from row ``skipped`` of a block on."""
        rows: list[Any] = []
        while len(rows) < count:
            if block >= self._records.blocks:
                raise Damaged("has fewer rows than were counted")
            rows += self._records.block(block)[skipped : skipped + count - len(rows)]
            block, skipped = block + 1, 0
        return self._shape.page(rows)

    @property
    def _pages(self) -> _Measured:
        return self._columns.measured(self._number)


class _Measured:
    """What a pass knows of a column's pages: the finished ones, and the open one. ``total`` rows were added."""

    def __init__(self, shape: Shape, rows: int, rows_a_group: int) -> None:
        self._shape = shape
        self._rows, self._rows_a_group = rows, rows_a_group
        self.bounds = array("Q", [0])
        self.first_blocks, self.skipped, self.rows, self.costs = (array("Q") for _ in range(4))
        self.group_pages, self.group_entries = array("Q", [0]), array("Q", [0])
        self.total = self._open_rows = 0
        self._entries = self._width = self._bits = self._cost = self._all_entries = 0
        self._begin = (0, 0)

    def add_block(self, block: int, rows: Sequence[Any], cost: int) -> None:
        """Add the rows of the next block. Raises Damaged if they are more than the table has."""
        if self.total + len(rows) > self._rows:
            raise Damaged(f"has more rows than the {self._rows} of its table")
        taken = 0
        while taken < len(rows):
            space = min(MOST_ROWS - self._open_rows, self._rows_a_group - self.total % self._rows_a_group)
            part = rows[taken : taken + space]
            self._add(block, taken, part, cost)
            taken += len(part)
            if len(part) == space or self._open_size >= PAGE:
                self._close_page(self.total % self._rows_a_group == 0)

    def end(self) -> None:
        """Close the last page. Raises Damaged if there are fewer rows than the table has."""
        if self.total != self._rows:
            raise Damaged(f"has {self.total} rows, but its table has {self._rows}")
        if self._open_rows or self.total % self._rows_a_group:
            self._close_page(is_group=True)

    @property
    def _open_size(self) -> int:
        return self._shape.size(self._entries, self._width + -(-self._bits // 8))

    def _add(self, block: int, skipped: int, rows: Sequence[Any], cost: int) -> None:
        if not self._open_rows:
            self._begin = block, skipped
        _, levels, values = self._shape.entries(rows)
        if self._shape.kind.is_bits:
            self._bits += len(values)
        else:
            self._width += len(self._shape.packed(values))
        self._entries += len(levels)
        self._cost = max(self._cost, cost)
        self._open_rows += len(rows)
        self.total += len(rows)

    def _close_page(self, is_group: bool) -> None:
        if self._open_rows:
            size = self._open_size
            demand_possible(size)
            self.bounds.append(self.bounds[-1] + HEADER + size)
            for kept, value in zip(
                (self.first_blocks, self.skipped, self.rows, self.costs), (*self._begin, self._open_rows, self._cost),
                strict=True,
            ):
                kept.append(value)
            self._all_entries += self._entries
            self._open_rows = self._entries = self._width = self._bits = self._cost = 0
        if is_group:
            self.group_pages.append(len(self.rows))
            self.group_entries.append(self._all_entries)
