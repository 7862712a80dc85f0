"""Slabs: all chunks with the same place on the first axis, a block of the cache together if they are small. Any thread.

h5py divides images into chunks of some KiB that go through many of them: a frame is then in dozens of chunks, and what
is done for each of them takes longer than decoding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from glassfs.cache import BlockCache
from glassfs.formats.hdf5 import filters
from glassfs.formats.hdf5.stored import Chunk, fill_into
from glassfs.source import Source

LARGEST = 2 << 20
"""Bytes of a slab."""
MOST_AXES = 8
LEAST_SHARE = 8
"""A slab is decoded for a read of one chunk in so many; for fewer, single chunks are."""
LONGEST_GAP, LARGEST_RUN = 4 << 10, 1 << 20
"""Stored chunks that are read at once: bytes between two of them, and of all."""

Shape: TypeAlias = "tuple[int, ...]"
Part: TypeAlias = Chunk | int | None
"""A chunk, the offset of one that is stored as it is shown, or None for one that is not stored."""


class Slab:
    """The recipe of chunks of ``chunk`` bytes each, one after another. ``parts`` finds them; others are ``fill``."""

    def __init__(
        self, source: Source, cache: BlockCache, key: tuple[object, ...], count: int, chunk: int, fill: bytes,
        parts: Callable[[], Sequence[Part]],
    ) -> None:
        self._source, self._cache = source, cache
        self.key, self.size = key, count * chunk
        self._chunk, self._fill, self._parts = chunk, fill, parts

    @property
    def cost(self) -> int:
        return self.size + max(2 * LARGEST_RUN, filters.most_stored(self._chunk)) + 3 * self._chunk

    @property
    def stream_cost(self) -> int:
        return self.cost

    def whole(self) -> bytearray:
        raw = bytearray(self.size)
        view = memoryview(raw)
        stored: list[tuple[Chunk, memoryview]] = []
        for number, part in enumerate(self._parts()):
            place = view[number * self._chunk : (number + 1) * self._chunk]
            if isinstance(part, Chunk):
                stored.append((part, place))
            elif part is not None:
                self._source.read_into(place, part)
            elif self._fill:
                fill_into(place, self._fill, 0)
        stored.sort(key=lambda one: one[0].start)
        for run in _runs(stored):
            start = run[0][0].start
            if len(run) == 1:
                run[0][0].fill(run[0][1])
                continue
            with self._cache.waiting():
                together = self._source.buffer(start, run[-1][0].start + run[-1][0].stored - start)
            for chunk, place in run:
                chunk.fill(place, together[chunk.start - start : chunk.start - start + chunk.stored])
        return raw

    def pieces(self) -> Iterator[bytearray]:
        yield self.whole()


def _runs(stored: list[tuple[Chunk, memoryview]]) -> Iterator[list[tuple[Chunk, memoryview]]]:
    """Yield chunks that are near each other, in the order of their offsets."""
    run: list[tuple[Chunk, memoryview]] = []
    for one in stored:
        if run:
            end = run[-1][0].start + run[-1][0].stored
            is_near = 0 <= one[0].start - end <= LONGEST_GAP
            if not is_near or one[0].start + one[0].stored - run[0][0].start > LARGEST_RUN:
                yield run
                run = []
        run.append(one)
    if run:
        yield run


def copy_box(
    target: memoryview, slab: bytes | bytearray, start: Shape, shape: Shape, steps: Shape, grid: Shape, item: int,
) -> None:
    """Fill ``target`` with a box of ``shape`` elements at ``start`` of a slab, of ``grid`` chunks of ``steps`` each."""
    import numpy as np

    kind, tail = (np.dtype(f"u{item}"), ()) if item in (1, 2, 4, 8) else (np.dtype("u1"), (item,))
    found = np.frombuffer(slab, kind, prod(grid) * prod(steps) * max(1, prod(tail))).reshape(*grid, *steps, *tail)
    box = np.ndarray((*shape, *tail), kind, target)
    axes = len(steps)
    order = [axis for pair in zip(range(axes), range(axes, 2 * axes), strict=True) for axis in pair]
    order += range(2 * axes, found.ndim)
    for pieces in product(*map(_pieces, start, shape, steps)):
        chunks = [slice(first, first + count) for _, first, count, _, _ in pieces]
        inside = [slice(first, first + count) for _, _, _, first, count in pieces]
        within = [slice(at, at + chunks * count) for at, _, chunks, _, count in pieces]
        split = [length for _, _, chunks, _, count in pieces for length in (chunks, count)]
        box[tuple(within)].reshape(*split, *tail)[...] = found[(*chunks, *inside)].transpose(order)


def _pieces(first: int, count: int, step: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Divide a range of an axis, at most in three: before, in and behind whole chunks.

    Yield for each where it is in the range; its first chunk and their number; its first element in a chunk and their
    number in each.
    """
    at, end = first, first + count
    while at < end:
        chunk, inside = divmod(at, step)
        chunks = 1 if inside else max(1, (end - at) // step)
        taken = min(step - inside, end - at)
        yield at - first, chunk, chunks, inside, taken
        at += chunks * taken
