"""Stored chunks of a dataset: which there are, and how the cache makes their bytes (§4, §5). Any thread.

A chunk for which memory has no room is decoded as a stream, which the cache keeps in a file. A shuffle needs all
bytes before it has the first one: they are a block of their own, in a file as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Extent, Rendered
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import filters
from glassfs.formats.hdf5.description import Filter
from glassfs.source import Source

RECORD = 32
"""Bytes of a stored chunk in the index: its number, offset, size and filter mask, 64 bits each."""
NOT_FOUND = 1 << 32
"""In the filter mask of a chunk: the library lists it, but does not find it by its key (§4)."""
PIECE = 1 << 20
PIECES_COST = 4 * PIECE

_RECORD = struct.Struct("<4Q")
Stored: TypeAlias = "tuple[int, ...]"
"""Offset, size and filter mask of a stored chunk."""
Convert: TypeAlias = "Callable[[bytes | bytearray], bytes | bytearray]"


class Coding(NamedTuple):
    """How chunks are stored: ``stored`` bytes of an element become ``shown`` ones.

    ``convert`` takes the raw bytes of a chunk, or of some of its elements; None if they are shown unchanged.
    """

    filters: tuple[Filter, ...]
    stored: int
    shown: int
    convert: Convert | None


class ChunkIndex:
    """The stored chunks of a dataset by number, RECORD bytes each in ``data``. Numbers must rise."""

    def __init__(self, data: Rendered) -> None:
        self._data = data

    def find(self, number: int) -> Stored | None:
        """Return offset, size and filter mask of a chunk, or None if it is not stored. Raises Damaged."""
        count = self._data.size // RECORD
        low, high = 0, count
        at = number  # right if all chunks are stored
        while low < high:
            if not low <= at < high:
                at = (low + high) // 2
            record = self._data.read(at * RECORD, RECORD)
            found, *place = _RECORD.unpack(record)
            if found == number:
                return tuple(place)
            if found < number:
                low = at + 1
            else:
                high = at
            at = -1
        return None

    def among(self, first: int, count: int) -> list[Stored | None]:
        """Return the same for ``count`` chunks from number ``first`` on. Raises Damaged."""
        if (first + count) * RECORD <= self._data.size:
            # All are stored, in most datasets, and each record is then at the place of its number.
            records = list(_RECORD.iter_unpack(self._data.read(first * RECORD, count * RECORD)))
            if records[0][0] == first and records[-1][0] == first + count - 1:
                return [record[1:] for record in records]
        return [self.find(number) for number in range(first, first + count)]


def checked_index(raw: bytearray) -> bytearray:
    """Return the index. Raises Damaged if two chunks have the same number, or the same bytes."""
    import numpy as np

    numbers = np.frombuffer(raw, np.uint64)[:: RECORD // 8]
    if (numbers[1:] <= numbers[:-1]).any():
        raise Damaged("two of its chunks have the same place")
    offsets, sizes = (np.frombuffer(raw, np.uint64)[column :: RECORD // 8] for column in (1, 2))
    order = np.argsort(offsets, kind="stable")
    if (offsets[order][1:] - offsets[order][:-1] < sizes[order][:-1]).any():
        raise Damaged("two of its chunks overlap in the file")
    return raw


class Chunk:
    """The recipe of a chunk at ``start`` of the source, where it has ``stored`` bytes; ``elements`` of them."""

    def __init__(
        self, source: Source, cache: BlockCache, coding: Coding, elements: int, start: int, stored: int, mask: int,
    ) -> None:
        self._source, self._cache, self._coding = source, cache, coding
        self.start, self.stored = start, stored
        self._applied = filters.active(coding.filters, mask)
        self._raw = elements * coding.stored
        self.size = elements * coding.shown
        self.key = (source.version, "chunk", start, stored, mask, coding)

    @property
    def cost(self) -> int:
        return self.size + self.stream_cost if self.is_large else self._whole_cost

    @property
    def stream_cost(self) -> int:
        if not self.is_large:
            return self._whole_cost
        return PIECES_COST + filters.stream_cost(self._applied, self._raw)

    @property
    def _whole_cost(self) -> int:
        return 2 * self.stored + 2 * self._raw + self.size

    @property
    def is_large(self) -> bool:
        is_short = self._whole_cost > self._cache.budget
        return (is_short or self.size > self._cache.largest_cached) and filters.are_streamed(self._applied, is_short)

    def whole(self) -> bytes | bytearray:
        if self.is_large:
            return _joined(self.pieces(), self.size)
        try:
            with self._cache.waiting():
                stored = self._source.buffer(self.start, self.stored)
            return self._decoded(stored)
        except Damaged as error:
            raise self._at(error) from error

    def _decoded(self, stored: bytearray) -> bytes | bytearray:
        raw = filters.undone(stored, self._applied, self._raw)
        return raw if self._coding.convert is None else self._coding.convert(raw)

    def fill(self, buffer: memoryview, stored: bytearray | None = None) -> None:
        """Fill ``buffer`` with all bytes of a chunk that is not large; its ``stored`` bytes may be read already."""
        try:
            if stored is None:
                with self._cache.waiting():
                    stored = self._source.buffer(self.start, self.stored)
            if self._coding.convert is None:
                filters.undone_into(buffer, stored, self._applied)
            else:
                buffer[:] = self._decoded(stored)
        except Damaged as error:
            raise self._at(error) from error

    def pieces(self) -> Iterator[bytes | bytearray]:
        if not self.is_large:
            whole = memoryview(self.whole())
            for offset in range(0, len(whole), PIECE):
                yield bytes(whole[offset : offset + PIECE])
            return
        try:
            if not filters.has_compressor(self._applied):
                filters.demand(self.stored, filters.size_before(self._applied, self._raw))
            raw = self._undone(0)
            convert = self._coding.convert
            yield from _checked(raw if convert is None else map(convert, _aligned(raw, self._coding.stored)))
        except Damaged as error:
            raise self._at(error) from error

    def _undone(self, left: int) -> Iterator[bytes]:
        """Yield the bytes to which only the first ``left`` filters are applied; empty ones while others are awaited."""
        if left == len(self._applied):
            return self._stored_pieces()
        used, size = self._applied[left], filters.size_before(self._applied[:left], self._raw)
        if used.code != filters.SHUFFLE:
            is_known = not filters.has_compressor(self._applied[:left])
            return filters.streamed(used, self._undone(left + 1), size if is_known else None)
        return self._unshuffled(left, used, size)

    def _stored_pieces(self) -> Iterator[bytes]:
        pieces = Extent(self._source, self.start, self.stored).pieces()
        while True:
            with self._cache.waiting():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def _unshuffled(self, left: int, used: Filter, size: int) -> Iterator[bytes]:
        import numpy as np

        item, count = filters.planes_of(used, size)
        shuffled = _Shuffled((*self.key, left), size, self.stream_cost, lambda: _checked(self._undone(left + 1)))
        for end in range(PIECE, size, PIECE):  # a stretch at a time, so that this can be stopped
            self._read(shuffled, end, 1)
            yield b""
        at_once = max(1, PIECE // item)
        for first in range(0, count, at_once):
            some = min(at_once, count - first)
            items = np.empty((some, item), np.uint8)
            for number in range(item):
                items[:, number] = np.frombuffer(self._read(shuffled, number * count + first, some), np.uint8)
            yield items.tobytes()
        for first in range(item * count, size, PIECE):
            yield self._read(shuffled, first, min(PIECE, size - first))

    def _read(self, shuffled: _Shuffled, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self._cache.read_into(shuffled, memoryview(buffer), offset)
        return bytes(buffer)

    def _at(self, error: Damaged) -> Damaged:
        return error.at(self._source.name, f"chunk at {self.start}")


class _Shuffled(NamedTuple):
    """The recipe of the bytes of a large chunk before a shuffle is undone."""

    key: tuple[object, ...]
    size: int
    stream_cost: int
    pieces: Callable[[], Iterator[bytes | bytearray]]

    @property
    def cost(self) -> int:
        return self.size + self.stream_cost

    def whole(self) -> bytes | bytearray:
        return _joined(self.pieces(), self.size)


def _joined(pieces: Iterable[bytes | bytearray], size: int) -> bytearray:
    buffer = bytearray(size)
    at = 0
    for piece in pieces:
        buffer[at : at + len(piece)] = piece
        at += len(piece)
    filters.demand(at, size)
    return buffer


def _checked(pieces: Iterable[bytes | bytearray]) -> Iterator[bytes | bytearray]:
    """Yield the same bytes, the last ones only after the pieces have ended: then all checksums were right."""
    held: bytes | bytearray = b""
    for piece in pieces:
        if piece:
            piece, held = held, piece
        yield piece
    yield held


def _aligned(pieces: Iterable[bytes], item: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of whole items."""
    rest = b""
    for piece in pieces:
        whole = rest + piece
        end = len(whole) // item * item
        rest = whole[end:]
        yield whole[:end]


def fill_into(buffer: memoryview, fill: bytes, offset: int) -> None:
    """Fill ``buffer`` with copies of ``fill``, zeros if it is empty, as from ``offset`` of such bytes on."""
    fill = fill or b"\0"
    offset %= len(fill)
    copies = min(PIECE, len(buffer)) // len(fill) or 1
    pattern = (fill * (copies + 1))[offset:]
    step = copies * len(fill)
    for start in range(0, len(buffer), step):
        work.check()
        piece = buffer[start : start + step]
        piece[:] = pattern[: len(piece)]
