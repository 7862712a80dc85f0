"""A column of a Parquet file as the run of all its pages, any range of which is made from what it touches.

Every page has a header of the same length, so the positions of pages follow from the row at which they begin and,
where rows differ in length, from the offset of that row. No page takes memory while it is not read. Any thread.
Reads raise what the data raise, and Damaged where offsets do not rise or exceed the values.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence

from glassfs.codec import thrift
from glassfs.codec.thrift import i32, varint
from glassfs.content import Concatenated, Data, Made, Memory, Parted, Regular, Slice
from glassfs.content.data import PIECE, SizedData
from glassfs.errors import TooLarge
from glassfs.view.parquet.kinds import Kind

PAGE = 1 << 20
MOST_ROWS = 1 << 14
"""Limit of a page whose rows differ in length: reading any range of it reads this many offsets."""
LARGEST_PAGE = (1 << 31) - 1
_DIGITS = 5
_PLAIN, _RLE = 0, 3
LEVELS_HEAD = 4 + _DIGITS


def page_header(size: int, entries: int) -> bytes:
    """Return the header of a page with ``size`` bytes after it and ``entries`` values, nulls counted."""
    data_page = {1: i32(entries, _DIGITS), 2: i32(_PLAIN), 3: i32(_RLE), 4: i32(_RLE)}
    fields = {1: i32(0), 2: i32(size, _DIGITS), 3: i32(size, _DIGITS), 5: thrift.struct(data_page)}
    return thrift.struct(fields).payload


HEADER = len(page_header(0, 0))


def levels_head(size: int, bits: int = 1) -> bytes:
    """Return what precedes ``size`` bytes of levels of ``bits`` bits each.

    All levels are one run: some readers lose their place if a run ends before its section.
    """
    return struct.pack("<I", size + _DIGITS) + varint(size // bits << 1 | 1, _DIGITS)


class Pages(Parted):
    """All pages of one column, in order; each is a part."""

    __slots__ = ()

    @abstractmethod
    def start(self, row: int) -> int:
        """Return the position of the page whose first row is ``row``, or for the number of rows the end.

        Callers ask for the first rows of groups only.
        """

    @abstractmethod
    def entries(self, first: int, end: int) -> int:
        """Return how many values the pages of the rows ``[first, end)`` have, nulls and empty lists counted."""


def rows_for(width: float, most: int) -> int:
    """Return how many rows of ``width`` bytes a page gets: the largest power of two that fits, at most ``most``."""
    wanted = int(PAGE / max(width, 1 / 8))
    return max(1, min(most, 1 << max(0, wanted.bit_length() - 1)))


class EvenPages(Pages):
    """Pages whose sizes follow from their numbers of rows, with one value for each row."""

    __slots__ = ("_bounds", "rows", "rows_a_page")

    def __init__(self, rows: int, rows_a_page: int) -> None:
        self.rows, self.rows_a_page = rows, rows_a_page
        self._bounds = Regular(self.page_size(rows_a_page), self.start(rows))

    @abstractmethod
    def page_size(self, rows: int) -> int:
        """Return the size of a page of ``rows`` rows, its header included."""

    @property
    def bounds(self) -> Sequence[int]:
        return self._bounds

    def start(self, row: int) -> int:
        full, rest = divmod(row, self.rows_a_page)
        return full * self.page_size(self.rows_a_page) + (self.page_size(rest) if rest else 0)

    def entries(self, first: int, end: int) -> int:
        return end - first

    def rows_of(self, number: int) -> tuple[int, int]:
        """Return the first row of a page and its number of rows."""
        first = number * self.rows_a_page
        return first, min(self.rows_a_page, self.rows - first)


class FlatPages(EvenPages):
    """Values of one size, one a row. ``values`` are as the file has them, except that booleans are bytes."""

    __slots__ = ("_values", "_width")

    def __init__(self, values: Data, kind: Kind, rows: int, rows_a_group: int) -> None:
        self._width = 0 if kind.is_bits else kind.width
        self._values = values if self._width else Bits(values, 0, rows, -(-rows // 8))
        super().__init__(rows, rows_for(self._width or 1 / 8, rows_a_group))

    def page_size(self, rows: int) -> int:
        return HEADER + self._body(rows)

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first, rows = self.rows_of(number)
        start, size = self._body(first), self._body(rows)
        if offset < HEADER:
            header = Memory(page_header(size, rows))
            Concatenated([header, Slice(self._values, start, size)]).read_into(buffer, offset)
        else:
            self._values.read_into(buffer, start + offset - HEADER)

    def _body(self, rows: int) -> int:
        return rows * self._width or -(-rows // 8)


class Bits(SizedData, Made):
    """``size`` bytes of bits: first those of ``count`` bytes of 0 and 1 from ``begin`` on in ``data``, then zeros.

    The first bit is the lowest of its byte.
    """

    __slots__ = ("_begin", "_count", "_data")

    unit = 1
    at_once = PIECE // 8

    def __init__(self, data: Data, begin: int, count: int, size: int) -> None:
        super().__init__(size)
        self._data, self._begin, self._count = data, begin, count

    def make(self, first: int, count: int) -> bytes:
        import numpy as np

        begin = min(8 * first, self._count)
        raw = self._data.read(self._begin + begin, min(8 * count, self._count - begin))
        return np.packbits(np.frombuffer(raw, np.uint8), bitorder="little").tobytes().ljust(count, b"\0")


def demand_possible(size: int) -> None:
    """Raise TooLarge if a page cannot have ``size`` bytes after its header."""
    if size > LARGEST_PAGE:
        raise TooLarge(f"has rows of {size} bytes that must stand in one page, but it can have {LARGEST_PAGE}")
