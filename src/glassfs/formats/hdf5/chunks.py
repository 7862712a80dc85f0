"""Data of a dataset in chunks, read in any range: chunks are decoded in the cache, several at a time. Any thread.

Chunks that are not stored are fill value; those at the edges are stored whole (§4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Rendered
from glassfs.content.data import SizedData
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import filters
from glassfs.formats.hdf5.description import Filter
from glassfs.source import Source

RECORD = 32
"""Bytes of a stored chunk in the index: its number, offset, size and filter mask, 64 bits each."""
MOST_CHUNK = 128 << 20
"""Raw bytes of a chunk that is decoded."""
PIECE = 1 << 20
CHECKED_AT_ONCE = 64

Convert: TypeAlias = "Callable[[bytes | bytearray], bytes | bytearray]"
Shape: TypeAlias = "tuple[int, ...]"


class Coding(NamedTuple):
    """How chunks are stored: ``stored`` bytes of an element become ``shown`` ones.

    ``convert`` takes the raw bytes of a chunk; None if they are shown unchanged.
    """

    filters: tuple[Filter, ...]
    stored: int
    shown: int
    convert: Convert | None


class ChunkIndex:
    """The stored chunks of a dataset by number, RECORD bytes each in ``data``. Numbers must rise."""

    def __init__(self, data: Rendered) -> None:
        self._data = data

    def find(self, number: int) -> tuple[int, int, int] | None:
        """Return offset, size and filter mask of a chunk, or None if it is not stored. Raises Damaged."""
        count = self._data.size // RECORD
        low, high = 0, count
        at = number  # right if all chunks are stored
        while low < high:
            if not low <= at < high:
                at = (low + high) // 2
            record = self._data.read(at * RECORD, RECORD)
            found, offset, size, mask = (int.from_bytes(record[i : i + 8], "little") for i in (0, 8, 16, 24))
            if found == number:
                return offset, size, mask
            if found < number:
                low = at + 1
            else:
                high = at
            at = -1
        return None


def checked_index(raw: bytearray) -> bytes:
    """Return the index if its numbers rise. Raises Damaged if two chunks have the same number."""
    import numpy as np

    numbers = np.frombuffer(raw, np.uint64)[:: RECORD // 8]
    if (numbers[1:] <= numbers[:-1]).any():
        raise Damaged("two of its chunks have the same place")
    return bytes(raw)


class _Chunk:
    """The recipe of a chunk."""

    __slots__ = ("_coding", "_mask", "_raw", "_source", "_start", "_stored", "key", "size")

    def __init__(self, source: Source, coding: Coding, elements: int, start: int, stored: int, mask: int) -> None:
        self._source, self._coding = source, coding
        self._start, self._stored, self._mask = start, stored, mask
        self._raw = elements * coding.stored
        self.size = elements * coding.shown
        self.key = (source.version, "chunk", start, stored, mask, coding)

    @property
    def cost(self) -> int:
        return self._stored + 2 * self._raw + self.size

    @property
    def stream_cost(self) -> int:
        return self.cost

    def whole(self) -> bytes | bytearray:
        try:
            stored = self._source.buffer(self._start, self._stored)
            raw = filters.undone(stored, self._coding.filters, self._mask, self._raw)
        except Damaged as error:
            raise error.at(self._source.name, f"chunk at {self._start}") from error
        return raw if self._coding.convert is None else self._coding.convert(raw)

    def pieces(self) -> Iterator[bytes]:
        whole = memoryview(self.whole())
        for offset in range(0, len(whole), PIECE):
            yield bytes(whole[offset : offset + PIECE])


class Chunked(SizedData):
    """The elements of a chunked dataset in C order. ``fill`` is one element, empty for zeros."""

    def __init__(
        self, source: Source, cache: BlockCache, index: ChunkIndex, shape: Shape, chunks: Shape, coding: Coding,
        fill: bytes,
    ) -> None:
        super().__init__(prod(shape) * coding.shown)
        self._source, self._cache, self._index = source, cache, index
        self._shape, self._chunks, self._coding = shape, chunks, coding
        self._grid = tuple(-(-length // step) for length, step in zip(shape, chunks, strict=True))
        self._fill = fill
        self._last = -1

    def read_into(self, buffer: memoryview, offset: int) -> None:
        item = self._coding.shown
        first, skipped = divmod(offset, item)
        if skipped:
            taken = min(item - skipped, len(buffer))
            buffer[:taken] = self._element(first)[skipped : skipped + taken]
            buffer, first = buffer[taken:], first + 1
        count, left = divmod(len(buffer), item)
        at = 0
        for start, shape in boxes(first, count, self._shape):
            size = prod(shape) * item
            self._read_box(buffer[at : at + size], start, shape)
            at += size
        if left:
            buffer[at:] = self._element(first + count)[:left]

    def _element(self, number: int) -> bytes:
        raw = bytearray(self._coding.shown)
        for start, shape in boxes(number, 1, self._shape):
            self._read_box(memoryview(raw), start, shape)
        return bytes(raw)

    def _read_box(self, buffer: memoryview, start: Shape, shape: Shape) -> None:
        """Fill ``buffer`` with the elements of a box."""
        spans = [
            range(first // step, (first + count - 1) // step + 1)
            for first, count, step in zip(start, shape, self._chunks, strict=True)
        ]
        for number, place in enumerate(product(*spans)):
            if not number % CHECKED_AT_ONCE:
                work.check()
            self._read_chunk(buffer, start, shape, place)

    def _read_chunk(self, buffer: memoryview, start: Shape, shape: Shape, place: Shape) -> None:
        """Fill the part of a box that is in the chunk at ``place`` of the grid."""
        item, steps = self._coding.shown, self._chunks
        lows = [max(a, p * step) for a, p, step in zip(start, place, steps, strict=True)]
        counts = [
            min(a + count, (p + 1) * step) - low
            for a, count, p, step, low in zip(start, shape, place, steps, lows, strict=True)
        ]
        inside = [low - p * step for low, p, step in zip(lows, place, steps, strict=True)]
        outside = [low - a for low, a in zip(lows, start, strict=True)]
        size = prod(counts) * item
        if is_run(counts, shape):
            at = linear(outside, shape) * item
            target = buffer[at : at + size]
            if is_run(counts, steps):
                self._read_run(target, place, linear(inside, steps) * item)
                return
        self._read_part(buffer, shape, outside, counts, place, inside)

    def _read_part(
        self, buffer: memoryview, shape: Shape, outside: Sequence[int], counts: Sequence[int], place: Shape,
        inside: Sequence[int],
    ) -> None:
        """Copy elements that are scattered in the chunk or in the box."""
        import numpy as np

        item, steps = self._coding.shown, self._chunks
        last = [first + count - 1 for first, count in zip(inside, counts, strict=True)]
        first = linear(inside, steps)
        span = linear(last, steps) + 1 - first
        with self._cache.measuring(span * item):
            raw = bytearray(span * item)
            self._read_run(memoryview(raw), place, first * item)
            strides = [item * prod(steps[axis + 1 :]) for axis in range(len(steps))]
            found = np.lib.stride_tricks.as_strided(
                np.frombuffer(raw, np.uint8), (*counts, item), (*strides, 1), writeable=False,
            )
            box = np.frombuffer(buffer, np.uint8).reshape(*shape, item)
            box[tuple(slice(at, at + count) for at, count in zip(outside, counts, strict=True))] = found

    def _read_run(self, buffer: memoryview, place: Shape, offset: int) -> None:
        """Fill ``buffer`` with the bytes of a chunk from ``offset`` on."""
        number = linear(place, self._grid)
        recipe = self._recipe(number)
        if 0 <= number - self._last <= 1 and number + 1 < prod(self._grid):
            with suppress(Damaged):  # of another chunk
                following = self._recipe(number + 1)
                if isinstance(following, _Chunk):
                    self._cache.prefetch(following)
        self._last = number
        if isinstance(recipe, _Chunk):
            self._cache.read_into(recipe, buffer, offset)
        elif recipe is None:
            fill_into(buffer, self._fill, offset)
        else:
            self._source.read_into(buffer, recipe + offset)

    def _recipe(self, number: int) -> _Chunk | int | None:
        """Return how to make a chunk, or its offset if it is stored as it is shown; None if it is not stored."""
        found = self._index.find(number)
        if found is None:
            return None
        start, stored, mask = found
        elements = prod(self._chunks)
        if stored > filters.most_stored(elements * self._coding.stored):
            raise self._source.damage(f"has {stored} bytes, far more than it needs", f"chunk at {start}")
        is_raw = all(mask >> number & 1 for number in range(len(self._coding.filters)))
        if is_raw and self._coding.convert is None:
            if stored != elements * self._coding.stored:
                needed = elements * self._coding.stored
                raise self._source.damage(f"has {stored} bytes, but its shape needs {needed}", f"chunk at {start}")
            return start
        return _Chunk(self._source, self._coding, elements, start, stored, mask)


class Filled(SizedData):
    """``count`` elements that are all ``fill``."""

    __slots__ = ("_fill",)

    def __init__(self, fill: bytes, count: int) -> None:
        super().__init__(len(fill) * count)
        self._fill = fill

    def read_into(self, buffer: memoryview, offset: int) -> None:
        fill_into(buffer, self._fill, offset)


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


def boxes(first: int, count: int, shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yield boxes, as start and shape, that have the elements ``[first, first + count)`` in C order, one by one."""
    while count > 0:
        start = []
        rest = first
        for length in reversed(shape):
            rest, index = divmod(rest, length)
            start.append(index)
        start.reverse()
        axis, inner = len(shape) - 1, 1
        while axis > 0 and not start[axis] and count >= inner * shape[axis]:
            inner *= shape[axis]
            axis -= 1
        taken = min(shape[axis] - start[axis], count // inner) if shape else 1
        yield tuple(start), (*(1,) * axis, taken, *shape[axis + 1 :]) if shape else ()
        first, count = first + taken * inner, count - taken * inner


def is_run(counts: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a box of ``counts`` elements is contiguous in one of ``shape``."""
    axis = 0
    while axis < len(counts) and counts[axis] == 1:
        axis += 1
    return tuple(counts[axis + 1 :]) == tuple(shape[axis + 1 :])


def linear(place: Sequence[int], shape: Sequence[int]) -> int:
    """Return the number of an element in C order."""
    number = 0
    for index, length in zip(place, shape, strict=True):
        number = number * length + index
    return number
