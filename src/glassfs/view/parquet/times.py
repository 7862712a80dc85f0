"""Columns of times: what NumPy calls "not a time" is null, which no other reader would take it for.

A page has room for a value a row; where some are null, the bytes behind the others are not used. So its size is a
formula nevertheless. Pages are kept by the cache. Any thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from glassfs.cache import BlockCache
from glassfs.content import Data, Parted, Regular, Rendered
from glassfs.view.parquet.pages import HEADER, LEVELS_HEAD, levels_head, page_header, rows_for

_WIDTH = 8
_MISSING = -1 << 63


class TimePages(Parted):
    """``values`` are 64 bits each, as they are in the file but for those that are missing."""

    def __init__(
        self, values: Data, rows: int, rows_a_group: int, cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        self._values = values
        self._rows = rows
        self._rows_a_page = rows_for(_WIDTH, rows_a_group)
        self._cache = cache
        self._key = key

    @property
    def bounds(self) -> Sequence[int]:
        return Regular(_page_size(self._rows_a_page), self.start(self._rows))

    @property
    def rows_a_page(self) -> int:
        return self._rows_a_page

    def start(self, row: int) -> int:
        """Where the page begins whose first row this is; with the number of rows, the end."""
        full, rest = divmod(row, self._rows_a_page)
        return full * _page_size(self._rows_a_page) + (_page_size(rest) if rest else 0)

    def entries(self, first: int, end: int) -> int:
        """How many values the pages of the rows ``[first, end)`` have, nulls counted."""
        return end - first

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first = number * self._rows_a_page
        rows = min(self._rows_a_page, self._rows - first)
        size = _page_size(rows)
        key = (*self._key, "times", number)
        Rendered(self._cache, key, partial(self._page, first, rows), size, cost=4 * size).read_into(buffer, offset)

    def _page(self, first: int, rows: int) -> bytes:
        import numpy as np

        values = np.frombuffer(self._values.read(first * _WIDTH, rows * _WIDTH), "<i8")
        is_there = values != _MISSING
        bits = np.packbits(is_there, bitorder="little").tobytes()
        parts = [page_header(_page_size(rows) - HEADER, rows), levels_head(len(bits)), bits]
        parts.append(values[is_there].tobytes().ljust(rows * _WIDTH, b"\0"))
        return b"".join(parts)


def _page_size(rows: int) -> int:
    return HEADER + LEVELS_HEAD + -(-rows // 8) + rows * _WIDTH
