"""Bytes of a known size, readable in any range: those of a source, and the contract of all data derived from them.

Data are immutable and may be read from any thread. ``read_into`` fills the whole buffer, or raises Damaged or Changed;
the range must lie inside ``[0, size)``. The only two loops over a range are here: over consecutive parts (``Parted``),
and over units of one size (``Made``).
"""

from __future__ import annotations

import struct
import sys
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache, Recipe
from glassfs.codec import compression
from glassfs.errors import Damaged, GlassfsError
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.source import Source


class Location(NamedTuple):
    """Where bytes are stored in their container. ``stored`` is their size there, ``source`` the file if it is known."""

    offset: int
    stored: int
    codec: str = compression.NONE
    checksum: str | None = None
    source: Source | None = None


class Data(ABC):
    """``size`` bytes. The first use of the size may need work, and that may raise Damaged."""

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    def is_sized(self) -> bool:
        """Whether the size is known without reading blocks."""
        return True

    @property
    def is_cheap(self) -> bool:
        """Whether finding the size takes little, whatever a container holds."""
        return self.is_sized

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None: ...

    def mapped(self) -> memoryview | None:
        """Return all bytes if they are available without reading (see ``Source.mapped``), else None."""
        return None

    def location(self) -> Location | None:
        """Return where the bytes are stored, if they are contiguous."""
        return None

    def written(self) -> Iterator[Data] | None:
        """Yield the parts that are stored, if most of the bytes are not stored anywhere; None for all other data."""
        return None

    def read(self, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def whole(self) -> bytes | bytearray:
        return self.read(0, self.size)

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, at most PIECE at a time."""
        for offset in range(0, self.size, PIECE):
            yield self.read(offset, min(PIECE, self.size - offset))


class SizedData(Data):
    """Base of data whose size is known when they are made."""

    size: int = 0  # not a property, as there are many data
    is_sized = True

    def __init__(self, size: int) -> None:
        self.size = size


class Memory(SizedData):
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data))
        self._bytes = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self._bytes[offset : offset + len(buffer)]


class Extent(SizedData):
    """The bytes ``[offset, offset + size)`` of a source, unchanged.

    Reading an extent that exceeds the source raises Damaged; making one does not.
    """

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self.size = size
        self.source = source
        self.offset = offset

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.source.read_into(buffer, self.offset + offset)

    def mapped(self) -> memoryview | None:
        return self.source.mapped(self.offset, self.size)

    def location(self) -> Location:
        return Location(self.offset, self.size, source=self.source)


class Zeros(SizedData):
    """``size`` zero bytes."""

    def written(self) -> Iterator[Data]:
        return iter(())

    def read_into(self, buffer: memoryview, offset: int) -> None:
        for start in range(0, len(buffer), PIECE):
            piece = buffer[start : start + PIECE]
            piece[:] = bytes(len(piece))


class Unreadable(SizedData):
    """``size`` bytes that are missing, cannot be trusted or not be decoded here: every read raises ``fault``."""

    def __init__(self, size: int, fault: GlassfsError) -> None:
        super().__init__(size)
        self._fault = fault

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise self._fault.at()


class Slice(SizedData):
    """The bytes ``[offset, offset + size)`` of other data."""

    def __init__(self, data: Data, offset: int, size: int) -> None:
        super().__init__(size)
        self._data, self._offset = data, offset

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._data.read_into(buffer, self._offset + offset)

    def mapped(self) -> memoryview | None:
        whole = self._data.mapped()
        return None if whole is None else whole[self._offset : self._offset + self.size]


class Parted(Data):
    """Consecutive parts. Subclasses define ``bounds``, or ``size`` and ``part_at`` instead."""

    @property
    def bounds(self) -> Sequence[int]:
        """Where each part begins, in rising order, and where the last one ends."""
        raise NotImplementedError

    @abstractmethod
    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer``, not empty and ending with the part at the latest, from byte ``offset`` of the part on."""

    @property
    def size(self) -> int:
        return self.bounds[-1]

    def part_at(self, offset: int) -> tuple[int, int, int]:
        """Return the number of the part that has the byte at ``offset``, where it begins, and where it ends."""
        bounds = self.bounds
        # Parts of one size need no search: that is the case of most arrays in blocks.
        if isinstance(bounds, Regular):
            start = offset - offset % bounds.step
            return start // bounds.step, start, min(start + bounds.step, bounds.end)
        number = min(bisect_right(bounds, offset), len(bounds) - 1) - 1
        return number, bounds[number], bounds[number + 1]

    def read_into(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            number, start, end = self.part_at(offset)
            if not start <= offset < end:
                raise Damaged("the offsets of its parts do not rise")
            taken = min(len(buffer), end - offset)
            self.read_part(number, buffer[:taken], offset - start)
            buffer, offset = buffer[taken:], offset + taken


class Made(Data):
    """Units of ``unit`` bytes, any number of which can be made at once."""

    @property
    @abstractmethod
    def unit(self) -> int: ...

    @abstractmethod
    def make(self, first: int, count: int) -> bytes | memoryview:
        """Return the units ``[first, first + count)``. The last unit of the data may be incomplete."""

    @property
    def at_once(self) -> int:
        """The largest number of units made at a time."""
        return max(1, PIECE // self.unit)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        unit, at_once = self.unit, self.at_once
        first, inside = divmod(offset, unit)
        while buffer:
            work.check()
            # Whole units are made, at most about PIECE bytes of them at a time, and cut to what the range needs.
            count = min(at_once, -(-(inside + len(buffer)) // unit))
            made = self.make(first, count)
            taken = min(len(buffer), len(made) - inside)
            if taken <= 0:
                raise Damaged("the stored bytes are too few")
            buffer[:taken] = made[inside : inside + taken]
            buffer, first, inside = buffer[taken:], first + count, 0


class Computed(SizedData):
    """``size`` bytes that ``compute`` returns, called for each read: for few bytes that are cheap to make."""

    def __init__(self, size: int, compute: Callable[[], bytes]) -> None:
        super().__init__(size)
        self._compute = compute

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self._compute()[offset : offset + len(buffer)]


@dataclass(eq=False)
class Regular(Sequence[int]):
    """Bounds of parts of one size, the last of which may be shorter: 0, ``step``, 2 ``step`` … ``end``."""

    step: int
    end: int

    def __len__(self) -> int:
        return -(-self.end // self.step) + 1

    def __getitem__(self, index: Any) -> Any:
        if index == -1:
            return self.end
        if index < 0 or (index - 1) * self.step >= self.end:
            raise IndexError(index)
        return min(index * self.step, self.end)


class Concatenated(Parted):
    """Several data, one after another."""

    bounds: Sequence[int] = ()

    def __init__(self, parts: Sequence[Data]) -> None:
        self._parts = parts
        self.bounds = [*accumulate((part.size for part in parts), initial=0)]

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        self._parts[number].read_into(buffer, offset)


class Gathered(SizedData, Made):
    """One field of interleaved records: ``count`` times ``width`` bytes, ``stride`` bytes apart in ``records``.

    The first field begins at ``offset``. A read reads the whole records and picks the field.
    """

    unit: int = 1

    def __init__(self, records: Data, offset: int, width: int, stride: int, count: int) -> None:
        self.size = width * count
        self.unit = width
        self._records = records
        self._offset, self._stride = offset, stride

    @property
    def at_once(self) -> int:
        return max(1, PIECE // self._stride)

    def make(self, first: int, count: int) -> bytes:
        stride, width = self._stride, self.unit
        # The last record is read only up to the end of the field.
        records = self._records.read(self._offset + first * stride, (count - 1) * stride + width)
        # NumPy takes long to load: for a few rows of an episode a program should not have to wait for it.
        if count <= 256 and "numpy" not in sys.modules:
            return b"".join(records[start : start + width] for start in range(0, len(records), stride))
        return np.ndarray((count,), f"V{width}", records, strides=(stride,)).tobytes()


class Chosen(SizedData, Made):
    """Rows of ``unit`` bytes of other data, those with the numbers ``rows``, which do not fall."""

    unit: int = 1

    def __init__(self, data: Data, unit: int, rows: NDArray[Any] | range) -> None:
        super().__init__(unit * len(rows))
        self._data, self.unit, self._rows = data, unit, rows

    def make(self, first: int, count: int) -> bytes:
        rows = self._rows[first : first + count]
        if isinstance(rows, range):
            rows = np.arange(rows.start, rows.stop, rows.step)
        begin, end, unit = int(rows[0]), int(rows[-1]) + 1, self.unit
        if end - begin > 4 * count:  # reading what is between them would take longer than many reads
            return b"".join(self._data.read(row * unit, unit) for row in rows.tolist())
        between = self._data.read(begin * unit, (end - begin) * unit)
        chosen: bytes = np.frombuffer(between, f"V{unit}")[rows - begin].tobytes()
        return chosen


class Counted(SizedData, Made):
    """The numbers 0, 1 … ``count - 1`` as little-endian 64-bit integers."""

    unit = 8

    def __init__(self, count: int) -> None:
        super().__init__(self.unit * count)

    def make(self, first: int, count: int) -> bytes:
        last = min(first + count, self.size // self.unit)
        return struct.pack(f"<{last - first}q", *range(first, last))


class Converted(SizedData, Made):
    """Data converted unit by unit: each ``stored`` bytes of ``data`` become ``shown`` bytes.

    ``convert`` takes any whole number of units and keeps their number. The last unit of the data may be incomplete,
    which is why ``size`` is given.
    """

    unit: int = 1

    def __init__(
        self, data: Data, stored: int, shown: int, size: int, convert: Callable[[bytes], bytes | memoryview],
    ) -> None:
        super().__init__(size)
        self._data = data
        self._stored, self.unit = stored, shown
        self._convert = convert

    @property
    def at_once(self) -> int:
        return max(1, PIECE // max(self.unit, self._stored))

    def location(self) -> Location | None:
        return self._data.location()

    def written(self) -> Iterator[Data] | None:
        return self._data.written()

    def make(self, first: int, count: int) -> bytes | memoryview:
        start = first * self._stored
        return self._convert(self._data.read(start, min(count * self._stored, self._data.size - start)))


_TRUTH = bytes([0]) + bytes([1]) * 255


def booleans(data: Data, count: int) -> Data:
    """Return ``count`` bytes as booleans of NumPy: every byte but 0 becomes 1."""
    return Converted(data, 1, 1, count, lambda raw: raw.translate(_TRUTH))


class Blocked(Parted):
    """Data in blocks, each made when a range needs it.

    ``find_bounds`` returns the rising positions at which blocks begin, and the end of the last one. It is called once,
    when the size is first needed, and may read the blocks to find out; ``is_sized`` says that it does not. A reader
    that continues with the next block has the block after that prefetched, if blocks are made ``is_ahead`` of readers.
    """

    def __init__(
        self, cache: BlockCache, find_bounds: Callable[[], Sequence[int]], block: Callable[[int], Recipe],
        is_sized: bool = False, is_ahead: bool = True,
    ) -> None:
        self._cache = cache
        self._find_bounds = find_bounds
        self._block = block
        self._is_sized = is_sized
        self._is_ahead = is_ahead
        self._bounds: Sequence[int] | None = None
        self._lock = threading.Lock()
        self._last = -1

    @property
    def bounds(self) -> Sequence[int]:
        if self._bounds is None:
            with work.holding(self._lock):
                if self._bounds is None:
                    self._bounds = self._find_bounds()
        return self._bounds

    @property
    def is_sized(self) -> bool:
        return self._is_sized or self._bounds is not None

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        # Read-ahead requests arrive in parallel and out of order: one step back or forth is still sequential.
        if self._is_ahead and self._last >= 0 and 0 <= number - self._last <= 1 and number + 2 < len(self.bounds):
            self._cache.prefetch(self._block(number + 1))
        self._last = number
        self._cache.read_into(self._block(number), buffer, offset)
