"""A column of a Parquet file as the run of all its pages, any range of which is made from the pages that it touches.

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
from itertools import pairwise
from math import prod
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import thrift
from glassfs.codec.thrift import i32, varint
from glassfs.content import Computed, Concatenated, Converted, Data, Parted, Rendered, Slice
from glassfs.content.rows import Offsets, with_lengths
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.view.parquet.schema import Encoding, ParquetType

LARGEST_I32 = (1 << 31) - 1
"""Sizes in a file are of this type."""
_DIGITS = 5
"""Bytes of each ``i32`` that differs from page to page, padded: so all headers have one length."""
LEVELS_HEAD = 4 + _DIGITS
LARGEST_PAGE = 64 << 20
"""Limit of bytes of a page that is made as a whole: of one row, or of several of which some are very long."""
PAGE_COST = 16
"""The memory in bytes that making a page takes for each of its bytes; levels have eight values in a byte or two."""
RAGGED_ROWS = 1 << 14
"""Limit of rows of a page that differ in length: reading any range of it reads all their offsets."""


def page_header(size: int, entries: int) -> bytes:
    """Return the header of a page with ``size`` bytes after it and ``entries`` values, nulls counted."""
    data_page = {1: i32(entries, _DIGITS), 2: i32(Encoding.PLAIN), 3: i32(Encoding.RLE), 4: i32(Encoding.RLE)}
    fields = {1: i32(0), 2: i32(size, _DIGITS), 3: i32(size, _DIGITS), 5: thrift.struct(data_page)}
    return thrift.struct(fields).payload


HEADER = len(page_header(0, 0))


def demand_possible(size: int) -> None:
    """Raise TooLarge if a page that is made as a whole would have more than LARGEST_PAGE bytes after its header."""
    if size > LARGEST_PAGE:
        raise TooLarge(f"has rows of {size} bytes that must stand in one page, but it can have {LARGEST_PAGE}")


def levels(found: NDArray[Any] | Sequence[int], bits: int, size: int = 0) -> bytes:
    """Return the section of a page that has these levels, one or two bits each, the lowest first.

    It has space for ``size`` bytes of them, a multiple of ``bits``, or for as many as there are.
    """
    size = size or bits * -(-len(found) // 8)
    each = np.asarray(found, np.uint8)
    packed = np.packbits(each if bits == 1 else np.stack([each & 1, each >> 1], axis=1), bitorder="little").tobytes()
    # All levels are one run: some readers lose their place if a run ends before its section.
    head = struct.pack("<I", size + _DIGITS) + varint(size // bits << 1 | 1, _DIGITS)
    return head + packed.ljust(size, b"\0")


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
    def body(self, first: int, end: int) -> Data:
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
        body = self.body(first, end)
        header = Computed(HEADER, lambda: page_header(body.size, self.entries(first, end)))
        Concatenated([header, body]).read_into(buffer, offset)


class FlatPages(Pages):
    """Values of one size, one a row. ``values`` are as the file has them, except that booleans are bytes."""

    def __init__(self, values: Data, kind: ParquetType, rows: int, rows_a_group: int) -> None:
        self._width = 0 if kind.is_bits else kind.width
        self._values = values if self._width else Converted(values, 8, 1, -(-rows // 8), _packed)
        super().__init__(rows, rows_for(self._width, rows_a_group))

    def start(self, row: int) -> int:
        return HEADER * -(-row // self.rows_a_page) + self._values_size(row)

    def body(self, first: int, end: int) -> Data:
        # Pages have a multiple of eight rows, so bits begin with a byte.
        return Slice(self._values, self._values_size(first), self._values_size(end - first))

    def _values_size(self, rows: int) -> int:
        return rows * self._width or -(-rows // 8)


def _packed(raw: bytes) -> bytes:
    """Return bytes of 0 and 1 as bits, the first one the lowest of its byte."""
    return np.packbits(np.frombuffer(raw, np.uint8), bitorder="little").tobytes()


class MadePages(Pages):
    """Pages that are made as a whole when a range needs them, and kept by the cache."""

    def __init__(
        self, rows: int, rows_a_page: int, values: Data, cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(rows, rows_a_page)
        self._values, self._cache, self._key = values, cache, key

    @abstractmethod
    def made(self, first: int, end: int) -> bytes:
        """Return what follows the header of a page."""

    def body(self, first: int, end: int) -> Data:
        size = self.start(end) - self.start(first) - HEADER
        if size < 0:
            raise Damaged("the offsets of its rows do not rise from 0 to its end")
        demand_possible(size)
        made = partial(self.made, first, end)
        return Rendered(self._cache, (*self._key, first), made, size, cost=PAGE_COST * size)


class TimePages(MadePages):
    """Times of 64 bits: NumPy's "not a time" becomes null, as other readers would take it for a time.

    ``values`` are as the file has them, except the missing ones.
    """

    def __init__(
        self, values: Data, rows: int, rows_a_group: int, cache: BlockCache, key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(rows, rows_for(8, rows_a_group), values, cache, key)

    def start(self, row: int) -> int:
        return (HEADER + LEVELS_HEAD) * -(-row // self.rows_a_page) + -(-row // 8) + 8 * row

    def made(self, first: int, end: int) -> bytes:
        values = np.frombuffer(self._values.read(8 * first, 8 * (end - first)), "<M8[ns]")
        is_there = ~np.isnat(values)
        # There is space for a value in every row, which stays unused where some are null: so the size is a formula.
        return b"".join([levels(is_there, 1), values[is_there].tobytes().ljust(values.nbytes, b"\0")])


class RaggedPages(MadePages):
    """Pages of rows that differ in length. Subclasses define where pages begin and what they hold."""

    def __init__(
        self, values: Data, offsets: Offsets, width: float, rows_a_group: int, cache: BlockCache,
        key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(offsets.rows, rows_for(width, min(RAGGED_ROWS, rows_a_group)), values, cache, key)
        self.offsets = offsets

    @abstractmethod
    def position(self, row: int, offset: int) -> int:
        """Return where the page begins whose first row is ``row``, if ``offset`` values precede it."""

    @property
    def size(self) -> int:
        # The number of values is known without reading an offset.
        return self.position(self.rows, self.offsets.total) if self.rows else 0

    def start(self, row: int) -> int:
        return self.position(row, self.offsets.at(row)) if row else 0


class TextPages(RaggedPages):
    """Rows of bytes, each preceded by its length. In text, bytes that are not UTF-8 become question marks."""

    def __init__(
        self, text: Data, offsets: Offsets, rows_a_group: int, cache: BlockCache, key: tuple[Hashable, ...],
        is_text: bool,
    ) -> None:
        super().__init__(text, offsets, 4 + offsets.total / max(1, offsets.rows), rows_a_group, cache, key)
        self._is_text = is_text

    def position(self, row: int, offset: int) -> int:
        return HEADER * -(-row // self.rows_a_page) + 4 * row + offset

    def made(self, first: int, end: int) -> bytes:
        offsets = self.offsets.of(first, end)
        begin = int(offsets[0])
        text = self._values.read(begin, int(offsets[-1]) - begin)
        if self._is_text and not text.isascii():
            # Each row alone, as the end of a row may cut a character. Each byte that is not UTF-8 becomes a question
            # mark, so that other bytes keep their positions.
            rows = (text[a:b] for a, b in pairwise((offsets - begin).tolist()))
            text = b"".join(row.decode("utf-8", "surrogateescape").encode("utf-8", "replace") for row in rows)
        return with_lengths(text, np.diff(offsets))


class ListPages(RaggedPages):
    """Lists of numbers: two levels for each entry, then the values.

    The first level says which list an entry continues, 0 for a new row; the second one how many lists are around its
    value, less than that for an empty row, which is an entry without a value. Rows that are lists of lists have the
    lengths ``inner``, all of one shape and none of them empty.
    """

    def __init__(
        self, values: Data, offsets: Offsets, rows_a_group: int, cache: BlockCache, key: tuple[Hashable, ...],
        kind: ParquetType, inner: Sequence[int] = (),
    ) -> None:
        width = max(1, kind.width * offsets.total / max(1, offsets.rows))
        super().__init__(values, offsets, width, rows_a_group, cache, key)
        self._kind = kind
        self._inner = inner
        self._bits = (1 + len(inner)).bit_length()

    def entries(self, first: int, end: int) -> int:
        offsets = self.offsets
        return offsets.at(end) - offsets.at(first) + offsets.empty(first, end) if end > first else 0

    def position(self, row: int, offset: int) -> int:
        pages = -(-row // self.rows_a_page)
        return pages * (HEADER + 2 * LEVELS_HEAD) + 2 * self._level_bytes(pages, row, offset) + self._value_bytes(
            pages, offset,
        )

    def _level_bytes(self, pages: int, row: int, offset: int) -> int:
        """Return the size of a section of levels of a run of pages: enough if every row is empty or none is.

        Only the offsets say how many empty rows there are. Rounded so that two such sizes give that of a page.
        """
        return self._bits * (pages + (row + offset) // 8)

    def _value_bytes(self, pages: int, offset: int) -> int:
        return pages + offset // 8 if self._kind.is_bits else offset * self._kind.width

    def made(self, first: int, end: int) -> bytes:
        offsets = self.offsets.of(first, end)
        begin, until, width = int(offsets[0]), int(offsets[-1]), self._kind.width
        values = self._values.read(begin * width, (until - begin) * width)
        lengths = np.diff(offsets)
        # A row begins at an entry, and an empty one still is an entry.
        starts = np.cumsum(np.maximum(lengths, 1)) - np.maximum(lengths, 1)
        repeated = np.full(until - begin + int((lengths == 0).sum()), 1 + len(self._inner), np.uint8)
        depths = repeated.copy()
        depths[starts[lengths == 0]] = 0
        # The outermost list comes last, as an entry that begins it begins those inside as well.
        for number in range(len(self._inner), 0, -1):
            repeated[:: prod(self._inner[number - 1 :])] = number
        repeated[starts] = 0
        size = self._level_bytes(1, end, until) - self._level_bytes(0, first, begin)
        value_size = self._value_bytes(1, until) - self._value_bytes(0, begin)
        return b"".join([
            levels(repeated, self._bits, size), levels(depths, self._bits, size),
            (_packed(values) if self._kind.is_bits else values).ljust(value_size, b"\0"),
        ])
