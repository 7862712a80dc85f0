"""The chunks of a dataset: which are stored, and their elements in any range (§4, §5). Any thread.

A chunk is a block of the cache; several are decoded at a time. Chunks that are not stored are fill value; those at the
edges are stored whole.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.cache.filling import Filling
from glassfs.content import Converted, Data, Extent, Rendered, Zeros
from glassfs.content.data import SizedData
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import filters
from glassfs.formats.hdf5.description import Dataset, Filter
from glassfs.lazy import np
from glassfs.sizes import PIECE
from glassfs.source import Source

Shape: TypeAlias = "tuple[int, ...]"
Axis: TypeAlias = "tuple[int, int, int]"
"""Elements on an axis of two arrays: how many, and how far apart they are in each of the two, in bytes."""

RECORD = struct.Struct("<4Q")
"""A stored chunk in the index: its number, offset, size and filter mask."""


class StoredChunk(NamedTuple):
    """Where a chunk is in the source; bit i of ``mask`` says that filter i was left out."""

    start: int
    size: int
    mask: int


@dataclass
class ChunkIndex:
    """The stored chunks of a dataset by number, a RECORD each. Numbers must rise."""

    _data: Rendered

    def find(self, first: int, count: int) -> list[StoredChunk | None]:
        """Return ``count`` chunks from number ``first`` on, None for those that are not stored. Raises Damaged."""
        size, end = RECORD.size, len(self)
        # In most datasets all chunks are stored, and each record is at the place of its number.
        records = self._data.read(first * size, min(count, end - first) * size) if first < end else b""
        if records[:8] != first.to_bytes(8, "little"):
            start = bisect_left(range(end), first, key=self._number)
            records = self._data.read(start * size, min(count, end - start) * size)
        # As numbers rise, the records of the next ``count`` chunks are among so many records from here on.
        known = {number: StoredChunk(*chunk) for number, *chunk in RECORD.iter_unpack(records)}
        return [known.get(number) for number in range(first, first + count)]

    def __len__(self) -> int:
        return self._data.size // RECORD.size

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the stored chunks."""
        for records in self._data.pieces():
            yield from (number for number, *_ in RECORD.iter_unpack(records))

    def _number(self, at: int) -> int:
        return int.from_bytes(self._data.read(at * RECORD.size, 8), "little")


