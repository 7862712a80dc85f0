"""Stored chunks of a dataset: which there are, and the data of each (§4, §5). Any thread.

A chunk is a block of the cache.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Data, Extent, Rendered
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
    return Chunk(source, cache, applied, size, stored)


class Chunk(Rendered):
    """A chunk of ``size`` raw bytes to which filters were ``applied``, decoded as a whole."""

    def __init__(
        self, source: Source, cache: BlockCache, applied: list[Filter], size: int, stored: StoredChunk,
    ) -> None:
        key = (source.version, "chunk", stored, tuple(applied), size)
        super().__init__(cache, key, bytearray, size, 2 * stored.size + 3 * size)
        self._source, self._applied, self._stored = source, applied, stored

    def whole(self) -> bytearray:
        made = bytearray(self.size)
        self.fill(memoryview(made))
        return made

    def fill(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with all bytes, past the cache."""
        with self._cache.waiting():
            stored = self._source.buffer(self._stored.start, self._stored.size)
        try:
            filters.undo(stored, self._applied, buffer)
        except Damaged as error:
            raise error.at(self._source.name, f"chunk at {self._stored.start}") from error


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
