"""Blocks of a column: location, decompression, and passes over them; the vectors of a block, dense or sparse.

Facts: docs/formats/idv.md §4, §5, §8.4. Of a DEFLATE stream only the bytes that the lookup table declares are used, as
in ML.NET. Of the vectors of a block only where its rows begin is kept: elements are expanded for the requested range,
so a row of 2^31 slots with one entry costs no more than any other. Sizes of columns of variable-length vectors need one
pass over the block headers, made on first demand. Any thread. Reading a damaged block raises Damaged; a block is
checked whole before it gives its first value.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.codec import compression, deflate
from glassfs.content import Data, Decoded, Extent, Location
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.errors import Damaged, GlassfsError
from glassfs.formats.idv.runs import Block, Codec, Item, ValueRun
from glassfs.lazy import NDArray, np
from glassfs.lru import LRU
from glassfs.once import once
from glassfs.sizes import PIECE
from glassfs.source import Source

FIRST_OFFSET = 256
ENTRY_SIZE = 16
INDICES_AT_ONCE = 1 << 17
ROW_COST = 64
"""Bytes of memory for each row while a block is opened."""
DENSE = b"\xff\xff\xff\xff"  # the count -1

_ENTRY = struct.Struct("<qii")


class BlockLocation(NamedTuple):
    """Location of a block. ``raw_length`` is None for metadata values, which are as long as their stream."""

    offset: int
    length: int
    raw_length: int | None


def located(source: Source, table: int, number: int) -> BlockLocation:
    """Return an entry of the lookup table at offset ``table``."""
    return BlockLocation(*_ENTRY.unpack(source.read(table + number * ENTRY_SIZE, ENTRY_SIZE)))


@dataclass
class BlockSource:
    """What all blocks of a file share. Blocks must end at or before offset ``tail``."""

    source: Source
    cache: BlockCache
    tail: int
    allowance: Allowance
    decoded: LRU[Hashable, Vectors] = field(init=False, default_factory=lambda: LRU(8 * PIECE, 32))


@dataclass
class Blocks:
    """The blocks of a column, or the single block of a metadata value.

    ``locate`` gives a block's location, ``part`` names the blocks in messages, and ``key`` identifies them within the
    file. ``rows_per_block`` is not 0.
    """

    file: BlockSource
    codec: Codec
    compression: str
    rows: int
    rows_per_block: int
    locate: Callable[[int], BlockLocation]
    part: str
    key: Hashable

    def __post_init__(self) -> None:
        self.count = -(-self.rows // self.rows_per_block)
        self._size: int | None = None

    def rows_in(self, number: int) -> int:
        return min(self.rows_per_block, self.rows - number * self.rows_per_block)

    def totals(self, is_stored: bool) -> Sequence[int]:
        """Return running totals of vector elements, or of stored ones. The first call reads all block headers."""
        return self._totals[is_stored]

    @once
    def _totals(self) -> tuple[Sequence[int], Sequence[int]]:
        self.file.allowance.part().take(OBJECT * self.count, "the sizes of blocks")
        elements, stored = array("q", [0]), array("q", [0])
        for number in range(self.count):
            work.check()
            vectors = self._open_vectors(number, is_header=True)
            # File sizes have 63 bits, and an element has up to 16 bytes.
            if max(elements[-1] + vectors.elements, stored[-1] + vectors.stored) > 1 << 58:
                raise self._damage("makes the column larger than the largest file", number)
            elements.append(elements[-1] + vectors.elements)
            stored.append(stored[-1] + vectors.stored)
        return elements, stored

    def vectors(self, number: int) -> Vectors:
        """Return the values of a block, fully checked. Threads that ask at once may all decode it."""
        key, decoded = (self.key, number), self.file.decoded
        known = decoded.get(key)
        if known is None:
            known = self._open_vectors(number)
            if known.weight <= decoded.limit:
                decoded.put(key, known, known.weight)
        return known

    def _open_vectors(self, number: int, is_header: bool = False) -> Vectors:
        rows = self.rows_in(number)
        if self.codec.dimensions is not None:
            self.file.allowance.part().take(ROW_COST * rows, "the rows of a block")
        block = self.block(number, 12 + 8 * rows if is_header else None)  # up to the end of its counts
        return Vectors(block, self.codec, is_header)

    def ahead(self, number: int) -> None:
        """Start decompressing a block that will soon be read; errors are raised when it is read."""
        if self.compression != compression.NONE and number < self.count:
            with suppress(GlassfsError):
                data, _ = self._data(number, None)
                if isinstance(data, Decoded):
                    self.file.cache.prefetch(data)

    def location(self) -> Location | None:
        """Return where the values are stored, or None if they are in more than one block."""
        if self.count != 1:
            return None
        stored = self.locate(0)
        return Location(stored.offset, stored.length, self.compression)

    def block(self, number: int, needed: int | None = None) -> Block:
        """Return a block, of which at most the first ``needed`` bytes may be read."""
        data, size = self._data(number, needed)
        source = self.file.source
        key = (source.version, self.key, number)
        return Block(data, size, self.rows_in(number), source.name, self._part_of(number), self.file.cache, key)

    def _data(self, number: int, needed: int | None) -> tuple[Data, int]:
        """Return the block's raw bytes and their number. At most the first ``needed`` bytes may be read."""
        offset, length, size = self.locate(number)
        # A metadata value of no bytes has no stream to measure. Other blocks may be empty.
        if length < (size is None) or not FIRST_OFFSET <= offset <= self.file.tail - length:
            raise self._damage(f"lies outside the file ({length} bytes at {offset})", number)
        extent = Extent(self.file.source, offset, length)
        if size is None:
            size = self._stream_size(extent)
        if size < 0:
            raise self._damage("has a negative length", number)
        if self.compression == compression.NONE:
            if size > length:
                raise self._damage(f"has {length} stored bytes, but declares {size}", number)
            return extent, size
        # Nothing is allocated for a size that the stored bytes cannot expand to.
        if size > compression.reach(self.compression, length):
            raise self._damage(f"declares {size} bytes, more than {length} stored bytes can hold", number)
        wanted = size if needed is None else min(size, needed)
        return Decoded(self.file.cache, extent, self.compression, wanted, self._part_of(number)), size

    def _stream_size(self, extent: Extent) -> int:
        """Return the decompressed size of a metadata value."""
        if self.compression == compression.NONE:
            return extent.size
        if self._size is None:
            try:
                self._size = sum(map(len, deflate.inflated(deflate.inflater(), extent.pieces())))
            except Damaged as error:
                raise error.at(self.file.source.name, self.part) from error
        return self._size

    def _damage(self, reason: str, number: int) -> Damaged:
        return self.file.source.damage(reason, self._part_of(number))

    def _part_of(self, number: int) -> str:
        return f"{self.part}, block {number}" if self.count > 1 else self.part


