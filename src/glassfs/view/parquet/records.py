"""Columns whose rows are Python values, known a block at a time: text, lists of text, numbers, with nulls.

Only the values give the sizes of pages: one pass makes all of them and remembers where each group begins. The cache
keeps the first groups for a reader that follows, and all that are made again when they are read. Any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Records, Stream
from glassfs.content.texts import TextRows
from glassfs.errors import Damaged
from glassfs.lazy import np
from glassfs.once import once
from glassfs.view.json import as_text
from glassfs.view.parquet.kinds import TEXT, ParquetType
from glassfs.view.parquet.pages import demand_possible, levels_head, packed_levels, page_header

PAGE_COST = 2
"""The memory in bytes that making pages of a block takes for each byte of its rows, these included."""


class _Group(NamedTuple):
    """The bytes and values of the groups before this one, the block with its first row, and the rows before that."""

    start: int
    entries: int
    block: int
    skipped: int


class RecordPages:
    """Pages of rows of records that are values, or lists of them: one for each block of records in a group."""

    def __init__(
        self, records: Records, kind: ParquetType, is_list: bool, rows: int, rows_a_group: int, cache: BlockCache,
        key: tuple[Hashable, ...],
    ) -> None:
        self._records, self._kind, self._is_list = records, kind, is_list
        self._rows, self._rows_a_group = rows, rows_a_group
        self._cache, self._key = cache, key
        self._lock = threading.RLock()
        self._found = [_Group(0, 0, 0, 0)]

    @property
    def size(self) -> int:
        return self.start(self._rows)

    def start(self, row: int) -> int:
        """Return the position of the first page of a group, or for the number of rows the end."""
        return self._groups[-(-row // self._rows_a_group)].start

    def entries(self, first: int, end: int) -> int:
        """Return how many values the groups of the rows ``[first, end)`` have, nulls and empty lists counted."""
        begin, after = (self._groups[-(-row // self._rows_a_group)].entries for row in (first, end))
        return after - begin

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer``, which is in one group."""
        number = bisect_right(self._groups, offset, key=lambda group: group.start) - 1
        start, end = self._groups[number].start, self._groups[number + 1].start
        pages = partial(self._pages, number)
        group = Stream(self._cache, self._key_of(number), pages, lambda: self._cost, end - start)
        group.read_into(buffer, offset - start)

    def _key_of(self, group: int) -> tuple[Hashable, ...]:
        return (*self._key, "group", group)

    @once
    def _groups(self) -> list[_Group]:
        """All groups, and the end. Takes a pass over the records."""
        with work.holding(self._lock):
            left = self._cache.budget // 8
            for number in range(len(self._found) - 1, -(-self._rows // self._rows_a_group)):
                made = list[bytes]()
                for page in self._pages(number):
                    work.check()
                    left -= len(page)
                    made = [*made, page] if left >= 0 else []
                if left >= 0:
                    self._cache.add(self._key_of(number), b"".join(made))
            last = self._found[-1]
            if last.skipped or any(map(self._records.block, range(last.block, self._records.blocks))):
                raise Damaged(f"has more rows than the {self._rows} of its table")
            return self._found

    @once
    def _cost(self) -> int:
        return PAGE_COST * max(map(self._records.cost, range(self._records.blocks)), default=0)

    def _pages(self, group: int) -> Iterator[bytes]:
        """Yield the pages of a group; the next group is known after the last one was taken."""
        start, entries, block, skipped = self._found[group]
        row, end = group * self._rows_a_group, min((group + 1) * self._rows_a_group, self._rows)
        while row < end:
            if block == self._records.blocks:
                raise Damaged(f"has {row} rows, but its table has {self._rows}")
            with self._cache.measuring(self._records.cost(block)):
                # A page ends with its block and with its group: then no rows of one block must wait for those of the
                # next one, and a group can be made without the one before.
                rows = self._records.block(block)
                part = rows[skipped : skipped + end - row]
                count, page = self._page(part) if part else (0, b"")
            yield page
            start, entries, row, skipped = start + len(page), entries + count, row + len(part), skipped + len(part)
            if skipped == len(rows):
                block, skipped = block + 1, 0
        if group + 1 == len(self._found):
            self._found.append(_Group(start, entries, block, skipped))

    def _page(self, rows: Sequence[Any]) -> tuple[int, bytes]:
        """Return the number of values in the page of some rows, and the page."""
        depths: Sequence[int]
        if self._is_list:
            repeated, depths, values = _list_levels(rows)
            body = _levels(repeated, 1) + _levels(depths, 2) + self._packed(values)
        elif isinstance(rows, TextRows):
            present = b"\1" * len(rows) if rows.present is None else rows.present.tobytes()
            depths, body = present, _levels(present, 1) + rows.with_lengths()
        else:
            depths = [int(row is not None) for row in rows]
            body = _levels(depths, 1) + self._packed([row for row in rows if row is not None])
        demand_possible(len(body))
        return len(depths), page_header(len(body), len(depths)) + body

    def _packed(self, values: Sequence[Any]) -> bytes:
        """Return values as a page has them. Raises Damaged if they are not of the column's type."""
        kind = self._kind
        try:
            if kind is TEXT:
                texts = [as_text(value).encode() for value in values]  # .NET allows unpaired surrogates
                return b"".join([len(raw).to_bytes(4, "little") + raw for raw in texts])
            # Values come from documents in the container: NumPy raises for what does not fit into the type.
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


def _levels(levels: Sequence[int], bits: int) -> bytes:
    """Return the section of a page that has these levels."""
    padded = np.zeros(-(-len(levels) // 8) * 8, np.uint8)
    padded[: len(levels)] = np.frombuffer(levels, np.uint8) if isinstance(levels, bytes) else levels
    packed = packed_levels(padded, bits)
    return levels_head(len(packed), bits) + packed
