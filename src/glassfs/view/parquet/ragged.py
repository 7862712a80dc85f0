"""Columns whose rows differ in length: text, and lists of numbers.

The offsets of the rows of a page are read for each range of it, and checked. What a range needs is made from them and
from the values around it; of a row of any length no more than what is asked for.
"""

from __future__ import annotations

import codecs
import struct
from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassfs.content import Data
from glassfs.errors import Damaged
from glassfs.view.parquet.kinds import Kind
from glassfs.view.parquet.pages import (
    HEADER,
    LEVELS_HEAD,
    MOST_ROWS,
    PAGE,
    Found,
    Pages,
    demand_possible,
    levels_head,
    page_header,
    rows_for,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG = 64 << 10
"""Text rows that are longer are made in parts."""
_CHARACTER = 4
_SCANNED = 1 << 17
_MARKS = "glassfs-question-marks"


def _marks(error: UnicodeError) -> tuple[str, int]:
    """For bytes that are not UTF-8, a question mark each: what is next to them stays where it is."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARKS, _marks)


class Offsets:
    """Where the rows begin among ``total`` values, and the end."""

    def __init__(self, data: Data, dtype: str, rows: int, total: int) -> None:
        self._data, self._dtype, self.rows, self.total = data, dtype, rows, total
        self._width = int(dtype[2:])
        self._form = "<" + {"u4": "I", "u8": "Q", "i4": "i", "i8": "q"}[dtype[1:]]

    def at(self, row: int) -> int:
        """Raises Damaged where it points out of the values."""
        offset = 0
        if row or self.rows:
            (offset,) = struct.unpack(self._form, self._data.read(row * self._width, self._width))
        is_right = 0 <= offset <= self.total and (row > 0 or offset == 0) and (row < self.rows or offset == self.total)
        if not is_right:
            raise _damage()
        return int(offset)

    def of(self, first: int, end: int) -> NDArray[Any]:
        """Those of the rows ``[first, end]``. Raises Damaged unless they rise within the values."""
        import numpy as np

        raw = self._data.read(first * self._width, (end - first + 1) * self._width)
        offsets = np.frombuffer(raw, self._dtype)
        if (offsets[1:] < offsets[:-1]).any() or (first == 0 and offsets[0] != 0) or offsets[-1] > self.total:
            raise _damage()
        if offsets[0] < 0 or (end == self.rows and offsets[-1] != self.total):
            raise _damage()
        return offsets.astype(np.int64)

    def empty(self, first: int, end: int) -> int:
        """How many of the rows ``[first, end)`` have no value."""
        found = 0
        for row in range(first, end, _SCANNED):
            offsets = self.of(row, min(row + _SCANNED, end))
            found += int((offsets[1:] == offsets[:-1]).sum())
        return found


class Even(Offsets):
    """Those of rows of one length."""

    def __init__(self, length: int, rows: int) -> None:
        self._length, self.rows, self.total = length, rows, length * rows

    def at(self, row: int) -> int:
        return row * self._length

    def of(self, first: int, end: int) -> NDArray[Any]:
        import numpy as np

        return np.arange(first, end + 1, dtype=np.int64) * self._length

    def empty(self, first: int, end: int) -> int:
        return 0 if self._length else end - first


def _damage() -> Damaged:
    return Damaged("the offsets of its rows do not rise from 0 to its end")


class RaggedPages(Pages):
    """Pages of rows that differ in length. Subclasses say how much stands before a row, and what is in a page."""

    def __init__(self, offsets: Offsets, rows_a_page: int) -> None:
        self._offsets = offsets
        self._rows_a_page = rows_a_page
        self._found = Found()

    @property
    def rows_a_page(self) -> int:
        return self._rows_a_page

    @property
    def size(self) -> int:
        rows = self._offsets.rows
        return self._position(rows, self._offsets.total) if rows else 0

    def start(self, row: int) -> int:
        return self._position(row, self._offsets.at(row)) if row else 0

    def read_into(self, buffer: memoryview, offset: int) -> None:
        rows = self._offsets.rows
        while buffer:
            row, start = self._found.page(self, rows, offset)
            end_row = min(row + self._rows_a_page, rows)
            offsets = self._offsets.of(row, end_row)
            end = self._position(end_row, int(offsets[-1]))
            if not start <= offset < end or start != self._position(row, int(offsets[0])):
                raise _damage()
            size = end - start - HEADER
            demand_possible(size)
            taken = min(len(buffer), end - offset)
            self._read_page(buffer[:taken], offset - start, row, offsets, size)
            buffer, offset = buffer[taken:], offset + taken

    def _read_page(self, buffer: memoryview, offset: int, row: int, offsets: NDArray[Any], size: int) -> None:
        if offset < HEADER:
            header = page_header(size, self._entries(offsets))
            taken = min(len(buffer), HEADER - offset)
            buffer[:taken] = header[offset : offset + taken]
            buffer, offset = buffer[taken:], HEADER
        if buffer:
            self._read_body(buffer, offset - HEADER, row, offsets)

    @abstractmethod
    def _position(self, row: int, offset: int) -> int:
        """Where the page begins whose first row this is, if so many values stand before it."""

    @abstractmethod
    def _entries(self, offsets: NDArray[Any]) -> int:
        """The values of the rows of a page, those that are not there counted."""

    @abstractmethod
    def _read_body(self, buffer: memoryview, offset: int, row: int, offsets: NDArray[Any]) -> None:
        """Bytes of the page of these rows behind its header."""


class TextPages(RaggedPages):
    """Rows of bytes, each with its length before it; of text what is not UTF-8 is shown as question marks."""

    def __init__(self, text: Data, offsets: Offsets, rows_a_group: int, is_text: bool) -> None:
        width = 4 + offsets.total / max(1, offsets.rows)
        super().__init__(offsets, rows_for(width, min(MOST_ROWS, rows_a_group)))
        self._text = text
        self._is_text = is_text

    def entries(self, first: int, end: int) -> int:
        return end - first

    def _position(self, row: int, offset: int) -> int:
        return HEADER * -(-row // self._rows_a_page) + 4 * row + offset

    def _entries(self, offsets: NDArray[Any]) -> int:
        return len(offsets) - 1

    def _read_body(self, buffer: memoryview, offset: int, row: int, offsets: NDArray[Any]) -> None:
        import numpy as np

        starts = offsets - offsets[0] + 4 * np.arange(len(offsets))
        is_long = np.diff(offsets) > LONG
        first = int(np.searchsorted(starts, offset, "right")) - 1
        while buffer:
            if is_long[first]:
                end = first + 1
                inside = offset - int(starts[first])
                taken = min(len(buffer), int(starts[end]) - offset)
                self._read_long(buffer[:taken], inside, int(offsets[first]), int(offsets[end]))
            else:
                wanted = min(offset + len(buffer), int(starts[first]) + PAGE)
                end = max(first + 1, int(np.searchsorted(starts, wanted, "left")))
                long = np.flatnonzero(is_long[first:end])
                if len(long):
                    end = first + int(long[0])
                inside = offset - int(starts[first])
                made = self._rows(offsets[first : end + 1])[inside:]
                taken = min(len(buffer), len(made))
                buffer[:taken] = made[:taken]
            buffer, offset, first = buffer[taken:], offset + taken, end

    def _rows(self, offsets: NDArray[Any]) -> memoryview:
        """Whole rows, none of them long."""
        import numpy as np

        count = len(offsets) - 1
        begin, end = int(offsets[0]), int(offsets[-1])
        ends = offsets - begin
        raw = np.frombuffer(self._right(self._text.read(begin, end - begin), ends), np.uint8)
        shown = np.empty(4 * count + end - begin, np.uint8)
        places = (ends[:-1] + 4 * np.arange(count))[:, np.newaxis] + np.arange(4)
        is_text = np.ones(len(shown), bool)
        is_text[places] = False
        shown[places] = np.diff(offsets).astype("<u4").view(np.uint8).reshape(count, 4)
        shown[is_text] = raw
        return shown.data

    def _right(self, text: bytes, ends: NDArray[Any]) -> bytes:
        """The text of rows, each of them UTF-8 by itself."""
        import numpy as np

        if not self._is_text or text.isascii():
            return text
        try:
            text.decode()
        except UnicodeDecodeError:
            is_right = False
        else:  # a character may have been cut by the end of a row
            starts = ends[ends < len(text)]
            is_right = not (np.frombuffer(text, np.uint8)[starts] & 0xC0 == 0x80).any()
        if is_right:
            return text
        return b"".join(_marked(text[a:b]) for a, b in pairwise(ends.tolist()))

    def _read_long(self, buffer: memoryview, offset: int, begin: int, end: int) -> None:
        """Bytes of one row, with its length."""
        head = struct.pack("<I", end - begin)
        if offset < len(head):
            taken = min(len(buffer), len(head) - offset)
            buffer[:taken] = head[offset : offset + taken]
            buffer, offset = buffer[taken:], len(head)
        position = begin + offset - len(head)
        while buffer:
            taken = min(len(buffer), PAGE)
            if self._is_text:
                # Whether a byte is right, those of one character around it tell.
                first = max(begin, position - _CHARACTER + 1)
                last = min(end, position + taken + _CHARACTER - 1)
                around = _marked(self._text.read(first, last - first))
                buffer[:taken] = around[position - first : position - first + taken]
            else:
                self._text.read_into(buffer[:taken], position)
            buffer, position = buffer[taken:], position + taken


def _marked(text: bytes) -> bytes:
    return text.decode("utf-8", _MARKS).encode()


class ListPages(RaggedPages):
    """Lists of numbers: a bit an entry that tells whether a row goes on, one whether there is a value, and the values.

    An empty row is an entry without a value. How many of these a page has only its offsets tell; so there is room for
    as many as there are rows, and the bits that are not used are 0.
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
        pages = -(-row // self._rows_a_page)
        return pages * (HEADER + 2 * LEVELS_HEAD) + 2 * self._level_bytes(pages, row, offset) + self._value_bytes(
            pages, offset
        )

    @staticmethod
    def _level_bytes(pages: int, row: int, offset: int) -> int:
        """Of a run of pages: rounded so that what a page has follows from where it begins and ends."""
        return pages + (row + offset) // 8

    def _value_bytes(self, pages: int, offset: int) -> int:
        return pages + offset // 8 if self._kind.is_bits else offset * self._kind.width

    def _entries(self, offsets: NDArray[Any]) -> int:
        return int(offsets[-1] - offsets[0]) + int((offsets[1:] == offsets[:-1]).sum())

    def _read_body(self, buffer: memoryview, offset: int, row: int, offsets: NDArray[Any]) -> None:
        import numpy as np

        begin, end = int(offsets[0]), int(offsets[-1])
        rows = len(offsets) - 1
        levels = self._level_bytes(1, row + rows, end) - self._level_bytes(0, row, begin)
        entries = self._entries(offsets)
        lengths = np.diff(offsets)
        firsts = np.cumsum(np.maximum(lengths, 1)) - np.maximum(lengths, 1)
        section = LEVELS_HEAD + levels
        for number, zeros in enumerate((firsts, firsts[lengths == 0])):
            place = offset - number * section
            if buffer and place < section:
                taken = min(len(buffer), section - place)
                _read_levels(buffer[:taken], place, levels, entries, zeros)
                buffer, offset = buffer[taken:], offset + taken
        if buffer:
            self._read_values(buffer, offset - 2 * section, begin, end)

    def _read_values(self, buffer: memoryview, offset: int, begin: int, end: int) -> None:
        kind = self._kind
        if not kind.is_bits:
            self._values.read_into(buffer, begin * kind.width + offset)
            return
        import numpy as np

        while buffer:
            taken = min(len(buffer), PAGE // 8)
            first = min(begin + offset * 8, end)
            raw = self._values.read(first, min(taken * 8, end - first))
            bits = np.packbits(np.frombuffer(raw, np.uint8), bitorder="little").tobytes()
            buffer[:taken] = bits.ljust(taken, b"\0")
            buffer, offset = buffer[taken:], offset + taken


def _read_levels(buffer: memoryview, offset: int, size: int, entries: int, zeros: NDArray[Any]) -> None:
    """Bytes of a section of levels of which all entries are 1 but those at ``zeros``, which rise."""
    import numpy as np

    if offset < LEVELS_HEAD:
        head = levels_head(size)
        taken = min(len(buffer), LEVELS_HEAD - offset)
        buffer[:taken] = head[offset : offset + taken]
        buffer, offset = buffer[taken:], LEVELS_HEAD
    offset -= LEVELS_HEAD
    while buffer:
        taken = min(len(buffer), PAGE // 8)
        first, end = offset * 8, (offset + taken) * 8
        levels = np.zeros(end - first, np.uint8)
        levels[: max(0, entries - first)] = 1
        a, b = np.searchsorted(zeros, (first, end))
        levels[zeros[a:b] - first] = 0
        buffer[:taken] = np.packbits(levels, bitorder="little").data
        buffer, offset = buffer[taken:], offset + taken
