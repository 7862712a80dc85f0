"""A column of a Parquet file as the run of all its pages, any range of which is made from what it touches.

Every page has a header of the same length, so the positions of pages follow from the row at which they begin and,
where rows differ in length, from the offset of that row. Any thread. Reads raise what the data raise, and Damaged
where offsets do not rise or exceed the values.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from glassfs.cache import BlockCache
from glassfs.codec import thrift
from glassfs.codec.thrift import i32, varint
from glassfs.content import Computed, Concatenated, Converted, Data, Parted, Rendered, Slice
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE
from glassfs.view.parquet.kinds import Encoding, ParquetType

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_I32 = (1 << 31) - 1
"""The sizes of a page and of the footer are of this type."""
_DIGITS = 5
"""Bytes of each ``i32`` that differs from page to page, padded: so all headers have one length."""
LEVELS_HEAD = 4 + _DIGITS


def page_header(size: int, entries: int) -> bytes:
    """Return the header of a page with ``size`` bytes after it and ``entries`` values, nulls counted."""
    data_page = {1: i32(entries, _DIGITS), 2: i32(Encoding.PLAIN), 3: i32(Encoding.RLE), 4: i32(Encoding.RLE)}
    fields = {1: i32(0), 2: i32(size, _DIGITS), 3: i32(size, _DIGITS), 5: thrift.struct(data_page)}
    return thrift.struct(fields).payload


HEADER = len(page_header(0, 0))


def demand_possible(size: int) -> None:
    """Raise TooLarge if a page cannot have ``size`` bytes after its header."""
    if size > LARGEST_I32:
        raise TooLarge(f"has rows of {size} bytes that must stand in one page, but it can have {LARGEST_I32}")


def levels_head(size: int, bits: int = 1) -> bytes:
    """Return what precedes ``size`` bytes of levels of ``bits`` bits each."""
    # All levels are one run: some readers lose their place if a run ends before its section.
    return struct.pack("<I", size + _DIGITS) + varint(size // bits << 1 | 1, _DIGITS)


def packed_levels(levels: NDArray[Any], bits: int) -> bytes:
    """Return levels, a multiple of eight, as one or two bits each, the lowest first."""
    import numpy as np

    if bits == 2:
        levels = np.stack([levels & 1, levels >> 1], axis=1)
    return np.packbits(levels, bitorder="little").tobytes()


def rows_for(width: float, most: int) -> int:
    """Return how many rows of ``width`` bytes a page gets: the largest power of two that fits, at most ``most``."""
    wanted = int(PIECE / max(width, 1 / 8))
    return max(1, min(most, 1 << max(0, wanted.bit_length() - 1)))


class Pages(Parted):
    """All pages of one column, in order; each is a part and has ``rows_a_page`` rows, the last one fewer."""

    def __init__(self, rows: int, rows_a_page: int) -> None:
        self.rows, self.rows_a_page = rows, rows_a_page

    @abstractmethod
    def start(self, row: int) -> int:
        """Return the position of the page whose first row is ``row``, or for the number of rows the end."""

    @abstractmethod
    def body(self, first: int, end: int) -> Sequence[Data]:
        """Return what follows the header of the page with the rows ``[first, end)``."""

    def entries(self, first: int, end: int) -> int:
        """Return how many values the pages of the rows ``[first, end)`` have, nulls and empty lists counted."""
        return end - first

    @property
    def size(self) -> int:
        return self.start(self.rows)

    def part_at(self, offset: int) -> tuple[int, int, int]:
        # No list of all positions is kept, as there may be millions of pages. Each takes one offset to find.
        pages = range(-(-self.rows // self.rows_a_page))
        number = bisect_right(pages, offset, key=self._page_start) - 1
        return number, self._page_start(number), self._page_start(number + 1)

    def _page_start(self, number: int) -> int:
        return self.start(min(number * self.rows_a_page, self.rows))

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first = number * self.rows_a_page
        end = min(first + self.rows_a_page, self.rows)
        # A page is never in memory as a whole: what is read of it comes from the parts that have the range, so a page
        # of 2 GiB in one row is possible.
        parts = self.body(first, end)
        size = sum(part.size for part in parts)
        demand_possible(size)
        header = Computed(HEADER, lambda: page_header(size, self.entries(first, end)))
        Concatenated([header, *parts]).read_into(buffer, offset)


class FlatPages(Pages):
    """Values of one size, one a row. ``values`` are as the file has them, except that booleans are bytes."""

    def __init__(self, values: Data, kind: ParquetType, rows: int, rows_a_group: int) -> None:
        self._width = 0 if kind.is_bits else kind.width
        self._values = values if self._width else packed_bits(values, rows)
        super().__init__(rows, rows_for(self._width, rows_a_group))

    def start(self, row: int) -> int:
        return HEADER * -(-row // self.rows_a_page) + self._values_size(row)

    def body(self, first: int, end: int) -> Sequence[Data]:
        # Pages have a multiple of eight rows, so bits begin with a byte.
        return [Slice(self._values, self._values_size(first), self._values_size(end - first))]

    def _values_size(self, rows: int) -> int:
        return rows * self._width or -(-rows // 8)


def packed_bits(data: Data, count: int) -> Data:
    """Return ``count`` bytes of 0 and 1 as bits, the first one the lowest of its byte."""
    return Converted(data, 8, 1, -(-count // 8), _packed)


def _packed(raw: bytes) -> bytes:
    import numpy as np

    return np.packbits(np.frombuffer(raw, np.uint8), bitorder="little").tobytes()


class TimePages(Pages):
    """Times of 64 bits: NumPy's "not a time" becomes null, as other readers would take it for a time.

    ``values`` are as the file has them, except the missing ones. The cache keeps the pages.
    """

    def __init__(
        self, values: Data, rows: int, rows_a_group: int, cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(rows, rows_for(8, rows_a_group))
        self._values = values
        self._cache = cache
        self._key = key

    def start(self, row: int) -> int:
        return (HEADER + LEVELS_HEAD) * -(-row // self.rows_a_page) + -(-row // 8) + 8 * row

    def body(self, first: int, end: int) -> Sequence[Data]:
        size = self.start(end - first) - HEADER
        made = partial(self._made, first, end - first)
        return [Rendered(self._cache, (*self._key, "times", first), made, size, cost=4 * size)]

    def _made(self, first: int, rows: int) -> bytes:
        import numpy as np

        values = np.frombuffer(self._values.read(8 * first, 8 * rows), "<M8[ns]")
        is_there = ~np.isnat(values)
        bits = np.packbits(is_there, bitorder="little").tobytes()
        # There is space for a value in every row, which stays unused where some are null: so the size is a formula.
        return b"".join([levels_head(len(bits)), bits, values[is_there].tobytes().ljust(8 * rows, b"\0")])
