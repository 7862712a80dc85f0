"""Data of a dataset in chunks, read in any range: chunks are decoded in the cache, several at a time. Any thread.

Chunks that are not stored are fill value; those at the edges are stored whole (§4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.cache.cores import LEAST_AHEAD
from glassfs.cache.filling import fill_all
from glassfs.content.data import SizedData
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import filters, slabs
from glassfs.formats.hdf5.description import Filter
from glassfs.formats.hdf5.stored import NOT_FOUND, Chunk, ChunkIndex, Coding, Stored, fill_into
from glassfs.source import Source

LARGEST_CHUNK = 1 << 30
"""Raw bytes of a chunk that is decoded."""
LARGEST_UNSTREAMED = 32 << 20
"""The same if its filters cannot be undone as a stream."""
PIECE = 1 << 20
LARGEST_PART = 4 << 20
"""Bytes of a chunk from which scattered elements are taken at once."""
CHECKED_AT_ONCE = 64
AHEAD = 2
"""Chunks that other threads decode ahead."""
FILLED_SHARE, FILLS_SHARE = 4, 16
"""Whole chunks are not cached if all that are read are this part of the cache's budget, and one takes little of it."""

Shape: TypeAlias = "tuple[int, ...]"


def why_unreadable(size: int, used: Sequence[Filter]) -> str:
    """Return why chunks of ``size`` bytes are not decoded, or ""."""
    if size > LARGEST_CHUNK:
        return f"has chunks of more than {LARGEST_CHUNK >> 20} MiB"
    if size > LARGEST_UNSTREAMED and not filters.are_streamed(used):
        return f"has chunks of more than {LARGEST_UNSTREAMED >> 20} MiB with a filter that needs them in memory"
    return ""