def filled(fill: bytes, size: int) -> Data:
    """Return ``size`` bytes of elements that are all ``fill``."""
    return Converted(Zeros(size // len(fill)), 1, len(fill), size, lambda raw: fill * len(raw))


class Grid(SizedData):
    """Elements in C order, which are in blocks of the shape ``steps``. The last axis has the bytes of an element."""

    def __init__(self, cache: BlockCache, shape: Shape, steps: Shape) -> None:
        super().__init__(prod(shape))
        self._cache, self.shape, self.steps, self.block_size = cache, shape, steps, prod(steps)
        self.grid = tuple(-(-length // step) for length, step in zip(shape, steps, strict=True))
        self._is_ahead = self.block_size >= work.LEAST_AHEAD
        self._last = -2

    def _block(self, number: int) -> Data:
        """Return all elements of a block, also of one that sticks out of the shape. Raises Damaged."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview, offset: int) -> None:
        at = 0
        # A range of elements in C order is no box: it begins in the middle of a row and ends in another one. It is read
        # as a few boxes, each of which is contiguous in the buffer.
        for start, shape in boxes(offset, len(buffer), self.shape):
            size = prod(shape)
            self._read_box(buffer[at : at + size], start, shape)
            at += size

    def _read_box(self, buffer: memoryview, start: Shape, shape: Shape) -> None:
        """Fill ``buffer`` with the elements of a box."""
        self.read_part(buffer, start, shape, start, shape)

    def read_part(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        """Fill the part of a box that begins at ``low`` and has ``counts`` elements on each axis."""
        for number, part in enumerate(self._split(low, counts)):
            if not number % 64:
                work.check()
            self._copy(buffer, start, shape, *part)

    def _split(self, low: Shape, counts: Shape) -> Iterator[tuple[Shape, Shape]]:
        """Yield the parts of a part of a box that are each in one block."""
        for part in product(*map(_cut, low, counts, self.steps)):
            yield tuple(first for first, _ in part), tuple(count for _, count in part)

    def _number(self, low: Shape) -> int:
        """Return the number of the block that has an element."""
        return linear([at // step for at, step in zip(low, self.steps, strict=True)], self.grid)

    def _copy(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        """Fill the part of a box that begins at ``low``, has ``counts`` elements on each axis, and is in one block."""
        steps, number = self.steps, self._number(low)
        inside = linear([at % step for at, step in zip(low, steps, strict=True)], steps)
        outside = linear([at - first for at, first in zip(low, start, strict=True)], shape)
        self._prefetch(number)
        block = self._block(number)
        # The fast and the usual case: the elements are contiguous in the block and in the box, so that they are copied
        # as bytes, without NumPy.
        if is_run(counts, shape) and is_run(counts, steps):
            block.read_into(buffer[outside : outside + prod(counts)], inside)
            return
        axes = [*zip(counts, _strides(steps), _strides(shape), strict=True)]
        span = 1 + sum((count - 1) * stride for count, stride, _ in axes)
        if span > 4 * PIECE and max(counts) > 1:
            # Elements that are scattered in a large block: it may be in a file, of which little is read at a time.
            axis = next(axis for axis, count in enumerate(counts) if count > 1)
            half = counts[axis] // 2
            for begin, some in ((0, half), (half, counts[axis] - half)):
                part = (*low[:axis], low[axis] + begin, *low[axis + 1 :])
                self._copy(buffer, start, shape, part, (*counts[:axis], some, *counts[axis + 1 :]))
        else:
            with self._cache.measuring(span):
                _move(block.read(inside, span), 0, buffer, outside, axes)

    def _prefetch(self, number: int) -> None:
        """Have the two following blocks decoded ahead if this one follows the previous one."""
        # Only a second block in a row is a sequential read. Decoding ahead for random reads would take longer than
        # these.
        if self._is_ahead and number - self._last == 1:
            for following in range(number + 1, min(number + 3, prod(self.grid))):
                with suppress(Damaged):  # of another block
                    block = self._block(following)
                    # Other blocks are ranges of the file or of fill value.
                    if isinstance(block, Rendered):
                        self._cache.prefetch(block)
        self._last = number


class Chunked(Grid):
    """The stored elements of a chunked dataset in C order. Those of chunks that are not stored are ``fill``."""

    def __init__(self, source: Source, cache: BlockCache, index: ChunkIndex, dataset: Dataset) -> None:
        super().__init__(cache, (*dataset.shape, dataset.size), (*dataset.chunks, dataset.size))
        self._source, self._index, self.find, self.filters = source, index, index.find, dataset.filters
        self._fill = dataset.fill or bytes(dataset.size)

    def _block(self, number: int) -> Data:
        (stored,) = self.find(number, 1)
        size = self.block_size
        if stored is None:
            return filled(self._fill, size)
        applied = self._applied(stored)
        if not applied:
            return Extent(self._source, stored.start, size)
        key = (self._source.version, "chunk", stored, applied, size)
        return Rendered(self._cache, key, partial(self.decoded, number, 1), size, 2 * stored.size + 3 * size)

    def _applied(self, stored: StoredChunk) -> tuple[Filter, ...]:
        """Return the filters that were applied to a chunk. Raises Damaged if the chunk cannot be stored so."""
        size, used, reason = self.block_size, self.filters, ""
        if stored.mask:
            used = tuple(one for number, one in enumerate(used) if not stored.mask >> number & 1)
        if not stored.size:  # as the worker says (§4)
            reason = "is in the list of chunks, but is not found by its key"
        elif stored.size > filters.most_stored(size):
            reason = f"has {stored.size} bytes, far more than it needs"
        elif not used and stored.size != size:
            reason = f"has {stored.size} bytes, but its shape needs {size}"
        if reason:
            raise self._source.damage(reason, f"chunk at {stored.start}")
        return used

    def decoded(self, first: int, count: int) -> bytearray:
        """Return the elements of ``count`` chunks from number ``first`` on, chunk after chunk. Raises Damaged."""
        chunks, size = self.find(first, count), self.block_size
        made = bytearray(count * size)
        start = min((one.start for one in chunks if one), default=0)
        span = max((one.start + one.size for one in chunks if one), default=0) - start
        near = None
        if span <= len(made):  # as writers mostly put them one after another, a single read does for all
            near = memoryview(self._source.buffer(start, span))
        for number, one in enumerate(chunks):
            part = memoryview(made)[number * size : (number + 1) * size]
            if one is None:
                filled(self._fill, size).read_into(part, 0)
            else:
                self._decode(one, part, near and near[one.start - start :][: one.size])
        return made

    def _decode(self, stored: StoredChunk, buffer: memoryview, raw: memoryview | None = None) -> None:
        """Fill ``buffer`` with the elements of a chunk. ``raw`` are its stored bytes, if these were read already."""
        applied = self._applied(stored)
        if raw is None:
            raw = memoryview(self._source.buffer(stored.start, stored.size))
        try:
            filters.undo(raw, applied, buffer)
        except Damaged as error:
            raise error.at(self._source.name, f"chunk at {stored.start}") from error

    def written(self) -> Iterator[Data] | None:
        return map(self._block, self._index) if 2 * len(self._index) < prod(self.grid) else None

    def _read_box(self, buffer: memoryview, start: Shape, shape: Shape) -> None:
        size, budget = self.block_size, self._cache.budget
        cost = filters.most_stored(size) + 3 * size
        # A large part of the array would push everything out of the cache. Chunks that are runs of it are decoded
        # straight into it, on all cores, if several of them fit into memory.
        is_large = len(buffer) >= budget // 4 and cost <= budget // 16
        if is_large and self._is_ahead and is_run(self.steps, shape):
            Filling(self._cache, self._fills(buffer, start, shape), cost).run()
        else:
            super()._read_box(buffer, start, shape)

    def _fills(self, buffer: memoryview, start: Shape, shape: Shape) -> Iterator[Callable[[], None]]:
        """Yield functions that fill the parts of a box, of which whole chunks are runs."""
        for low, counts in self._split(start, shape):
            (stored,) = self.find(self._number(low), 1)
            if counts != self.steps or stored is None or not self.filters:
                yield partial(self._copy, buffer, start, shape, low, counts)
            else:
                at = linear([a - b for a, b in zip(low, start, strict=True)], shape)
                yield partial(self._decode, stored, buffer[at : at + self.block_size])


class Slabs(Grid):
    """The same elements in slabs: all chunks with the same place on the first axis are a block of the cache together.

    h5py divides images into chunks of some KiB that go through many of them: a frame is then in dozens of chunks, and
    what is done for each of them takes longer than decoding it. ``key`` begins the keys of the blocks. A block has its
    chunks one after another, as putting the elements of all frames in order would take longer than decoding them.
    """

    def __init__(self, cache: BlockCache, chunked: Chunked, key: tuple[object, ...]) -> None:
        super().__init__(cache, chunked.shape, (chunked.steps[0], *chunked.shape[1:]))
        self._chunked, self._key = chunked, key
        self._count, size = prod(chunked.grid[1:]), chunked.block_size
        self._slab = self._count * size
        self._inner, self._outer = [*_strides(chunked.steps)], [0, *_strides(chunked.grid[1:], size)]
        """How far neighboring elements of a chunk, and neighboring chunks, are apart on each axis, in bytes."""

    def written(self) -> Iterator[Data] | None:
        return self._chunked.written()

    def _block(self, number: int) -> Rendered:
        make = partial(self._chunked.decoded, number * self._count, self._count)
        return Rendered(self._cache, (*self._key, number), make, self._slab, 4 * self._slab)

    def _copy(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        chunked = self._chunked
        wanted = (sum(1 for _ in _cut(*axis)) for axis in zip(low, counts, chunked.steps, strict=True))
        # For a read of few chunks, decoding only these is faster.
        if 8 * prod(wanted) >= self._count:
            # A damaged chunk of the slab may be one that is not needed.
            with suppress(Damaged):
                number = self._number(low)
                self._prefetch(number)
                with self._cache.held(self._block(number)) as raw:
                    self._gather(raw, buffer, start, shape, low, counts)
                return
        chunked.read_part(buffer, start, shape, low, counts)

    def _gather(
        self, raw: bytes | bytearray, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape,
    ) -> None:
        """Do what ``_copy`` does, from a slab."""
        steps, strides = self._chunked.steps, [*_strides(shape)]
        # Of each axis all whole chunks are copied together.
        for part in product(*map(_cut, low, counts, steps, counts)):
            axes, inside, outside = list[Axis](), 0, 0
            for number, (first, some) in enumerate(part):
                step, inner, outer, stride = steps[number], self._inner[number], self._outer[number], strides[number]
                inside += first // step * outer + first % step * inner
                outside += (first - start[number]) * stride
                times = max(1, some // step)
                axes += (times, outer, step * stride), (some // times, inner, stride)
            _move(raw, inside, buffer, outside, axes)


def in_slabs(cache: BlockCache, chunked: Chunked, key: tuple[object, ...]) -> Grid:
    """Return the elements in slabs if these are small and have several chunks that must be decoded; else unchanged."""
    count = prod(chunked.grid[1:])
    is_small = count * chunked.block_size <= min(2 * PIECE, cache.largest_cached // 4)
    return Slabs(cache, chunked, key) if is_small and chunked.filters and count > 1 else chunked


def boxes(first: int, count: int, shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yield boxes, as start and shape, that have the elements ``[first, first + count)`` in C order, one by one."""
    while count > 0:
        start = place_of(first, shape)
        axis, inner = len(shape) - 1, 1
        while axis > 0 and not start[axis] and count >= inner * shape[axis]:
            inner *= shape[axis]
            axis -= 1
        taken = min(shape[axis] - start[axis], count // inner)
        yield start, (*(1,) * axis, taken, *shape[axis + 1 :])
        first, count = first + taken * inner, count - taken * inner


def _cut(first: int, count: int, step: int, most: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``count`` places, as first and count, that are in one step each, or ``most`` whole steps."""
    end = first + count
    while first < end:
        some = min(step - first % step, end - first)
        if some == step:
            some *= min(most, (end - first) // step)
        yield first, some
        first += some


def _move(
    source: bytes | bytearray, inside: int, target: memoryview, outside: int, axes: Sequence[Axis],
) -> None:
    """Copy bytes between two arrays, from and to these offsets."""
    item, axes = 1, [axis for axis in axes if axis[0] > 1]
    # The bytes of the last axes are mostly contiguous in both. NumPy copies them fastest as one element.
    while axes and axes[-1][1] == axes[-1][2] == item:
        item *= axes.pop()[0]
    kind = f"u{item}" if item in (1, 2, 4, 8) else f"V{item}"
    counts, inner, outer = zip(*axes, strict=True) if axes else ((), (), ())
    np.ndarray(counts, kind, target, outside, outer)[...] = np.ndarray(counts, kind, source, inside, inner)


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


def place_of(number: int, shape: Sequence[int]) -> Shape:
    """Return the place of the element with this number in C order."""
    place = []
    for length in reversed(shape):
        number, index = divmod(number, length)
        place.append(index)
    return tuple(reversed(place))


def _strides(shape: Sequence[int], item: int = 1) -> Iterator[int]:
    return (item * prod(shape[axis + 1 :]) for axis in range(len(shape)))