class Vectors:
    """The vectors of a block: lengths and counts, indices, and one run of stored elements.

    Single values are vectors of one slot, of which only the run is stored.
    With ``is_header``, the block may end after the counts and only the sums may be used. The caller has counted
    ROW_COST for each row.
    """

    def __init__(self, block: Block, codec: Codec, is_header: bool = False) -> None:
        self.block = block
        self._runs: dict[str, ValueRun] = {}
        if codec.dimensions is None:
            self.is_dense, self._length, self.base = True, 1, 0
            self.elements = self.stored = block.rows
            return
        self._length = block.integer(4)
        if block.integer(0) != block.rows:
            raise block.damage(f"declares {block.integer(0)} vectors, but has {block.rows} rows")
        if self._length < 0 or (codec.size and self._length != codec.size):
            raise block.damage(f"declares vectors of {self._length} slots, but its column declares {codec.size}")
        counts_at = 8 if self._length else 8 + 4 * block.rows
        self._indices_at = counts_at + 4 * block.rows + 4
        block.demand(self._indices_at)
        # Compares bytes: most vectors are dense, and importing NumPy takes longer than decoding a block.
        self.is_dense = self._length > 0 and block.read(counts_at, 4 * block.rows) == DENSE * block.rows
        self.elements = self.stored = block.rows * self._length
        indices = 0
        if not self.is_dense:
            self._find_rows(counts_at)
            self.elements, self.stored, indices = (int(starts[-1]) for starts in self._starts)
        total = block.integer(self._indices_at - 4)
        if total < indices:
            raise block.damage(f"declares {total} indices, but its rows use {indices}")
        self.base = self._indices_at + 4 * total
        block.demand(self.base + codec.item.form.stored_size(codec.item, self.stored))
        if not self.is_dense and not is_header:
            self._check_indices()

    def _find_rows(self, counts_at: int) -> None:
        """Find which rows are sparse, and where each row begins, and the last one ends.

        ``_starts`` has these positions among all elements, the stored ones, and the indices.
        """
        rows = self.block.rows
        counts = self.block.integers(counts_at, rows).astype(np.int64)
        lengths = self.block.integers(8, rows).astype(np.int64) if not self._length else np.full(rows, self._length)
        if (lengths < 0).any() or (counts < -1).any():
            raise self.block.damage("has a vector of negative length")
        if (counts >= lengths).any():
            raise self.block.damage("has a sparse vector with no fewer entries than slots")
        # A dense row has the count -1. Its elements are all stored, and it has no indices.
        self._is_sparse = counts >= 0
        numbers = lengths, np.where(self._is_sparse, counts, lengths), np.maximum(counts, 0)
        self._starts = [np.concatenate(([0], np.cumsum(number))) for number in numbers]

    @property
    def weight(self) -> int:
        """The approximate bytes of memory used."""
        return 2048 + (0 if self.is_dense else 25 * self.block.rows)

    def run(self, item: Item) -> ValueRun:
        """Return the stored elements as values of ``item``."""
        run = self._runs.get(item.label)
        if run is None:
            run = self._runs[item.label] = item.form(item, self.block, self.base, self.stored)
        return run

    def starts(self, row: int, count: int, is_stored: bool = False) -> NDArray[Any]:
        """Return the number of (stored) elements before each of ``count`` rows from ``row`` on."""
        if self.is_dense:
            return np.arange(row, row + count) * self._length
        starts: NDArray[Any] = self._starts[is_stored][row : row + count]
        return starts

    def stored_at(self, element: int) -> int:
        """Return how many of the elements before this one are stored."""
        if self.is_dense:
            return element
        starts, stored, indices = self._starts
        row = int(starts.searchsorted(element, "right")) - 1
        slot = element - int(starts[row])
        before = int(stored[row])
        if slot == 0 or not self._is_sparse[row]:
            return before + slot
        # The indices of a row rise, so the number of those below the slot is found by bisection, a few reads of four
        # bytes each.
        start, end = int(indices[row]), int(indices[row + 1])
        return before + bisect_left(
            range(end), slot, start, key=lambda position: self.block.integer(self._indices_at + 4 * position),
        ) - start

    def spread(self, run: ValueRun, first: int, count: int) -> NDArray[Any]:
        """Return elements ``[first, first + count)`` of the block, with fill values where none is stored."""
        start, end = self.stored_at(first), self.stored_at(first + count)
        values = run.values(start, end - start)
        if end - start == count:
            return values
        shown = run.filled(count)
        if end > start:
            slots, starts = self._slots(start, end)
            shown[slots + (starts - first)] = values
        return shown

    def indices(self, first: int, count: int) -> NDArray[Any]:
        """Return the slots of stored elements ``[first, first + count)``, as int32."""
        return self._slots(first, first + count)[0].astype("<i4")

    def _slots(self, first: int, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the slots of stored elements ``[first, end)`` of the block, and the first element of their rows."""
        slots: NDArray[Any] = np.arange(first, end)
        if self.is_dense:
            return slots % self._length, slots // self._length * self._length
        starts, stored, indices = self._starts
        rows = stored.searchsorted(slots, "right") - 1
        slots -= stored[rows]
        is_index = self._is_sparse[rows]
        if is_index.any():
            # Of the first row only the last elements may be wanted.
            index = int(indices[rows[0]]) + (int(slots[0]) if is_index[0] else 0)
            slots[is_index] = self.block.integers(self._indices_at + 4 * index, int(is_index.sum()))
        return slots, starts[rows]

    def _check_indices(self) -> None:
        """Raise Damaged unless the indices of each row rise within its length."""
        starts, _, indices = self._starts
        last = -1
        for first in range(0, int(indices[-1]), INDICES_AT_ONCE):
            end = min(first + INDICES_AT_ONCE, int(indices[-1]))
            slots = self.block.integers(self._indices_at + 4 * first, end - first)
            rows = indices.searchsorted(np.arange(first, end), "right") - 1
            # Rows follow one another, so that the elements of the block rise if the indices of each row do.
            elements = starts[rows] + slots
            is_rising = (np.diff(elements, prepend=last) > 0).all()
            if not is_rising or (slots < 0).any() or (elements >= starts[rows + 1]).any():
                raise self.block.damage("has a sparse vector whose indices do not rise within its length")
            last = int(elements[-1])
