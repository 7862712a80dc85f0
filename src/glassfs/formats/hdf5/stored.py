"""Stored chunks of a dataset: which there are, and the data of each (§4, §5). Any thread.

A chunk is a block of the cache. One for which memory has no room is decoded as a stream, which the cache keeps in a
file; a shuffle and a conversion of its values are then undone for the bytes that are read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Converted, Data, Extent, Made, Rendered, Stream
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

Convert: TypeAlias = "Callable[[bytes | bytearray], bytes | bytearray]"


class StoredChunk(NamedTuple):
    """Where a chunk is in the source; bit i of ``mask`` says that filter i was left out."""

    start: int
    size: int
    mask: int


class Coding(NamedTuple):
    """How chunks are stored: ``stored`` bytes of an element become ``shown`` ones.

    ``convert`` takes the raw bytes of a chunk, or of some of its elements; None if they are shown unchanged.
    """

    filters: tuple[Filter, ...]
    stored: int
    shown: int
    convert: Convert | None


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
    order = np.argsort(offsets, kind="stable")
    if (offsets[order][1:] - offsets[order][:-1] < sizes[order][:-1]).any():
        raise Damaged("two of its chunks overlap in the file")
    return raw


def chunk_data(source: Source, cache: BlockCache, coding: Coding, elements: int, stored: StoredChunk) -> Data:
    """Return the data of a chunk as it is shown. Raises Damaged if the chunk cannot be stored so."""
    raw = elements * coding.stored

    def damage(reason: str) -> Damaged:
        return source.damage(reason, f"chunk at {stored.start}")

    if stored.mask >= NOT_FOUND:
        raise damage("is in the list of chunks, but is not found by its key")
    if stored.size > filters.most_stored(raw):
        raise damage(f"has {stored.size} bytes, far more than it needs")
    applied = filters.active(coding.filters, stored.mask)
    data: Data = Extent(source, stored.start, stored.size)
    if not applied and stored.size != raw:
        raise damage(f"has {stored.size} bytes, but its shape needs {raw}")
    if applied:
        chunk = Chunk(source, cache, coding, elements, stored)
        is_large = chunk.cost > cache.budget or chunk.size > cache.largest_cached
        if not (is_large and filters.are_streamed(applied)):
            return chunk
        is_shuffled = applied[0].code == filters.Code.SHUFFLE
        if len(applied) > is_shuffled:
            data = _streamed(source, cache, applied[is_shuffled:], raw, stored)
        if is_shuffled:
            try:
                item, count = filters.planes_of(applied[0], raw)
            except Damaged as error:
                raise damage(error.reason) from error
            data = _Unshuffled(data, item, count) if item > 1 else data
    if coding.convert is None:
        return data
    return Converted(data, coding.stored, coding.shown, elements * coding.shown, _as_bytes(coding.convert))


def _as_bytes(convert: Convert) -> Callable[[bytes], bytes]:
    return lambda raw: bytes(convert(raw))


class Chunk(SizedData):
    """A chunk of ``elements`` that is decoded as a whole. It is its own recipe."""

    def __init__(
        self, source: Source, cache: BlockCache, coding: Coding, elements: int, stored: StoredChunk,
    ) -> None:
        super().__init__(elements * coding.shown)
        self._source, self._cache, self._coding, self.stored = source, cache, coding, stored
        self._applied = filters.active(coding.filters, stored.mask)
        self._raw = elements * coding.stored
        self.key = (source.version, "chunk", stored, coding)

    @property
    def cost(self) -> int:
        return 2 * self.stored.size + 2 * self._raw + self.size

    @property
    def stream_cost(self) -> int:
        return self.cost

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

    def fill(self, buffer: memoryview, stored: bytearray | None = None) -> None:
        """Fill ``buffer`` with all bytes, past the cache; the ``stored`` bytes may be read already."""
        if stored is None:
            with self._cache.waiting():
                stored = self._source.buffer(self.stored.start, self.stored.size)
        convert = self._coding.convert
        raw = bytearray(0 if convert is None else self._raw)
        try:
            filters.undo(stored, self._applied, buffer if convert is None else memoryview(raw))
        except Damaged as error:
            raise error.at(self._source.name, f"chunk at {self.stored.start}") from error
        if convert is not None:
            buffer[:] = convert(raw)


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
        copies = min(PIECE, len(buffer)) // len(self._fill) or 1
        pattern = (self._fill * (copies + 1))[offset:]
        step = copies * len(self._fill)
        for start in range(0, len(buffer), step):
            work.check()
            piece = buffer[start : start + step]
            piece[:] = pattern[: len(piece)]
