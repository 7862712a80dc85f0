"""Columns whose rows differ in length: text, and lists of numbers. Any thread."""

from __future__ import annotations

import codecs
import struct
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from glassfs.cache import BlockCache
from glassfs.content import Computed, Data, Made, Slice, Stream, Zeros
from glassfs.content.data import SizedData
from glassfs.content.rows import Offsets
from glassfs.content.texts import with_lengths
from glassfs.errors import Damaged
from glassfs.sizes import PIECE
from glassfs.view.parquet.kinds import ParquetType
from glassfs.view.parquet.pages import HEADER, LEVELS_HEAD, Pages, levels_head, packed_bits, packed_levels, rows_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MARKS = "glassfs-question-marks"


def _marks(error: UnicodeError) -> tuple[str, int]:
    """Replace each byte that is not UTF-8 by a question mark, so that other bytes keep their positions."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARKS, _marks)


class RaggedPages(Pages):
    """Pages of rows that differ in length. Subclasses define where pages begin and what they hold."""

    def __init__(self, offsets: Offsets, width: float, rows_a_group: int) -> None:
        # Not too many rows, as reading any range of a page reads all their offsets.
        super().__init__(offsets.rows, rows_for(width, min(PIECE // 64, rows_a_group)))
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
        import numpy as np

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
