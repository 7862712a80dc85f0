"""Blocks of a column: location, decompression, and passes over them (docs/formats/idv.md §4, §5).

Blocks are decompressed through the cache. Of a DEFLATE stream only the bytes that the lookup table declares are used,
as in ML.NET. Sizes of columns of variable-length vectors need one pass over the block headers, made on first demand.
Any thread may use this module. Reading a damaged block raises Damaged; a block is checked whole before it gives its
first value.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.content import Data, Decoded, Extent, Location
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.errors import Damaged, GlassfsError
from glassfs.formats.idv.codecs import Codec
from glassfs.formats.idv.runs import Block
from glassfs.formats.idv.vectors import ROW_COST, Vectors
from glassfs.lru import LRU
from glassfs.sizes import PIECE
from glassfs.source import Source

FIRST_OFFSET = 256
ENTRY_SIZE = 16

_ENTRY = struct.Struct("<qii")


class BlockLocation(NamedTuple):
    """Location of a block. ``raw_length`` is None for metadata values, which are as long as their stream."""

    offset: int
    length: int
    raw_length: int | None


def located(source: Source, table: int, number: int) -> BlockLocation:
    """Return an entry of the lookup table at offset ``table``."""
    return BlockLocation(*_ENTRY.unpack(source.read(table + number * ENTRY_SIZE, ENTRY_SIZE)))


@dataclass(frozen=True)
class BlockSource:
    """What all blocks of a file share. Blocks must end at or before offset ``tail``."""

    source: Source
    cache: BlockCache
    tail: int
    allowance: Allowance
    decoded: LRU[Hashable, Vectors] = field(default_factory=lambda: LRU(8 * PIECE, 32))


@dataclass(eq=False)
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
        self._lock = threading.Lock()
        self._totals: tuple[Sequence[int], Sequence[int]] | None = None
        self._size: int | None = None

    def rows_in(self, number: int) -> int:
        return min(self.rows_per_block, self.rows - number * self.rows_per_block)

    def totals(self, is_stored: bool) -> Sequence[int]:
        """Return running totals of vector elements, or of stored ones. The first call reads all block headers."""
        with work.holding(self._lock):
            if self._totals is None:
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
                self._totals = elements, stored
        return self._totals[is_stored]

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
            size = 0
            try:
                for piece in compression.decompress_stream(self.compression, extent.pieces(), (1 << 31) - 1):
                    size += len(piece)
            except Damaged as error:
                # The codec reports the end of the stream as an error, as it was asked for more bytes.
                if size == 0:
                    raise error.at(self.file.source.name, self.part) from error
            self._size = size
        return self._size

    def _damage(self, reason: str, number: int) -> Damaged:
        return self.file.source.damage(reason, self._part_of(number))

    def _part_of(self, number: int) -> str:
        return f"{self.part}, block {number}" if self.count > 1 else self.part
