"""A column of a Parquet file as the run of all its pages, of which any range is made from what it touches.

Every page has a header of one size, whatever it says: so pages stand where a formula puts them, given the row with
which they begin and, where rows differ in length, the offset of that row. Nothing is kept in memory a page. Any thread.
Reading raises what the data raise, and Damaged where offsets do not rise or say more than there is.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_right

from glassfs.codec import thrift
from glassfs.codec.thrift import i32, varint
from glassfs.content import Data
from glassfs.errors import TooLarge
from glassfs.view.parquet.kinds import Kind

PAGE = 1 << 20
MOST_ROWS = 1 << 14
"""Of a page whose rows differ in length: as many offsets are read for any range of it."""
LARGEST_PAGE = (1 << 31) - 1
_DIGITS = 5
_PLAIN, _RLE = 0, 3
LEVELS_HEAD = 4 + _DIGITS


def page_header(size: int, entries: int) -> bytes:
    """The header of a page of so many bytes and values, those that are not there counted."""
    data_page = {1: i32(entries, _DIGITS), 2: i32(_PLAIN), 3: i32(_RLE), 4: i32(_RLE)}
    fields = {1: i32(0), 2: i32(size, _DIGITS), 3: i32(size, _DIGITS), 5: thrift.struct(data_page)}
    return thrift.struct(fields).payload


HEADER = len(page_header(0, 0))


def levels_head(size: int, bits: int = 1) -> bytes:
    """What stands before ``size`` bytes of levels of one bit each, or more.

    All of them belong to one run: a run that ends before its section does leads some readers astray.
    """
    return struct.pack("<I", size + _DIGITS) + varint(size // bits << 1 | 1, _DIGITS)


class Pages(Data, ABC):
    """All pages of one column, one after another. ``rows_a_page`` is a power of two."""

    __slots__ = ()

    @property
    @abstractmethod
    def rows_a_page(self) -> int: ...

    @abstractmethod
    def start(self, row: int) -> int:
        """Where the page begins whose first row this is; with the number of rows, the end."""

    @abstractmethod
    def entries(self, first: int, end: int) -> int:
        """How many values the pages of the rows ``[first, end)`` have, those that are not there counted."""


def rows_for(width: float, most: int) -> int:
    """The largest power of two of rows of so many bytes that are at most a page."""
    wanted = int(PAGE / max(width, 1 / 8))
    return max(1, min(most, 1 << max(0, wanted.bit_length() - 1)))


class Flat(Pages):
    """Values of one size, one a row: ``values`` is theirs as they are in the file, of BOOLEAN as bytes."""

    __slots__ = ("_body", "_page", "_rows", "_rows_a_page", "_width", "values")

    def __init__(self, values: Data, kind: Kind, rows: int, rows_a_group: int) -> None:
        self.values = Bits(values, rows) if kind.is_bits else values
        self._rows = rows
        self._width = 1 / 8 if kind.is_bits else kind.width
        self._rows_a_page = rows_for(self._width, rows_a_group)
        self._body = int(self._rows_a_page * self._width)
        self._page = HEADER + self._body

    @property
    def rows_a_page(self) -> int:
        return self._rows_a_page

    @property
    def size(self) -> int:
        return self.start(self._rows)

    def start(self, row: int) -> int:
        full, rest = divmod(row, self._rows_a_page)
        return full * self._page + (HEADER + self._bytes(rest) if rest else 0)

    def entries(self, first: int, end: int) -> int:
        return end - first

    def read_into(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            page, inside = divmod(offset, self._page)
            if inside < HEADER:
                rows = min(self._rows_a_page, self._rows - page * self._rows_a_page)
                header = page_header(self._bytes(rows), rows)
                taken = min(len(buffer), HEADER - inside)
                buffer[:taken] = header[inside : inside + taken]
            else:
                taken = min(len(buffer), self._page - inside)
                self.values.read_into(buffer[:taken], page * self._body + inside - HEADER)
            buffer, offset = buffer[taken:], offset + taken

    def _bytes(self, rows: int) -> int:
        return -(-rows // 8) if self._width < 1 else rows * int(self._width)


class Bits(Data):
    """``count`` bytes of 0 and 1 as bits, the first in the lowest one."""

    __slots__ = ("_bytes", "_count")

    def __init__(self, data: Data, count: int) -> None:
        self._bytes, self._count = data, count

    @property
    def size(self) -> int:
        return -(-self._count // 8)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        import numpy as np

        while buffer:
            taken = min(len(buffer), PAGE // 8)
            first = offset * 8
            raw = self._bytes.read(first, min(taken * 8, self._count - first))
            buffer[:taken] = np.packbits(np.frombuffer(raw, np.uint8), bitorder="little").data
            buffer, offset = buffer[taken:], offset + taken


class Slot(Data):
    """One element of each vector of ``count`` of them. ``tiles`` has the vectors in stretches, element by element."""

    __slots__ = ("_count", "_number", "_tiles", "_width")

    def __init__(self, tiles: Tiles, number: int, count: int) -> None:
        self._tiles, self._number, self._count = tiles, number, count
        self._width = tiles.width

    @property
    def size(self) -> int:
        return self._count * self._width

    def read_into(self, buffer: memoryview, offset: int) -> None:
        stretch = self._tiles.rows * self._width
        while buffer:
            number, inside = divmod(offset, stretch)
            taken = min(len(buffer), stretch - inside)
            self._tiles.read_into(buffer[:taken], number, self._number, inside)
            buffer, offset = buffer[taken:], offset + taken


class Tiles(ABC):
    """Vectors in stretches of ``rows`` of them, each kept with equal elements side by side."""

    rows: int
    width: int

    @abstractmethod
    def read_into(self, buffer: memoryview, number: int, slot: int, offset: int) -> None:
        """Bytes of the elements of one slot in one stretch."""


class Found:
    """Which page a position is in, by bisection: the one found last is tried first, as readers go on."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = (0, 0, 0)

    def page(self, pages: Pages, rows: int, offset: int) -> tuple[int, int]:
        """The first row of the page that has this position, and where the page begins."""
        row, start, end = self._last
        if start <= offset < end:
            return row, start
        step = pages.rows_a_page
        if start < end == offset and row + step < rows:
            row, start = row + step, end
        else:
            number = bisect_right(range(-(-rows // step)), offset, key=lambda page: pages.start(page * step)) - 1
            row = max(0, number) * step
            start = pages.start(row)
        self._last = row, start, pages.start(min(row + step, rows))
        return row, start


def demand_possible(size: int) -> None:
    if size > LARGEST_PAGE:
        raise TooLarge(f"has rows of {size} bytes that must stand in one page, but it can have {LARGEST_PAGE}")
