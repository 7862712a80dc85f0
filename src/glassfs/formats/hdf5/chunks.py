"""The chunks of a dataset: which are stored, and their elements in any range (§4, §5). Any thread.

A chunk is a block of the cache; several are decoded at a time. Chunks that are not stored are fill value; those at the
edges are stored whole.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.cache.cores import LEAST_AHEAD
from glassfs.cache.filling import Filling
from glassfs.content import Converted, Data, Extent, Rendered, Zeros
from glassfs.content.data import Encoded, SizedData
from glassfs.content.parts import Concatenated
from glassfs.errors import Damaged
from glassfs.formats.hdf5 import filters
from glassfs.formats.hdf5.description import Filter
from glassfs.sizes import PIECE
from glassfs.source import Source

Shape: TypeAlias = "tuple[int, ...]"

RECORD = struct.Struct("<4Q")
"""A stored chunk in the index: its number, offset, size and filter mask."""
NOT_FOUND = 1 << 32
"""In the filter mask of a chunk: the library lists it, but does not find it by its key (§4)."""
MOST_COMPARED = 1 << 14
"""Chunks whose stored bytes are compared together."""


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
        end = len(self)
        # In most datasets all chunks are stored, and each record is at the place of its number.
        is_there = first < end and self._number(first) == first
        start = first if is_there else bisect_left(range(end), first, key=self._number)
        records = self._data.read(start * RECORD.size, min(count, end - start) * RECORD.size)
        # As numbers rise, the records of the next ``count`` chunks are among so many records from here on.
        known = {number: StoredChunk(*chunk) for number, *chunk in RECORD.iter_unpack(records)}
        return [known.get(number) for number in range(first, first + count)]

    def __len__(self) -> int:
        return self._data.size // RECORD.size

    def __iter__(self) -> Iterator[StoredChunk]:
        for records in self._data.pieces():
            yield from (StoredChunk(*chunk) for _, *chunk in RECORD.iter_unpack(records))

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
    applied = [one for number, one in enumerate(used) if not stored.mask >> number & 1]
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


def filled(fill: bytes, count: int) -> Data:
    """Return ``count`` elements that are all ``fill``."""
    return Converted(Zeros(count), 1, len(fill), len(fill) * count, lambda raw: fill * len(raw))


class Grid(SizedData):
    """Elements of ``item`` bytes in C order, which are in blocks of the shape ``steps``."""

    def __init__(self, cache: BlockCache, shape: Shape, steps: Shape, item: int) -> None:
        super().__init__(prod(shape) * item)
        self._cache, self.shape, self.steps, self.item = cache, shape, steps, item
        self.grid = tuple(-(-length // step) for length, step in zip(shape, steps, strict=True))
        self._is_ahead = prod(steps) * item >= LEAST_AHEAD
        self._last = -2

    def _block(self, number: int) -> Data:
        """Return all elements of a block, also of one that sticks out of the shape. Raises Damaged."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview, offset: int) -> None:
        item = self.item
        first, skipped = divmod(offset, item)
        if skipped:
            taken = min(item - skipped, len(buffer))
            buffer[:taken] = self._element(first)[skipped : skipped + taken]
            buffer, first = buffer[taken:], first + 1
        count, left = divmod(len(buffer), item)
        at = 0
        # A range of elements in C order is no box: it begins in the middle of a row and ends in another one. It is read
        # as a few boxes, each of which is contiguous in the buffer.
        for start, shape in boxes(first, count, self.shape):
            size = prod(shape) * item
            self._read_box(buffer[at : at + size], start, shape)
            at += size
        if left:
            buffer[at:] = self._element(first + count)[:left]

    def _element(self, number: int) -> bytearray:
        raw = bytearray(self.item)
        for start, shape in boxes(number, 1, self.shape):
            self._read_box(memoryview(raw), start, shape)
        return raw

    def _read_box(self, buffer: memoryview, start: Shape, shape: Shape) -> None:
        """Fill ``buffer`` with the elements of a box."""
        self.read_part(buffer, start, shape, start, shape)

    def read_part(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        """Fill the part of a box that begins at ``low`` and has ``counts`` elements on each axis."""
        for number, place in enumerate(self.places(low, counts)):
            if not number % 64:
                work.check()
            self._copy(buffer, start, shape, *self._clipped(place, low, counts))

    def places(self, start: Shape, shape: Shape) -> Iterator[Shape]:
        """Yield the places of the blocks that a box touches."""
        return product(*(
            range(first // step, (first + count - 1) // step + 1)
            for first, count, step in zip(start, shape, self.steps, strict=True)
        ))

    def _clipped(self, place: Shape, start: Shape, shape: Shape) -> tuple[Shape, Shape]:
        """Return the part of a box that is in a block, as start and shape."""
        low = tuple(max(first, p * step) for first, p, step in zip(start, place, self.steps, strict=True))
        return low, tuple(
            min(first + count, (p + 1) * step) - at
            for first, count, p, step, at in zip(start, shape, place, self.steps, low, strict=True)
        )

    def _copy(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        """Fill the part of a box that begins at ``low``, has ``counts`` elements on each axis, and is in one block."""
        item, steps = self.item, self.steps
        number = linear([at // step for at, step in zip(low, steps, strict=True)], self.grid)
        inside = linear([at % step for at, step in zip(low, steps, strict=True)], steps) * item
        outside = linear([at - first for at, first in zip(low, start, strict=True)], shape) * item
        # The fast and the usual case: the elements are contiguous in the block and in the box, so that they are copied
        # as bytes, without NumPy.
        if is_run(counts, shape) and is_run(counts, steps):
            self._prefetch(number)
            self._block(number).read_into(buffer[outside : outside + prod(counts) * item], inside)
            return
        span = item * (1 + linear([count - 1 for count in counts], steps))
        if span > 4 * PIECE and max(counts) > 1:
            # Elements that are scattered in a large block: it may be in a file, of which little is read at a time.
            axis = next(axis for axis, count in enumerate(counts) if count > 1)
            half = counts[axis] // 2
            for begin, some in ((0, half), (half, counts[axis] - half)):
                part = (*low[:axis], low[axis] + begin, *low[axis + 1 :])
                self._copy(buffer, start, shape, part, (*counts[:axis], some, *counts[axis + 1 :]))
            return
        import numpy as np

        self._prefetch(number)
        with self._cache.measuring(span):
            raw = bytearray(span)
            self._block(number).read_into(memoryview(raw), inside)
            elements = np.ndarray((*counts, item), np.uint8, raw, 0, (*_strides(steps, item), 1))
            box = np.ndarray((*counts, item), np.uint8, buffer, outside, (*_strides(shape, item), 1))
            box[...] = elements

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

    def __init__(
        self, source: Source, cache: BlockCache, index: ChunkIndex, shape: Shape, chunks: Shape, item: int,
        used: Sequence[Filter], fill: bytes,
    ) -> None:
        super().__init__(cache, shape, chunks, item)
        self._source, self._index, self.filters = source, index, tuple(used)
        self._fill = fill or bytes(item)

    def _block(self, number: int) -> Data:
        return self.chunks(number, 1)[0]

    def chunks(self, first: int, count: int) -> list[Data]:
        """Return the data of ``count`` chunks from number ``first`` on. Raises Damaged."""
        elements = prod(self.steps)
        return [
            filled(self._fill, elements) if stored is None else self._stored(stored)
            for stored in self._index.find(first, count)
        ]

    def _stored(self, chunk: StoredChunk) -> Data:
        return chunk_data(self._source, self._cache, self.filters, prod(self.steps) * self.item, chunk)

    def written(self) -> Iterator[Data] | None:
        return map(self._stored, self._index) if 2 * len(self._index) < prod(self.grid) else None

    def encoded(self, offset: int) -> Encoded | None:
        """Return the stored bytes of all chunks with one place on the first axis."""
        rows = self.steps[0] * prod(self.shape[1:]) * self.item
        number, count = offset // rows, prod(self.grid[1:])
        if count > MOST_COMPARED:
            return None
        stored = self._index.find(number * count, count)
        how = (self.shape[1:], self.steps, self.item, self.filters, self._fill, *(
            None if one is None else (one.size, one.mask) for one in stored
        ))
        parts = [Extent(self._source, one.start, one.size) for one in stored if one is not None]
        return Encoded(min(self.size, (number + 1) * rows), how, Concatenated(parts))

    def _read_box(self, buffer: memoryview, start: Shape, shape: Shape) -> None:
        size, budget = prod(self.steps) * self.item, self._cache.budget
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
        for place in self.places(start, shape):
            low, counts = self._clipped(place, start, shape)
            block = self._block(linear(place, self.grid))
            if counts != self.steps or not isinstance(block, Chunk):
                yield partial(self._copy, buffer, start, shape, low, counts)
            else:
                at = linear([a - b for a, b in zip(low, start, strict=True)], shape) * self.item
                yield partial(block.fill, buffer[at : at + block.size])


class Slabs(Grid):
    """The same elements in slabs: all chunks with the same place on the first axis are a block of the cache together.

    h5py divides images into chunks of some KiB that go through many of them: a frame is then in dozens of chunks, and
    what is done for each of them takes longer than decoding it. ``key`` begins the keys of the blocks.
    """

    def __init__(self, cache: BlockCache, chunked: Chunked, key: tuple[object, ...]) -> None:
        super().__init__(cache, chunked.shape, (chunked.steps[0], *chunked.shape[1:]), chunked.item)
        self._chunked, self._key = chunked, key

    def encoded(self, offset: int) -> Encoded | None:
        return self._chunked.encoded(offset)

    def written(self) -> Iterator[Data] | None:
        return self._chunked.written()

    def _block(self, number: int) -> Rendered:
        size = prod(self.steps) * self.item
        return Rendered(self._cache, (*self._key, number), partial(self._put_together, number), size, 4 * size)

    def _put_together(self, number: int) -> bytearray:
        """Return the elements of a slab in C order."""
        import numpy as np

        chunked, item = self._chunked, self.item
        # Elements of other sizes have no type of NumPy that is copied as a whole, so their bytes are a further axis.
        kind, tail = (f"u{item}", ()) if item in (1, 2, 4, 8) else ("u1", (item,))
        made = bytearray(prod(self.steps) * item)
        slab = np.frombuffer(made, kind).reshape(*self.steps, *tail)
        count = prod(chunked.grid[1:])
        for at, chunk in enumerate(chunked.chunks(number * count, count)):
            place = place_of(at, chunked.grid[1:])
            part = [slice(p * step, (p + 1) * step) for p, step in zip(place, chunked.steps[1:], strict=True)]
            target = slab[(slice(None), *part)]
            elements = np.frombuffer(chunk.whole(), kind).reshape(*chunked.steps, *tail)
            target[...] = elements[tuple(map(slice, target.shape))]  # a chunk at the edge sticks out
        return made

    def _copy(self, buffer: memoryview, start: Shape, shape: Shape, low: Shape, counts: Shape) -> None:
        chunked = self._chunked
        # For a read of few chunks, decoding only these is faster.
        if 8 * len([*chunked.places(low, counts)]) >= prod(chunked.grid[1:]):
            # A damaged chunk of the slab may be one that is not needed.
            with suppress(Damaged):
                super()._copy(buffer, start, shape, low, counts)
                return
        chunked.read_part(buffer, start, shape, low, counts)


def in_slabs(cache: BlockCache, chunked: Chunked, key: tuple[object, ...]) -> Grid:
    """Return the elements in slabs if these are small and have several chunks that must be decoded; else unchanged."""
    count = prod(chunked.grid[1:])
    is_small = count * prod(chunked.steps) * chunked.item <= min(2 * PIECE, cache.largest_cached // 4)
    # NumPy has arrays of at least 32 axes.
    is_possible = chunked.filters and len(chunked.shape) < 31
    return Slabs(cache, chunked, key) if is_small and is_possible and count > 1 else chunked


def boxes(first: int, count: int, shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yield boxes, as start and shape, that have the elements ``[first, first + count)`` in C order, one by one."""
    while count > 0:
        start = place_of(first, shape)
        axis, inner = len(shape) - 1, 1
        while axis > 0 and not start[axis] and count >= inner * shape[axis]:
            inner *= shape[axis]
            axis -= 1
        taken = min(shape[axis] - start[axis], count // inner) if shape else 1
        yield start, (*(1,) * axis, taken, *shape[axis + 1 :]) if shape else ()
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


def place_of(number: int, shape: Sequence[int]) -> Shape:
    """Return the place of the element with this number in C order."""
    place = []
    for length in reversed(shape):
        number, index = divmod(number, length)
        place.append(index)
    return tuple(reversed(place))


def _strides(shape: Sequence[int], item: int) -> Iterator[int]:
    return (item * prod(shape[axis + 1 :]) for axis in range(len(shape)))
