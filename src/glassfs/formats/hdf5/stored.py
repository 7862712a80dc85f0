"""Stored chunks of a dataset: which there are, and the data of each (§4, §5). Any thread.

A chunk is a block of the cache. One for which memory has no room is decoded as a stream, which the cache keeps in a
file; a shuffle is then undone for the bytes that are read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Data, Extent, Made, Rendered, Stream
from glassfs.content.data import SizedData
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import filters
from glassfs.formats.hdf5.description import Filter
from glassfs.sizes import PIECE
from glassfs.source import Source

RECORD = struct.Struct("<4Q")
"""A stored chunk in the index: its number, offset, size and filter mask."""
NOT_FOUND = 1 << 32
"""In the filter mask of a chunk: the library lists it, but does not find it by its key (§4)."""


class StoredChunk(NamedTuple):
    """Where a chunk is in the source; bit i of ``mask`` says that filter i was left out."""

    start: int
    size: int
    mask: int


class ChunkIndex:
    """The stored chunks of a dataset by number, a RECORD each in ``data``. Numbers must rise."""

    def __init__(self, data: Rendered) -> None:
        self._data = data

    def find(self, first: int, count: int = 1) -> list[StoredChunk | None]:
        """Return ``count`` chunks from number ``first`` on, None for those that are not stored. Raises Damaged."""
        end = self._data.size // RECORD.size
        # In most datasets all chunks are stored, and each record is at the place of its number.
        is_there = first < end and self._number(first) == first
        start = first if is_there else bisect_left(range(end), first, key=self._number)
        records = self._data.read(start * RECORD.size, min(count, end - start) * RECORD.size)
        # As numbers rise, the records of the next ``count`` chunks are among so many records from here on.
        known = {number: StoredChunk(*chunk) for number, *chunk in RECORD.iter_unpack(records)}
        return [known.get(number) for number in range(first, first + count)]

    def _number(self, at: int) -> int:
        return int.from_bytes(self._data.read(at * RECORD.size, 8), "little")


def checked_index(raw: bytearray) -> bytearray:
    """Return the index. Raises Damaged if two chunks have the same number, or the same bytes."""
    import numpy as np

    numbers, offsets, sizes, _ = np.frombuffer(raw, np.uint64).reshape(-1, 4).T
    if (numbers[1:] <= numbers[:-1]).any():
        raise Damaged("two of its chunks have the same place")
    # Sorted by offset, a chunk that begins before the end of the previous one overlaps it. No writer shares bytes
    # between chunks: one of the two places is wrong, and nothing says which.
    order = np.argsort(offsets, kind="stable")
    if (offsets[order][1:] - offsets[order][:-1] < sizes[order][:-1]).any():
        raise Damaged("two of its chunks overlap in the file")
    return raw


def chunk_data(
    source: Source, cache: BlockCache, used: Sequence[Filter], size: int, stored: StoredChunk,
) -> Data:
    """Return the ``size`` raw bytes of a chunk. Raises Damaged if the chunk cannot be stored so."""
    def damage(reason: str) -> Damaged:
        return source.damage(reason, f"chunk at {stored.start}")

    if stored.mask >= NOT_FOUND:
        raise damage("is in the list of chunks, but is not found by its key")
    if stored.size > filters.most_stored(size):
        raise damage(f"has {stored.size} bytes, far more than it needs")
    applied = filters.active(used, stored.mask)
    if not applied:
        if stored.size != size:
            raise damage(f"has {stored.size} bytes, but its shape needs {size}")
        return Extent(source, stored.start, stored.size)
    chunk = Chunk(source, cache, applied, size, stored)
    # A block of more bytes than the cache keeps in memory goes through a file, and so does one for which decoding in
    # memory would take more than the whole budget.
    is_large = chunk.cost > cache.budget or size > cache.largest_cached
    if not (is_large and filters.are_streamed(applied)):
        return chunk
    # What is left after the shuffle is decoded front to back into a file of the cache. The shuffle needs bytes from all
    # over it, and is undone for each range that is read.
    is_shuffled = applied[0].code == filters.Code.SHUFFLE
    data: Data = Extent(source, stored.start, stored.size)
    if len(applied) > is_shuffled:
        data = _streamed(source, cache, applied[is_shuffled:], size, stored)
    if not is_shuffled:
        return data
    try:
        item, count = filters.planes_of(applied[0], size)
    except Damaged as error:
        raise damage(error.reason) from error
    return _Unshuffled(data, item, count) if item > 1 else data


class Chunk(SizedData):
    """A chunk of ``size`` raw bytes to which filters were ``applied``, decoded as a whole. It is its own recipe."""

    def __init__(
        self, source: Source, cache: BlockCache, applied: list[Filter], size: int, stored: StoredChunk,
    ) -> None:
        super().__init__(size)
        self._source, self._cache, self._applied, self._stored = source, cache, applied, stored
        self.key = (source.version, "chunk", stored, tuple(applied), size)
        self.cost = self.stream_cost = 2 * stored.size + 3 * size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._cache.read_into(self, buffer, offset)

    def whole(self) -> bytearray:
        made = bytearray(self.size)
        self.fill(memoryview(made))
        return made

    def pieces(self) -> Iterator[bytes]:
        whole = self.whole()
        for offset in range(0, len(whole), PIECE):
            yield bytes(whole[offset : offset + PIECE])

    def fill(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with all bytes, past the cache."""
        with self._cache.waiting():
            stored = self._source.buffer(self._stored.start, self._stored.size)
        try:
            filters.undo(stored, self._applied, buffer)
        except Damaged as error:
            raise error.at(self._source.name, f"chunk at {self._stored.start}") from error


