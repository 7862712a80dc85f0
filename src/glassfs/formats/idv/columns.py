"""The blocks of a column as bytes in any range, and the passes over them (§4, §5).

A block is decompressed through the cache. Where its values are shown as they are stored and no vector is sparse, a
range of the column is a range of the block, or of the file if that is not compressed. The blocks of vectors whose
length differs are gone through once, their headers only, when somebody asks for the size.

A damaged block raises Damaged where it is read; all of it is checked before the first value is given.
"""

from __future__ import annotations

import struct
import threading
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.content import Data, Decoded, Extent, Location
from glassfs.errors import Damaged, GlassfsError, TooLarge
from glassfs.formats.idv.codecs import Codec, Item
from glassfs.formats.idv.runs import Block, Run
from glassfs.formats.idv.vectors import Vectors
from glassfs.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_OFFSET = 256
ENTRY_SIZE = 16
ENTRIES_AT_ONCE = 256
LARGEST_BLOCK = (1 << 31) - 1
MOST_ELEMENTS = 1 << 59
BYTES_AT_ONCE = 1 << 20
OPENED_KEPT = 32
TEXT_ROWS = 128
TEXT_SLOTS = 1 << 16
MOST_TEXT_SLOTS = 1 << 20

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


class Blocks:
    """The blocks of a column, or the single one of a metadata value; ``name`` is what messages call it.

    ``place`` says where a block is stored. ``rows_per_block`` is not 0.
    """

    def __init__(
        self, file: File, codec: Codec, packing: str, rows: int, rows_per_block: int, place: Callable[[int], Place],
        name: str,
    ) -> None:
        self.file = file
        self.codec = codec
        self.compression = packing
        self.rows = rows
        self.rows_per_block = rows_per_block
        self.count = -(-rows // rows_per_block)
        self.place = place
        self._name = f"{file.source.name}: {name}"
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
                elements, stored = array("q", [0]), array("q", [0])
                for number in range(self.count):
                    vectors = Vectors(self._header(number), self.codec, is_header=True)
                    if max(elements[-1] + vectors.elements, stored[-1] + vectors.stored) > MOST_ELEMENTS:
                        raise Damaged(f"{self._what(number)} makes the column larger than a file can be")
                    elements.append(elements[-1] + vectors.elements)
                    stored.append(stored[-1] + vectors.stored)
                self._bounds = elements, stored
        return self._bounds

    def run(self, number: int, item: Item) -> Run:
        """The values of a block of single values."""
        return _opened_run(self, number, item)

    def vectors(self, number: int) -> Vectors:
        """A block of vectors, checked whole."""
        return _opened_vectors(self, number)

    def ahead(self, number: int) -> None:
        """Starts decompressing a block that will soon be needed; what is wrong with it shows when it is read."""
        if self.compression == compression.NONE or number >= self.count:
            return
        try:
            data, _ = self._data(number, None)
        except GlassfsError:
            return
        if isinstance(data, Decoded):
            self.file.cache.prefetch(data)

    def location(self) -> Location | None:
        """Where the values are stored, if in one block."""
        if self.count != 1:
            return None
        place = self.place(0)
        return Location(place.offset, place.length, self.compression)

    def block(self, number: int) -> Block:
        return Block(*self._data(number, None), self.rows_in(number), self._what(number))

    def _header(self, number: int) -> Block:
        """A block of vectors of which only the beginning is decompressed, up to the counts."""
        rows = self.rows_in(number)
        return Block(*self._data(number, 12 + 8 * rows), rows, self._what(number))

    def _data(self, number: int, needed: int | None) -> tuple[Data, int]:
        """The block's raw bytes, of which only the first ``needed`` may be read, and their number."""
        what = self._what(number)
        offset, length, size = self.place(number)
        if length < (size is None) or not FIRST_OFFSET <= offset <= self.file.tail - length:
            raise Damaged(f"{what} lies outside the file ({length} bytes at {offset})")
        extent = Extent(self.file.source, offset, length)
        if size is None:
            size = self._stream_size(extent)
        if size < 0:
            raise Damaged(f"{what} has a negative length")
        if self.compression == compression.NONE:
            if size > length:
                raise Damaged(f"{what} has {length} stored bytes, declared are {size}")
            return extent, size
        if size > length * compression.DEFLATE_RATIO + compression.SMALLEST_FRAME:
            raise Damaged(f"{what} cannot give {size} bytes, as only {length} are stored")
        wanted = size if needed is None else min(size, needed)
        part = what.removeprefix(f"{self.file.source.name}: ")
        return Decoded(self.file.cache, extent, self.compression, wanted, part), size

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
                    raise Damaged(f"{self._what(0)}: {error}") from error
            self._size = size
        return self._size

    def _what(self, number: int) -> str:
        return f"{self._name}, block {number}" if self.count > 1 else self._name


# Few, and for all files together: a block of sparse vectors keeps up to 1 MiB of sums.
@lru_cache(OPENED_KEPT)
def _opened_run(blocks: Blocks, number: int, item: Item) -> Run:
    block = blocks.block(number)
    return item.run(item, block, 0, block.rows)


@lru_cache(OPENED_KEPT)
def _opened_vectors(blocks: Blocks, number: int) -> Vectors:
    return Vectors(blocks.block(number), blocks.codec)


class _Parts(Data):
    """Values of a column, a part for each of its blocks. Subclasses say where the parts begin and how one is read."""

    def __init__(self, blocks: Blocks, item: Item) -> None:
        self._blocks = blocks
        self._item = item
        self._last = -1

    @property
    @abstractmethod
    def _bounds(self) -> Sequence[int]:
        """In values: where each part begins, and where the last ends."""

    @abstractmethod
    def _part(self, number: int) -> tuple[Block, int] | Callable[[int, int], NDArray[Any]]:
        """A part: the block and the place in it from which on it is shown as stored, or what makes its values."""

    @property
    def size(self) -> int:
        return self._bounds[-1] * self._item.width

    def location(self) -> Location | None:
        return self._blocks.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        width, bounds = self._item.width, self._bounds
        number = bisect_right(bounds, offset // width) - 1
        while buffer:
            inside = offset - bounds[number] * width
            taken = min(len(buffer), (bounds[number + 1] - bounds[number]) * width - inside)
            if taken:
                self._read_ahead(number)
                part = self._part(number)
                if isinstance(part, tuple):
                    part[0].read_into(buffer[:taken], part[1] + inside)
                else:
                    _fill(buffer[:taken], inside, width, part)
            buffer, offset, number = buffer[taken:], offset + taken, number + 1

    def _read_ahead(self, number: int) -> None:
        # Requests come in parallel and out of order: one step back or forth is still sequential.
        if self._last >= 0 and 0 <= number - self._last <= 1:
            self._blocks.ahead(number + 1)
        self._last = number


class Values(_Parts):
    """Single values, and vectors with all their elements."""

    @property
    def is_sized(self) -> bool:
        return self._blocks.codec.size > 0

    @property
    def _bounds(self) -> Sequence[int]:
        size = self._blocks.codec.size
        if size == 0:
            return self._blocks.elements
        return _Steps(self._blocks.rows_per_block * size, self._blocks.rows * size)

    def _part(self, number: int) -> tuple[Block, int] | Callable[[int, int], NDArray[Any]]:
        if self._blocks.codec.dimensions is None:
            run = self._blocks.run(number, self._item)
            return (run.block, 0) if run.is_plain else run.values
        vectors = self._blocks.vectors(number)
        run = vectors.run(self._item)
        return (run.block, run.base) if run.is_plain and vectors.is_dense else partial(vectors.spread, run)


class StoredValues(_Parts):
    """Of vectors only the elements that are stored."""

    @property
    def is_sized(self) -> bool:
        return False

    @property
    def _bounds(self) -> Sequence[int]:
        return self._blocks.stored

    def _part(self, number: int) -> tuple[Block, int] | Callable[[int, int], NDArray[Any]]:
        run = self._blocks.vectors(number).run(self._item)
        return (run.block, run.base) if run.is_plain else run.values


class Indices(StoredValues):
    """The slots of the elements that are stored, as int32."""

    def _part(self, number: int) -> tuple[Block, int] | Callable[[int, int], NDArray[Any]]:
        return self._blocks.vectors(number).indices


class RowEnds(Data):
    """Where each row begins among all elements, or among those that are stored, and the end: rows + 1 of int64."""

    def __init__(self, blocks: Blocks, is_stored: bool) -> None:
        self._blocks = blocks
        self._is_stored = is_stored

    @property
    def size(self) -> int:
        return (self._blocks.rows + 1) * 8

    def read_into(self, buffer: memoryview, offset: int) -> None:
        _fill(buffer, offset, 8, self._values)

    def _values(self, first: int, count: int) -> NDArray[Any]:
        import numpy as np

        blocks = self._blocks
        bounds = blocks.stored if self._is_stored else blocks.elements
        found, end = [], min(first + count, blocks.rows)
        row = first
        while row < end:
            number, inside = divmod(row, blocks.rows_per_block)
            taken = min(end - row, blocks.rows_in(number) - inside)
            vectors = blocks.vectors(number)
            before = vectors.stored_before if self._is_stored else vectors.elements_before
            found.append(before(inside, taken) + bounds[number])
            row += taken
        if first + count > blocks.rows:
            found.append(np.array(bounds[-1:], np.int64))
        return np.concatenate(found)


class TextRows:
    """Texts, or vectors of texts as lists, in small groups of rows that lie in one block."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        size = blocks.codec.size
        # ML.NET puts fewer rows into a block the larger they are.
        rows = max(1, min(TEXT_ROWS, blocks.rows_per_block // 8, TEXT_SLOTS // size if size else TEXT_ROWS))
        self._rows = rows
        self._groups = -(-blocks.rows_per_block // rows)
        rest = blocks.rows_in(blocks.count - 1) if blocks.count else 0
        self.count = max(0, blocks.count - 1) * self._groups + -(-rest // rows)

    def group(self, group: int) -> list[Any]:
        number, first = divmod(group, self._groups)
        first *= self._rows
        count = min(self._rows, self._blocks.rows_in(number) - first)
        blocks = self._blocks
        if blocks.codec.dimensions is None:
            return list(blocks.run(number, blocks.codec.item).values(first, count))
        vectors = blocks.vectors(number)
        starts = [*vectors.elements_before(first, count).tolist(), vectors.elements]
        if first + count < blocks.rows_in(number):
            starts[-1] = int(vectors.elements_before(first + count, 1)[0])
        texts = _texts(vectors, blocks.codec.item, starts[0], starts[-1] - starts[0])
        return [texts[a - starts[0] : b - starts[0]] for a, b in pairwise(starts)]


class TextSlots:
    """The texts of a single value or vector, a few thousand at a time."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._slots = TEXT_SLOTS if blocks.codec.size else MOST_TEXT_SLOTS
        self.count = -(-blocks.codec.size // self._slots) or 1

    def group(self, group: int) -> list[Any]:
        blocks = self._blocks
        if blocks.codec.dimensions is None:
            return list(blocks.run(0, blocks.codec.item).values(0, 1))
        vectors = blocks.vectors(0)
        first = group * self._slots
        count = vectors.elements - first
        return _texts(vectors, blocks.codec.item, first, min(count, self._slots) if blocks.codec.size else count)


def _texts(vectors: Vectors, item: Item, first: int, count: int) -> list[Any]:
    if count > MOST_TEXT_SLOTS:
        raise TooLarge(f"{vectors.block.place} has vectors of text of more than {MOST_TEXT_SLOTS} slots")
    texts: list[Any] = vectors.spread(vectors.run(item), first, count).tolist()
    return texts


class _Steps(Sequence[int]):
    """0, step, 2 step … end."""

    def __init__(self, step: int, end: int) -> None:
        self._step, self._end = step, end

    def __len__(self) -> int:
        return -(-self._end // self._step) + 1

    def __getitem__(self, index: Any) -> Any:
        return self._end if index == -1 else min(index * self._step, self._end)


def _fill(buffer: memoryview, offset: int, width: int, make: Callable[[int, int], NDArray[Any]]) -> None:
    """Fills the buffer with the bytes from ``offset`` on of values that ``make(first, count)`` gives."""
    import numpy as np

    at_once = BYTES_AT_ONCE // width
    first, inside = divmod(offset, width)
    while buffer:
        count = min(at_once, -(-(inside + len(buffer)) // width))
        made = np.ascontiguousarray(make(first, count)).view("u1").data[inside : inside + len(buffer)]
        buffer[: len(made)] = made
        buffer, first, inside = buffer[len(made) :], first + count, 0