class Chunked(SizedData):
    """The elements of a chunked dataset in C order. ``fill`` is one element, empty for zeros.

    ``key`` begins the keys of its blocks.
    """

    def __init__(
        self, source: Source, cache: BlockCache, index: ChunkIndex, shape: Shape, chunks: Shape, coding: Coding,
        fill: bytes, key: tuple[object, ...],
    ) -> None:
        super().__init__(prod(shape) * coding.shown)
        self._source, self._cache, self._index = source, cache, index
        self._shape, self._chunks, self._coding = shape, chunks, coding
        self._grid = tuple(-(-length // step) for length, step in zip(shape, chunks, strict=True))
        self._fill = fill
        self._key = key
        chunk = prod(chunks) * coding.shown
        self._in_slab = prod(self._grid[1:])
        self._has_slabs = (
            self._in_slab > 1 and self._in_slab * chunk <= min(slabs.LARGEST, cache.largest_cached // 4)
            and len(shape) <= slabs.MOST_AXES and (bool(coding.filters) or coding.convert is not None)
        )
        self._is_ahead = chunk * (self._in_slab if self._has_slabs else 1) >= LEAST_AHEAD
        # Slabs are decoded ahead for a second one in a row: those of random frames would take longer than the frames.
        self._nearest = 1 if self._has_slabs else 0
        self._last = -1 - self._nearest

    def read_into(self, buffer: memoryview, offset: int) -> None:
        item = self._coding.shown
        is_wide = len(buffer) * slabs.LEAST_SHARE >= prod(self._shape[1:]) * item
        first, skipped = divmod(offset, item)
        if skipped:
            taken = min(item - skipped, len(buffer))
            buffer[:taken] = self._element(first, is_wide)[skipped : skipped + taken]
            buffer, first = buffer[taken:], first + 1
        count, left = divmod(len(buffer), item)
        at = 0
        for start, shape in boxes(first, count, self._shape):
            size = prod(shape) * item
            self._read_box(buffer[at : at + size], start, shape, is_wide)
            at += size
        if left:
            buffer[at:] = self._element(first + count, is_wide)[:left]

    def _element(self, number: int, is_wide: bool) -> bytes:
        raw = bytearray(self._coding.shown)
        for start, shape in boxes(number, 1, self._shape):
            self._read_box(memoryview(raw), start, shape, is_wide)
        return bytes(raw)

    def _read_box(self, buffer: memoryview, start: Shape, shape: Shape, is_wide: bool) -> None:
        """Fill ``buffer`` with the elements of a box. ``is_wide``: the read is of a large part of a row, or more."""
        spans = [
            range(first // step, (first + count - 1) // step + 1)
            for first, count, step in zip(start, shape, self._chunks, strict=True)
        ]
        if self._has_slabs and (is_wide or prod(map(len, spans[1:])) * slabs.LEAST_SHARE >= self._in_slab):
            self._read_slabs(buffer, start, shape, spans)
        elif self._is_filled(shape):
            for place in product(*spans):
                if not self._is_whole(place, start, shape):
                    self._read_chunk(buffer, start, shape, place)
            fill_all(self._cache, self._fills(buffer, start, shape, spans), self._fill_cost)
        else:
            self._read_chunks(buffer, start, shape, spans)

    def _read_chunks(self, buffer: memoryview, start: Shape, shape: Shape, spans: Sequence[range]) -> None:
        for number, place in enumerate(product(*spans)):
            if not number % CHECKED_AT_ONCE:
                work.check()
            self._read_chunk(buffer, start, shape, place)

    def _is_filled(self, shape: Shape) -> bool:
        """Return whether whole chunks of a box are decoded straight into it: it is large, and they are runs of it."""
        is_large = prod(shape) * self._coding.shown >= self._cache.budget // FILLED_SHARE
        is_possible = self._is_ahead and self._fill_cost <= self._cache.budget // FILLS_SHARE
        return is_large and is_possible and is_run(self._chunks, shape)

    @property
    def _fill_cost(self) -> int:
        """Memory for decoding a chunk, beside the chunk itself."""
        stored, shown = (prod(self._chunks) * size for size in (self._coding.stored, self._coding.shown))
        return filters.most_stored(stored) + 2 * stored + shown

    def _is_whole(self, place: Shape, start: Shape, shape: Shape) -> bool:
        """Return whether all of a chunk is in a box."""
        return all(
            first <= p * step and (p + 1) * step <= first + count
            for p, step, first, count in zip(place, self._chunks, start, shape, strict=True)
        )

    def _fills(
        self, buffer: memoryview, start: Shape, shape: Shape, spans: Sequence[range],
    ) -> Iterator[Callable[[], None]]:
        """Yield functions that fill the whole chunks of a box."""
        size = prod(self._chunks) * self._coding.shown
        for place in product(*spans):
            if not self._is_whole(place, start, shape):
                continue
            lows = [p * step - first for p, step, first in zip(place, self._chunks, start, strict=True)]
            at = linear(lows, shape) * self._coding.shown
            part, recipe = buffer[at : at + size], self._recipe(linear(place, self._grid))
            if isinstance(recipe, Chunk):
                yield partial(recipe.fill, part)
            elif recipe is None:
                fill_into(part, self._fill, 0)
            else:
                yield partial(self._source.read_into, part, recipe)

    def _read_slabs(self, buffer: memoryview, start: Shape, shape: Shape, spans: Sequence[range]) -> None:
        """Fill a box with elements of slabs; where one is damaged, of those chunks that are needed."""
        step, row = self._chunks[0], prod(shape[1:]) * self._coding.shown
        for number in spans[0]:
            low, high = max(start[0], number * step), min(start[0] + shape[0], (number + 1) * step)
            part = buffer[(low - start[0]) * row : (high - start[0]) * row]
            box = (low, *start[1:]), (high - low, *shape[1:])
            self._prefetch(number, self._grid[0], self._slab)
            try:
                with self._cache.held(self._slab(number)) as slab:
                    inside = (low - number * step, *start[1:])
                    grid = 1, *self._grid[1:]
                    slabs.copy_box(part, slab, inside, box[1], self._chunks, grid, self._coding.shown)
            except Damaged:
                self._read_chunks(part, *box, [range(number, number + 1), *spans[1:]])

    def _slab(self, number: int) -> slabs.Slab:
        count, chunk = self._in_slab, prod(self._chunks) * self._coding.shown
        first = number * count

        def parts() -> list[slabs.Part]:
            return list(map(self._made, self._index.among(first, count)))

        return slabs.Slab(self._source, self._cache, (*self._key, "slab", number), count, chunk, self._fill, parts)

    def _prefetch(self, number: int, count: int, recipe: Callable[[int], slabs.Slab | slabs.Part]) -> None:
        """Have the following blocks decoded ahead if this one follows the previous one."""
        if self._is_ahead and self._nearest <= number - self._last <= 1:
            for following in range(number + 1, min(number + 1 + AHEAD, count)):
                with suppress(Damaged):  # of another chunk
                    wanted = recipe(following)
                    if isinstance(wanted, (Chunk, slabs.Slab)):
                        self._cache.prefetch(wanted)
        self._last = number

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
        if span * item > LARGEST_PART and max(counts) > 1:
            axis = next(axis for axis, count in enumerate(counts) if count > 1)
            half = counts[axis] // 2
            for begin, some in ((0, half), (half, counts[axis] - half)):
                self._read_part(
                    buffer, shape, _moved(outside, axis, begin), (*counts[:axis], some, *counts[axis + 1 :]), place,
                    _moved(inside, axis, begin),
                )
            return
        with self._cache.measuring(span * item):
            raw = bytearray(span * item)
            self._read_run(memoryview(raw), place, first * item)
            strides = [item * prod(steps[axis + 1 :]) for axis in range(len(steps))]
            found = np.ndarray((*counts, item), np.uint8, raw, 0, (*strides, 1))
            box = np.frombuffer(buffer, np.uint8).reshape(*shape, item)
            box[tuple(slice(at, at + count) for at, count in zip(outside, counts, strict=True))] = found

    def _read_run(self, buffer: memoryview, place: Shape, offset: int) -> None:
        """Fill ``buffer`` with the bytes of a chunk from ``offset`` on."""
        number = linear(place, self._grid)
        recipe = self._recipe(number)
        if not self._has_slabs:
            self._prefetch(number, prod(self._grid), self._recipe)
        if isinstance(recipe, Chunk):
            self._cache.read_into(recipe, buffer, offset)
        elif recipe is None:
            fill_into(buffer, self._fill, offset)
        else:
            self._source.read_into(buffer, recipe + offset)

    def _recipe(self, number: int) -> slabs.Part:
        return self._made(self._index.find(number))

    def _made(self, found: Stored | None) -> slabs.Part:
        """Return how to make a chunk, or its offset if it is stored as it is shown; None if it is not stored."""
        if found is None:
            return None
        start, stored, mask = found
        if mask >= NOT_FOUND:
            raise self._source.damage("is in the list of chunks, but is not found by its key", f"chunk at {start}")
        elements = prod(self._chunks)
        if stored > filters.most_stored(elements * self._coding.stored):
            raise self._source.damage(f"has {stored} bytes, far more than it needs", f"chunk at {start}")
        is_raw = all(mask >> number & 1 for number in range(len(self._coding.filters)))
        if is_raw and self._coding.convert is None:
            if stored != elements * self._coding.stored:
                needed = elements * self._coding.stored
                raise self._source.damage(f"has {stored} bytes, but its shape needs {needed}", f"chunk at {start}")
            return start
        return Chunk(self._source, self._cache, self._coding, elements, start, stored, mask)


class Filled(SizedData):
    """``count`` elements that are all ``fill``."""

    __slots__ = ("_fill",)

    def __init__(self, fill: bytes, count: int) -> None:
        super().__init__(len(fill) * count)
        self._fill = fill

    def read_into(self, buffer: memoryview, offset: int) -> None:
        fill_into(buffer, self._fill, offset)


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


def _moved(place: Sequence[int], axis: int, distance: int) -> Shape:
    return (*place[:axis], place[axis] + distance, *place[axis + 1 :])


def linear(place: Sequence[int], shape: Sequence[int]) -> int:
    """Return the number of an element in C order."""
    number = 0
    for index, length in zip(place, shape, strict=True):
        number = number * length + index
    return number
