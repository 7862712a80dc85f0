"""Columns whose rows differ in length: text, and lists of numbers.

Each read of a page reads and checks the offsets of its rows, then makes the requested range from them and the values
around it; of a long row, no more than the range. Any thread.
"""

from __future__ import annotations

import codecs
import struct
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassfs.content import Computed, Concatenated, Data, Made, Memory, Parted, Slice
from glassfs.content.data import PIECE, SizedData
from glassfs.content.rows import Offsets
from glassfs.view.parquet.kinds import Kind
from glassfs.view.parquet.pages import (
    HEADER,
    LEVELS_HEAD,
    MOST_ROWS,
    Bits,
    Pages,
    demand_possible,
    levels_head,
    page_header,
    rows_for,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG = 64 << 10
"""Longer text rows are made in pieces."""
_CHARACTER = 4
_MARKS = "glassfs-question-marks"


def _marks(error: UnicodeError) -> tuple[str, int]:
    """Replace each byte that is not UTF-8 by a question mark, so that other bytes keep their positions."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARKS, _marks)


class RaggedPages(Pages):
    """Pages of rows that differ in length. Subclasses define where pages begin and what they hold."""

    def __init__(self, offsets: Offsets, rows_a_page: int) -> None:
        self._offsets = offsets
        self.rows_a_page = rows_a_page
        self._last = 0, 0, 0  # number, start and end of the page read last: readers mostly go on there

    @property
    def rows(self) -> int:
        return self._offsets.rows

    @property
    def size(self) -> int:
        return self._position(self.rows, self._offsets.total) if self.rows else 0

    def start(self, row: int) -> int:
        return self._position(row, self._offsets.at(row)) if row else 0

    def part_at(self, offset: int) -> tuple[int, int, int]:
        number, start, end = self._last
        if not start <= offset < end:
            if start < offset == end:
                number, start = number + 1, end
            else:
                pages = range(-(-self.rows // self.rows_a_page))
                number = bisect_right(pages, offset, key=self._page_start) - 1
                start = self._page_start(number)
            end = self._page_start(number + 1)
            self._last = number, start, end
        return number, start, end

    def _page_start(self, number: int) -> int:
        return self.start(min(number * self.rows_a_page, self.rows))

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        row = number * self.rows_a_page
        offsets = self._offsets.of(row, min(row + self.rows_a_page, self.rows))
        parts = self._body(row, offsets)
        size = sum(part.size for part in parts)
        demand_possible(size)
        header = Computed(HEADER, lambda: page_header(size, self._entries(offsets)))
        Concatenated([header, *parts]).read_into(buffer, offset)

    @abstractmethod
    def _position(self, row: int, offset: int) -> int:
        """Return where the page begins whose first row is ``row``, if ``offset`` values precede it."""

    @abstractmethod
    def _entries(self, offsets: NDArray[Any]) -> int:
        """Return the number of values in a page whose rows have these offsets, empty lists counted."""

    @abstractmethod
    def _body(self, row: int, offsets: NDArray[Any]) -> Sequence[Data]:
        """Return what follows the header of the page that begins with ``row``."""


class TextPages(RaggedPages):
    """Rows of bytes, each preceded by its length. In text, bytes that are not UTF-8 become question marks."""

    def __init__(self, text: Data, offsets: Offsets, rows_a_group: int, is_text: bool) -> None:
        width = 4 + offsets.total / max(1, offsets.rows)
        super().__init__(offsets, rows_for(width, min(MOST_ROWS, rows_a_group)))
        self._text = text
        self._is_text = is_text

    def entries(self, first: int, end: int) -> int:
        return end - first

    def _position(self, row: int, offset: int) -> int:
        return HEADER * -(-row // self.rows_a_page) + 4 * row + offset

    def _entries(self, offsets: NDArray[Any]) -> int:
        return len(offsets) - 1

    def _body(self, row: int, offsets: NDArray[Any]) -> Sequence[Data]:
        return [_Rows(self._text, offsets, self._is_text)]


class _Rows(Parted):
    """The rows of a page of text. A part is a long row, or a run of others of at most ``PIECE`` bytes."""

    def __init__(self, text: Data, offsets: NDArray[Any], is_text: bool) -> None:
        import numpy as np

        self._text, self._offsets, self._is_text = text, offsets, is_text
        self._starts = offsets - offsets[0] + 4 * np.arange(len(offsets))

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    def part_at(self, offset: int) -> tuple[int, int, int]:
        """Return the first row of a part instead of its number: the row that has the byte."""
        import numpy as np

        first = int(self._starts.searchsorted(offset, "right")) - 1
        start = int(self._starts[first])
        end = int(self._starts.searchsorted(start + PIECE, "right")) - 1
        long = np.flatnonzero(np.diff(self._offsets[first : end + 1]) > LONG)
        if len(long):
            end = first + int(long[0])
        return first, start, int(self._starts[max(first + 1, end)])

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        first, size = int(self._offsets[number]), int(self._offsets[number + 1] - self._offsets[number])
        if size > LONG:
            text: Data = Slice(self._text, first, size)
            text = _Marked(text) if self._is_text else text
            Concatenated([Memory(struct.pack("<I", size)), text]).read_into(buffer, offset)
            return
        end = int(self._starts.searchsorted(self._starts[number] + offset + len(buffer)))
        buffer[:] = self._made(self._offsets[number : end + 1])[offset : offset + len(buffer)]

    def _made(self, offsets: NDArray[Any]) -> memoryview:
        """Return whole rows, none of them long."""
        import numpy as np

        count = len(offsets) - 1
        begin, end = int(offsets[0]), int(offsets[-1])
        ends = offsets - begin
        raw = np.frombuffer(self._valid(self._text.read(begin, end - begin), ends), np.uint8)
        shown = np.empty(4 * count + end - begin, np.uint8)
        lengths = (ends[:-1] + 4 * np.arange(count))[:, np.newaxis] + np.arange(4)
        is_text = np.ones(len(shown), bool)
        is_text[lengths] = False
        shown[lengths] = np.diff(offsets).astype("<u4").view(np.uint8).reshape(count, 4)
        shown[is_text] = raw
        return shown.data

    def _valid(self, text: bytes, ends: NDArray[Any]) -> bytes:
        """Return the text of rows with each row valid UTF-8 by itself."""
        import numpy as np

        if not self._is_text or text.isascii():
            return text
        try:
            text.decode()
        except UnicodeDecodeError:
            is_valid = False
        else:  # the end of a row may cut a character
            starts = ends[ends < len(text)]
            is_valid = not (np.frombuffer(text, np.uint8)[starts] & 0xC0 == 0x80).any()
        if is_valid:
            return text
        return b"".join(_marked(text[a:b]) for a, b in pairwise(ends.tolist()))


class _Marked(Made):
    """Text with question marks for bytes that are not UTF-8."""

    unit = 1

    def __init__(self, text: Data) -> None:
        self._text = text

    @property
    def size(self) -> int:
        return self._text.size

    def make(self, first: int, count: int) -> bytes:
        # Whether a byte is valid depends on the bytes of one character around it.
        start = max(0, first - _CHARACTER + 1)
        end = min(self.size, first + count + _CHARACTER - 1)
        return _marked(self._text.read(start, end - start))[first - start : first - start + count]


def _marked(text: bytes) -> bytes:
    return text.decode("utf-8", _MARKS).encode()


class ListPages(RaggedPages):
    """Lists of numbers: a bit an entry for whether it continues a row, one for whether it has a value; the values.

    An empty row is an entry without a value. Only the offsets say how many of these a page has, so each section of
    bits has space for as many as there are rows. Unused bits are 0.
    """

    def __init__(self, values: Data, kind: Kind, offsets: Offsets, rows_a_group: int) -> None:
        self._values = values
        self._kind = kind
        width = kind.width * offsets.total / max(1, offsets.rows)
        super().__init__(offsets, rows_for(max(1, width), min(MOST_ROWS, rows_a_group)))

    def entries(self, first: int, end: int) -> int:
        offsets = self._offsets
        return offsets.at(end) - offsets.at(first) + offsets.empty(first, end) if end > first else 0

    def _position(self, row: int, offset: int) -> int:
        pages = -(-row // self.rows_a_page)
        levels = 2 * (pages * LEVELS_HEAD + self._level_bytes(pages, row, offset))
        return pages * HEADER + levels + self._value_bytes(pages, offset)

    @staticmethod
    def _level_bytes(pages: int, row: int, offset: int) -> int:
        """Return the size of the bits of a run of pages, rounded so that two such sizes give that of a page."""
        return pages + (row + offset) // 8

    def _value_bytes(self, pages: int, offset: int) -> int:
        return pages + offset // 8 if self._kind.is_bits else offset * self._kind.width

    def _entries(self, offsets: NDArray[Any]) -> int:
        return int(offsets[-1] - offsets[0]) + int((offsets[1:] == offsets[:-1]).sum())

    def _body(self, row: int, offsets: NDArray[Any]) -> Sequence[Data]:
        begin, end = int(offsets[0]), int(offsets[-1])
        size = self._level_bytes(1, row + len(offsets) - 1, end) - self._level_bytes(0, row, begin)
        head = Computed(LEVELS_HEAD, lambda: levels_head(size))
        width = self._value_bytes(1, end) - self._value_bytes(0, begin)
        return [
            head, _Levels(size, offsets, is_value=False), head, _Levels(size, offsets, is_value=True),
            Bits(self._values, begin, end - begin, width) if self._kind.is_bits
            else Slice(self._values, begin * self._kind.width, width),
        ]


class _Levels(SizedData, Made):
    """``size`` bytes of levels of one bit for each entry of a page, then 0.

    A bit says whether the entry continues a row, or if ``is_value``, whether it has a value.
    """

    unit = 1
    at_once = PIECE // 8

    def __init__(self, size: int, offsets: NDArray[Any], is_value: bool) -> None:
        super().__init__(size)
        self._offsets, self._is_value = offsets, is_value

    def make(self, first: int, count: int) -> bytes:
        import numpy as np

        lengths = np.diff(self._offsets)
        ends = np.cumsum(np.maximum(lengths, 1))
        zeros = (ends - np.maximum(lengths, 1))[lengths == 0 if self._is_value else slice(None)]
        begin, end = 8 * first, 8 * (first + count)
        levels = np.zeros(end - begin, np.uint8)
        levels[: max(0, int(ends[-1]) - begin)] = 1
        a, b = np.searchsorted(zeros, (begin, end))
        levels[zeros[a:b] - begin] = 0
        return np.packbits(levels, bitorder="little").tobytes()
