"""A column of a Parquet file as the run of all its pages, any range of which is made from what it touches.

Every page has a header of the same length, so the positions of pages follow from the row at which they begin and,
where rows differ in length, from the offset of that row. Any thread. Reads raise what the data raise, and Damaged
where offsets do not rise or exceed the values.
"""

from __future__ import annotations

import codecs
import struct
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import thrift
from glassfs.codec.thrift import i32, varint
from glassfs.content import Computed, Concatenated, Converted, Data, Made, Parted, Rendered, Slice, Stream, Zeros
from glassfs.content.data import SizedData
from glassfs.content.rows import Offsets
from glassfs.content.texts import with_lengths
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.view.parquet.kinds import Encoding, ParquetType

LARGEST_I32 = (1 << 31) - 1
"""The sizes of a page and of the footer are of this type."""
_DIGITS = 5
"""Bytes of each ``i32`` that differs from page to page, padded: so all headers have one length."""
LEVELS_HEAD = 4 + _DIGITS
RAGGED_ROWS = 1 << 14
"""Limit of rows of a page that differ in length: reading any range of it reads all their offsets."""


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
        values = np.frombuffer(self._values.read(8 * first, 8 * rows), "<M8[ns]")
        is_there = ~np.isnat(values)
        bits = np.packbits(is_there, bitorder="little").tobytes()
        # There is space for a value in every row, which stays unused where some are null: so the size is a formula.
        return b"".join([levels_head(len(bits)), bits, values[is_there].tobytes().ljust(8 * rows, b"\0")])


_MARKS = "glassfs-question-marks"


def _marks(error: UnicodeError) -> tuple[str, int]:
    """Replace each byte that is not UTF-8 by a question mark, so that other bytes keep their positions."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARKS, _marks)


class RaggedPages(Pages):
    """Pages of rows that differ in length. Subclasses define where pages begin and what they hold."""

    def __init__(self, offsets: Offsets, width: float, rows_a_group: int) -> None:
        super().__init__(offsets.rows, rows_for(width, min(RAGGED_ROWS, rows_a_group)))
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
    """Rows of bytes, each preceded by its length. In text, bytes that are not UTF-8 become question marks.

    The cache keeps the pages.
    """

    def __init__(
        self, text: Data, offsets: Offsets, rows_a_group: int, is_text: bool, cache: BlockCache,
        key: tuple[Hashable, ...],
    ) -> None:
        super().__init__(offsets, 4 + offsets.total / max(1, offsets.rows), rows_a_group)
        self._text = text
        self._is_text = is_text
        self._cache = cache
        self._key = key

    def position(self, row: int, offset: int) -> int:
        return HEADER * -(-row // self.rows_a_page) + 4 * row + offset

    def body(self, first: int, end: int) -> Sequence[Data]:
        text = self.offsets.at(end) - self.offsets.at(first)
        if text < 0:
            raise Damaged("the offsets of its rows do not rise from 0 to its end")
        size = 4 * (end - first) + text
        make = partial(self._pieces, first, end)
        return [Stream(self._cache, (*self._key, "text", first), make, lambda: 4 * PIECE, size)]

    def _pieces(self, first: int, end: int) -> Iterator[bytes]:
        """Yield some rows at a time, or a part of a long row."""
        offsets = self.offsets.of(first, end)
        row, rows = 0, end - first
        while row < rows:
            # As many rows as fit into a piece. If not even one does, it is a long row, which goes through in pieces.
            after = int(offsets.searchsorted(offsets[row] + PIECE, "right")) - 1
            if after > row:
                yield self._short(offsets[row : after + 1])
            else:
                after = row + 1
                yield from self._long(int(offsets[row]), int(offsets[after]))
            row = after

    def _short(self, offsets: NDArray[Any]) -> bytes:
        """Return whole rows, which are read at once."""
        begin = int(offsets[0])
        text = self._text.read(begin, int(offsets[-1]) - begin)
        if self._is_text and not text.isascii():
            # Each row alone, as the end of a row may cut a character.
            ends = (offsets - begin).tolist()
            text = b"".join(text[a:b].decode("utf-8", _MARKS).encode() for a, b in pairwise(ends))
        return with_lengths(text, offsets[1:] - offsets[:-1])

    def _long(self, begin: int, end: int) -> Iterator[bytes]:
        yield struct.pack("<I", end - begin)
        pieces = Slice(self._text, begin, end - begin).pieces()
        if not self._is_text:
            yield from pieces
            return
        # A piece may end within a character, whose first bytes the decoder keeps for the next one. Each byte that is
        # not UTF-8 becomes one byte, so the length before the row is right.
        decoder = codecs.getincrementaldecoder("utf-8")(_MARKS)
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()


class ListPages(RaggedPages):
    """Lists of numbers: two levels for each entry, then the values.

    The first level says which list an entry continues, 0 for a new row; the second one how many lists are around its
    value, less than that for an empty row, which is an entry without a value. Rows that are lists of lists have the
    lengths ``inner``, all of one shape and none of them empty.
    """

    def __init__(
        self, values: Data, kind: ParquetType, offsets: Offsets, rows_a_group: int, inner: Sequence[int] = (),
    ) -> None:
        super().__init__(offsets, max(1, kind.width * offsets.total / max(1, offsets.rows)), rows_a_group)
        self._values = values
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

    def body(self, first: int, end: int) -> Sequence[Data]:
        offsets = self.offsets.of(first, end)
        begin, until = int(offsets[0]), int(offsets[-1])
        size = self._level_bytes(1, end, until) - self._level_bytes(0, first, begin)
        head = Computed(LEVELS_HEAD, lambda: levels_head(size, self._bits))
        width = self._value_bytes(1, until) - self._value_bytes(0, begin)
        stored = self._kind.width
        values: Data = Slice(self._values, begin * stored, (until - begin) * stored)
        if self._kind.is_bits:
            values = packed_bits(values, until - begin)
        return [
            head, _Levels(size, offsets, self._inner, is_depth=False),
            head, _Levels(size, offsets, self._inner, is_depth=True),
            values, Zeros(width - values.size),
        ]


class _Levels(SizedData, Made):
    """``size`` bytes of levels, one for each entry of a page, then 0: the depths, or which list an entry continues."""

    unit = 1
    at_once = PIECE // 16

    def __init__(self, size: int, offsets: NDArray[Any], inner: Sequence[int], is_depth: bool) -> None:
        super().__init__(size)
        self._offsets, self._inner, self._is_depth = offsets, inner, is_depth
        self.unit = (1 + len(inner)).bit_length()  # bytes of eight levels

    def make(self, first: int, count: int) -> bytes:
        depth = 1 + len(self._inner)
        # The entries of the page are numbered. A row begins at an entry, and an empty one still is an entry. So levels
        # are made for any stretch of entries without those before it.
        lengths = np.diff(self._offsets)
        ends = np.cumsum(np.maximum(lengths, 1))
        begin, end = 8 * first, 8 * (first + count)
        levels = np.zeros(end - begin, np.uint8)
        levels[: max(0, int(ends[-1]) - begin)] = depth
        if not self._is_depth:
            # The outermost list comes last, as an entry that begins it begins those inside as well.
            numbers = np.arange(begin, min(end, int(ends[-1])))
            for number in range(depth - 1, 0, -1):
                levels[: len(numbers)][numbers % prod(self._inner[number - 1 :]) == 0] = number
        zeros = (ends - np.maximum(lengths, 1))[lengths == 0 if self._is_depth else slice(None)]
        a, b = np.searchsorted(zeros, (begin, end))
        levels[zeros[a:b] - begin] = 0
        return packed_levels(levels, self.unit)