def _streamed(source: Source, cache: BlockCache, applied: list[Filter], size: int, stored: StoredChunk) -> Stream:
    """Return the ``size`` bytes of a large chunk before some filters were applied, which are undone as a stream."""
    def stored_pieces() -> Iterator[bytes]:
        pieces = Extent(source, stored.start, stored.size).pieces()
        while True:
            with cache.waiting():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def pieces() -> Iterator[bytes]:
        try:
            yield from filters.stream(stored_pieces(), applied, size)
        except Damaged as error:
            raise error.at(source.name, f"chunk at {stored.start}") from error

    key = (source.version, "streamed", stored, tuple(applied), size)
    return Stream(cache, key, pieces, lambda: 3 * PIECE + filters.stream_cost(applied, size), size)


class _Unshuffled(SizedData, Made):
    """``count`` items of ``unit`` bytes of which ``data`` have all first bytes, then all second ones and so on.

    Bytes behind them that are no whole item are unchanged.
    """

    def __init__(self, data: Data, unit: int, count: int) -> None:
        super().__init__(data.size)
        self._data, self._unit, self._count = data, unit, count

    @property
    def unit(self) -> int:
        return self._unit

    def make(self, first: int, count: int) -> bytes:
        import numpy as np

        some = min(count, self._count - first)
        items = np.empty((some, self._unit), np.uint8)
        # All first bytes of the items are together, then all second ones: one read for each byte of an item.
        for number in range(self._unit):
            items[:, number] = np.frombuffer(self._data.read(number * self._count + first, some), np.uint8)
        end = self._unit * self._count
        return items.tobytes() + (self._data.read(end, self.size - end) if some < count else b"")


class Filled(SizedData):
    """``count`` elements that are all ``fill``."""

    __slots__ = ("_fill",)

    def __init__(self, fill: bytes, count: int) -> None:
        super().__init__(len(fill) * count)
        self._fill = fill

    def read_into(self, buffer: memoryview, offset: int) -> None:
        offset %= len(self._fill)
        # Copying a pattern of about a piece is much faster than element by element. It begins in the middle of an
        # element if the range does, and is therefore one element longer.
        copies = min(PIECE, len(buffer)) // len(self._fill) or 1
        pattern = (self._fill * (copies + 1))[offset:]
        step = copies * len(self._fill)
        for start in range(0, len(buffer), step):
            work.check()
            piece = buffer[start : start + step]
            piece[:] = pattern[: len(piece)]
