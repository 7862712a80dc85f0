"""Columns of times: NumPy's "not a time" becomes null, as other readers would take it for a time.

A page has space for a value in every row. Where some are null, the bytes after the others stay unused, so the size of a
page is a formula nevertheless. The cache keeps the pages. Any thread.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from glassfs.cache import BlockCache
from glassfs.content import Data, Rendered
from glassfs.view.parquet.pages import HEADER, LEVELS_HEAD, EvenPages, levels_head, page_header, rows_for

_WIDTH = 8
_MISSING = -1 << 63


class TimePages(EvenPages):
    """Times of 64 bits each: ``values`` are as the file has them, except the missing ones."""

    __slots__ = ("_cache", "_key", "_values")

    def __init__(
        self, values: Data, rows: int, rows_a_group: int, cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(rows, rows_for(_WIDTH, rows_a_group))
        self._values = values
        self._cache = cache
        self._key = key

    def page_size(self, rows: int) -> int:
        return HEADER + LEVELS_HEAD + -(-rows // 8) + rows * _WIDTH

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first, rows = self.rows_of(number)
        size = self.page_size(rows)
        key = (*self._key, "times", number)
        Rendered(self._cache, key, partial(self._page, first, rows), size, cost=4 * size).read_into(buffer, offset)

    def _page(self, first: int, rows: int) -> bytes:
        import numpy as np

        values = np.frombuffer(self._values.read(first * _WIDTH, rows * _WIDTH), "<i8")
        is_there = values != _MISSING
        bits = np.packbits(is_there, bitorder="little").tobytes()
        parts = [page_header(self.page_size(rows) - HEADER, rows), levels_head(len(bits)), bits]
        parts.append(values[is_there].tobytes().ljust(rows * _WIDTH, b"\0"))
        return b"".join(parts)
