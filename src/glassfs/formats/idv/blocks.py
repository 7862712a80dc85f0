"""The blocks of a column: where they are stored, what is in them, and passes over them (docs/formats/idv.md §4, §5).

A block is decompressed through the cache. Of a DEFLATE stream the first bytes are taken, as many as the lookup table
declares, and what follows is not looked at, as ML.NET does. The blocks of vectors whose length differs are gone through
once, their headers only, when somebody asks for the size. Any thread may use them.

A damaged block raises Damaged where it is read; all of it is checked before the first value is given.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.content import Data, Decoded, Extent, Location
from glassfs.errors import Damaged, GlassfsError, TooLarge
from glassfs.formats.idv.codecs import Codec, Item
from glassfs.formats.idv.kept import Kept
from glassfs.formats.idv.runs import Block, Run, run_of
from glassfs.formats.idv.vectors import Vectors
from glassfs.source import Source

FIRST_OFFSET = 256
ENTRY_SIZE = 16
ENTRIES_AT_ONCE = 256
LARGEST_BLOCK = (1 << 31) - 1
MOST_ELEMENTS = 1 << 58
MOST_MEASURED = 1 << 21

_ENTRY = struct.Struct("<qii")


class Place(NamedTuple):
    """Where a block is stored. ``raw_length`` is None for a metadata value: as much as its stream gives."""

    offset: int
    length: int
    raw_length: int | None


class Lookup:
    """The lookup table of a column, of which a window is kept."""

    def __init__(self, source: Source, offset: int, count: int) -> None:
        self._source = source
        self._offset = offset
        self._count = count
        self._window = (0, b"")

    def __call__(self, number: int) -> Place:
        first, entries = self._window
        inside = (number - first) * ENTRY_SIZE
        if not 0 <= inside < len(entries):
            first, inside = number, 0
            count = min(ENTRIES_AT_ONCE, self._count - number)
            entries = self._source.read(self._offset + number * ENTRY_SIZE, count * ENTRY_SIZE)
            self._window = first, entries
        return Place(*_ENTRY.unpack_from(entries, inside))


class File(NamedTuple):
    """What all blocks of a file share. ``tail`` is where they must end."""

    source: Source
    cache: BlockCache
    tail: int
    kept: Kept


class Blocks:
    """The blocks of a column, or the single one of a metadata value; ``part`` is what messages call it.

    ``place`` says where a block is stored. ``rows_per_block`` is not 0. ``key`` tells these blocks from others of the
    file.
    """

    def __init__(
        self, file: File, codec: Codec, packing: str, rows: int, rows_per_block: int, place: Callable[[int], Place],
        part: str, key: Hashable,
    ) -> None:
        self.file = file
        self.codec = codec
        self.compression = packing
        self.rows = rows
        self.rows_per_block = rows_per_block
        self.count = -(-rows // rows_per_block)
        self.place = place
        self._part = part
        self._key = key
        self._lock = threading.Lock()
        self._bounds: tuple[Sequence[int], Sequence[int]] | None = None
        self._size: int | None = None

    def rows_in(self, number: int) -> int:
        return min(self.rows_per_block, self.rows - number * self.rows_per_block)

    @property
    def elements(self) -> Sequence[int]:
        """The elements of all vectors before each block, and of all. Takes a pass over the vectors' lengths."""
        return self._measured()[0]

    @property
    def stored(self) -> Sequence[int]:
        """The same of the elements that are stored."""
        return self._measured()[1]

    def _measured(self) -> tuple[Sequence[int], Sequence[int]]:
        with self._lock:
            if self._bounds is None:
                if self.count > MOST_MEASURED:
                    reason = f"has {self.count} blocks, which are too many to measure each of them"
                    raise TooLarge(reason, self.file.source.name, self._part)
                elements, stored = array("q", [0]), array("q", [0])
                for number in range(self.count):
                    vectors = Vectors(self._header(number), self.codec, is_header=True)
                    if max(elements[-1] + vectors.elements, stored[-1] + vectors.stored) > MOST_ELEMENTS:
                        raise self._damage("makes the column larger than a file can be", number)
                    elements.append(elements[-1] + vectors.elements)
                    stored.append(stored[-1] + vectors.stored)
                self._bounds = elements, stored
        return self._bounds

    def run(self, number: int, item: Item) -> Run:
        """The values of a block of single values."""
        def open_run() -> Run:
            block = self.block(number)
            return run_of(item, block, 0, block.rows)

        return self.file.kept.get((self._key, number, item.label), open_run)

    def vectors(self, number: int) -> Vectors:
        """A block of vectors, checked whole."""
        return self.file.kept.get((self._key, number), lambda: Vectors(self.block(number), self.codec))

    def ahead(self, number: int) -> bool:
        """Starts decompressing a block that will soon be needed; what is wrong with it shows when it is read.

        False where that is to be tried again.
        """
        if self.compression == compression.NONE or number >= self.count:
            return True
        try:
            data, _ = self._data(number, None)
        except GlassfsError:
            return True
        return not isinstance(data, Decoded) or self.file.cache.prefetch(data)

    def location(self) -> Location | None:
        """Where the values are stored, if in one block."""
        if self.count != 1:
            return None
        place = self.place(0)
        return Location(place.offset, place.length, self.compression)

    def block(self, number: int) -> Block:
        return self._block(number, self._data(number, None))

    def _header(self, number: int) -> Block:
        """A block of vectors of which only the beginning is decompressed, up to the counts."""
        return self._block(number, self._data(number, 12 + 8 * self.rows_in(number)))

    def _block(self, number: int, data: tuple[Data, int]) -> Block:
        return Block(*data, self.rows_in(number), self.file.source.name, self._part_of(number))

    def _data(self, number: int, needed: int | None) -> tuple[Data, int]:
        """The block's raw bytes, of which only the first ``needed`` may be read, and their number."""
        offset, length, size = self.place(number)
        if length < (size is None) or not FIRST_OFFSET <= offset <= self.file.tail - length:
            raise self._damage(f"lies outside the file ({length} bytes at {offset})", number)
        extent = Extent(self.file.source, offset, length)
        if size is None:
            size = self._stream_size(extent)
        if size < 0:
            raise self._damage("has a negative length", number)
        if self.compression == compression.NONE:
            if size > length:
                raise self._damage(f"has {length} stored bytes, but {size} are declared", number)
            return extent, size
        if size > compression.reach(self.compression, length):
            raise self._damage(f"cannot give {size} bytes, as only {length} are stored", number)
        wanted = size if needed is None else min(size, needed)
        return Decoded(self.file.cache, extent, self.compression, wanted, self._part_of(number)), size

    def _stream_size(self, extent: Extent) -> int:
        """How much the stream of a metadata value gives."""
        if self.compression == compression.NONE:
            return extent.size
        if self._size is None:
            size = 0
            try:
                for piece in compression.decompress_stream(self.compression, extent.pieces(), LARGEST_BLOCK):
                    size += len(piece)
            except Damaged as error:
                # A stream that ends is an error to the codec, which was told to expect more.
                if size == 0:
                    raise error.at(self.file.source.name, self._part) from error
            self._size = size
        return self._size

    def _damage(self, reason: str, number: int) -> Damaged:
        return self.file.source.damage(reason, self._part_of(number))

    def _part_of(self, number: int) -> str:
        return f"{self._part}, block {number}" if self.count > 1 else self._part
