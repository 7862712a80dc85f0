"""Bytes of a known size, readable in any range: extents of a source, decoded blocks, and what is made of them.

All of them are immutable and may be read from any thread. ``read_into`` fills the whole buffer or raises
Damaged or Changed; the range must lie inside ``[0, size)``.
"""

from __future__ import annotations

import bisect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from glassfs.cache import BlockCache, Recipe
from glassfs.codec import checksum, compression
from glassfs.errors import Damaged, GlassfsError
from glassfs.source import Source

PIECE = 1 << 20
CHECKED_AT_ONCE = 16 << 20
HELD_BACK = 128 << 10


class Location(NamedTuple):
    """Where bytes are stored in their container. ``stored`` is their size there."""

    offset: int
    stored: int
    codec: str = compression.NONE
    checksum: str | None = None


class Data(ABC):
    """``size`` bytes. The size may need work the first time it is asked for, and that may raise Damaged."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    def is_sized(self) -> bool:
        """Whether the size is known without reading blocks."""
        return True

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None: ...

    def location(self) -> Location | None:
        """Where the bytes are stored, if they stand in one place."""
        return None

    def read(self, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def whole(self) -> bytes:
        return self.read(0, self.size)

    def pieces(self) -> Iterator[bytes]:
        """All bytes, at most PIECE at a time."""
        for offset in range(0, self.size, PIECE):
            yield self.read(offset, min(PIECE, self.size - offset))


class Memory(Data):
    """Bytes at hand."""

    __slots__ = ("_bytes",)

    def __init__(self, data: bytes) -> None:
        self._bytes = data

    @property
    def size(self) -> int:
        return len(self._bytes)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self._bytes[offset : offset + len(buffer)]


class Extent(Data):
    """The bytes ``[offset, offset + size)`` of a source, unchanged.

    An extent that leaves the source is Damaged when it is read, not when it is made.
    """

    __slots__ = ("_size", "offset", "source")

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self.source = source
        self.offset = offset
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.source.read_into(buffer, self.offset + offset)

    def location(self) -> Location:
        return Location(self.offset, self._size)


class Unreadable(Data):
    """``size`` bytes that are missing or cannot be trusted: every read raises Damaged with ``reason``."""

    __slots__ = ("_reason", "_size")

    def __init__(self, size: int, reason: str) -> None:
        self._size = size
        self._reason = reason

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise Damaged(self._reason)


class Slice(Data):
    """The bytes ``[offset, offset + size)`` of other data."""

    __slots__ = ("_data", "_offset", "_size")

    def __init__(self, data: Data, offset: int, size: int) -> None:
        self._data, self._offset, self._size = data, offset, size

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._data.read_into(buffer, self._offset + offset)


class Concatenated(Data):
    """Several data, one after another."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Data]) -> None:
        self._parts = parts
        self._ends: list[int] = []
        end = 0
        for part in parts:
            end += part.size
            self._ends.append(end)

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read_into(self, buffer: memoryview, offset: int) -> None:
        index = bisect.bisect_right(self._ends, offset)
        while buffer:
            part = self._parts[index]
            inside = offset - (self._ends[index] - part.size)
            taken = min(len(buffer), part.size - inside)
            if taken:
                part.read_into(buffer[:taken], inside)
            buffer, offset, index = buffer[taken:], offset + taken, index + 1


class Gathered(Data):
    """One field of interleaved records: ``count`` times ``width`` bytes, ``stride`` bytes apart in ``records``.

    The first field begins at ``offset``. A range is read with the records around it and picked out.
    """

    __slots__ = ("_count", "_offset", "_records", "_stride", "_width")

    def __init__(self, records: Data, offset: int, width: int, stride: int, count: int) -> None:
        self._records = records
        self._offset, self._width, self._stride, self._count = offset, width, stride, count

    @property
    def size(self) -> int:
        return self._width * self._count

    def read_into(self, buffer: memoryview, offset: int) -> None:
        rows = max(1, PIECE // self._stride)
        row, inside = divmod(offset, self._width)
        while buffer:
            count = min(rows, -(-(inside + len(buffer)) // self._width))
            fields = self._fields(row, count)
            taken = min(len(buffer), len(fields) - inside)
            buffer[:taken] = fields[inside : inside + taken]
            buffer, row, inside = buffer[taken:], row + count, 0

    def _fields(self, row: int, count: int) -> memoryview:
        import numpy as np

        # The last record is read only up to the end of the field.
        size = (count - 1) * self._stride + self._width
        raw = np.frombuffer(self._records.read(self._offset + row * self._stride, size), np.uint8)
        fields = np.lib.stride_tricks.as_strided(raw, (count, self._width), (self._stride, 1))
        return np.ascontiguousarray(fields).reshape(-1).data


class Converted(Data):
    """Data changed unit by unit: each ``stored`` bytes of ``data`` become ``shown`` bytes.

    ``convert`` turns any whole number of units at once and keeps their number; the last unit of the data may be
    cut, which is why ``size`` is given.
    """

    __slots__ = ("_convert", "_data", "_shown", "_size", "_stored")

    def __init__(self, data: Data, stored: int, shown: int, size: int, convert: Callable[[bytes], bytes]) -> None:
        self._data = data
        self._stored, self._shown, self._size = stored, shown, size
        self._convert = convert

    @property
    def size(self) -> int:
        return self._size

    def location(self) -> Location | None:
        return self._data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        at_once = max(1, PIECE // max(self._shown, self._stored))
        unit, inside = divmod(offset, self._shown)
        while buffer:
            count = min(at_once, -(-(inside + len(buffer)) // self._shown))
            start = unit * self._stored
            raw = self._data.read(start, min(count * self._stored, self._data.size - start))
            shown = self._convert(raw)
            taken = min(len(buffer), len(shown) - inside)
            if taken <= 0:
                raise Damaged("a conversion gives too few bytes")
            buffer[:taken] = shown[inside : inside + taken]
            buffer, unit, inside = buffer[taken:], unit + count, 0


class Rendered(Data):
    """Bytes made as a whole by ``make`` and kept in the cache; their size is that of the result.

    ``size`` may be given where it is known beforehand: then ``make`` must give just as many bytes. Otherwise the
    first one who asks for the size renders them.
    """

    __slots__ = ("_cache", "_make", "_size", "key")

    def __init__(self, cache: BlockCache, key: Hashable, make: Callable[[], bytes], size: int | None = None) -> None:
        self._cache = cache
        self.key = key
        self._make = make
        self._size = size

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = len(self._cache.block(_Unsized(self.key, self._make)))
        return self._size

    @property
    def is_sized(self) -> bool:
        return self._size is not None

    def whole(self) -> bytes:
        made = self._make()
        if self._size is not None and len(made) != self._size:
            raise Damaged(f"renders to {len(made)} bytes, expected {self._size}")
        return made

    def pieces(self) -> Iterator[bytes]:
        made = memoryview(self.whole())
        for offset in range(0, len(made), PIECE):
            yield bytes(made[offset : offset + PIECE])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self.size <= self._cache.largest_kept:
            buffer[:] = memoryview(self._cache.block(self))[offset : offset + len(buffer)]
        else:
            self._cache.read_into(self, buffer, offset)


class _Unsized(NamedTuple):
    """A recipe whose size nobody knows before it is made; it must be small."""

    key: Hashable
    make: Callable[[], bytes]
    size: int = 0

    def whole(self) -> bytes:
        return self.make()

    def pieces(self) -> Iterator[bytes]:
        yield self.make()


class Decoded(Data):
    """One stored block of a source, decoded and checked: ``size`` raw bytes from the stored bytes of ``extent``.

    ``crc`` is a CRC-32C of the raw bytes or, for compressed blocks, of the stored ones (formats/wshard.md §6); None:
    not checked. ``what`` names the block in messages. The raw bytes of a compressed block are kept by the cache. Of a
    block too large to check before its first byte is given, the last HELD_BACK bytes are given only after the whole of
    it was found to be right.
    """

    __slots__ = ("_cache", "_check", "_crc", "_extent", "_size", "codec", "key", "what")

    def __init__(
        self, cache: BlockCache, extent: Extent, codec: str, size: int, what: str, crc: int | None = None,
    ) -> None:
        self._cache = cache
        self._extent = extent
        self._size = size
        self._crc = crc
        self._check = None if codec != compression.NONE or crc is None else _Check(self._is_right)
        self.codec = codec
        self.what = what
        self.key: Hashable = (extent.source.identity, extent.offset, extent.size, codec, size, crc)

    @property
    def size(self) -> int:
        return self._size

    def location(self) -> Location:
        crc = None if self._crc is None else f"crc32c:{self._crc:08x}"
        return Location(self._extent.offset, self._extent.size, self.codec, crc)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self.codec != compression.NONE:
            self._cache.read_into(self, buffer, offset)
            return
        if self._extent.size != self._size:
            raise self._damage(f"has {self._extent.size} stored bytes, declared are {self._size}")
        if self._check is not None and not self._check.is_passed:
            is_early = self._size > CHECKED_AT_ONCE and offset + len(buffer) <= self._size - HELD_BACK
            if is_early and not self._check.is_failed:
                self._check.begin(self._cache)
            elif not self._check.result():
                raise self._damage("checksum does not match")
        self._extent.read_into(buffer, offset)

    def whole(self) -> bytes:
        if self._extent.size > self._size + HELD_BACK:
            return b"".join(self.pieces())  # more is stored than can be needed: it is not read at once
        with self._cache.waiting():
            stored = self._extent.source.buffer(self._extent.offset, self._extent.size)
        try:
            raw = compression.decompress(self.codec, stored, self._size)
        except Damaged as error:
            raise self._damage(str(error)) from error
        if self._crc is not None and self._crc not in (checksum.crc32c(raw), checksum.crc32c(stored)):
            raise self._damage("checksum does not match")
        return raw

    def _is_right(self) -> bool:
        crc = 0
        for piece in self._extent.pieces():
            crc = checksum.crc32c(piece, crc)
        return crc == self._crc

    def pieces(self) -> Iterator[bytes]:
        raw_crc = stored_crc = 0

        def stored() -> Iterator[bytes]:
            nonlocal stored_crc
            waiting = self._extent.pieces()
            while True:
                with self._cache.waiting():
                    piece = next(waiting, None)
                if piece is None:
                    return
                if self._crc is not None and self.codec != compression.NONE:
                    stored_crc = checksum.crc32c(piece, stored_crc)
                yield piece

        left, held = self._size, b""
        pieces = stored()
        try:
            for piece in compression.decompress_stream(self.codec, pieces, self._size):
                if self._crc is not None:
                    raw_crc = checksum.crc32c(piece, raw_crc)
                left -= len(piece)
                if left > HELD_BACK:
                    yield piece
                else:
                    held += piece
        except GlassfsError as error:
            raise self._damage(str(error)) from error
        if self._crc is not None:
            for _ in pieces:  # the checksum of the stored bytes covers what the decoder did not need, too
                pass
        if self._crc is not None and self._crc not in (raw_crc, stored_crc):
            raise self._damage("checksum does not match")
        yield held

    def _damage(self, reason: str) -> Damaged:
        return Damaged(f"{self._extent.source.name}: {self.what}: {reason}")


class _Check:
    """A check that is made once, when first needed, by one thread; a failure to read is not remembered."""

    def __init__(self, check: Callable[[], bool]) -> None:
        self._run = check
        self._lock = threading.Lock()
        self._is_begun = False
        self._found: bool | None = None

    @property
    def is_passed(self) -> bool:
        return self._found is True

    @property
    def is_failed(self) -> bool:
        return self._found is False

    def begin(self, cache: BlockCache) -> None:
        """Starts it on another thread; raises nothing, whatever it finds."""
        if not self._is_begun:
            self._is_begun = True
            cache.run(self.result)

    def result(self) -> bool:
        with self._lock:
            if self._found is None:
                self._found = self._run()
            return self._found


class Blocked(Data):
    """Data in blocks that are made one at a time when a range needs them.

    ``bounds`` gives the rising positions at which the blocks begin, and the end of the last one; it is called once,
    when the size is first asked for, and may read the blocks to find out. Without such work, ``is_sized`` is given as
    True. A reader that goes on to the next block finds the one after it already being made.
    """

    def __init__(
        self, cache: BlockCache, bounds: Callable[[], Sequence[int]], block: Callable[[int], Recipe],
        is_sized: bool = False,
    ) -> None:
        self._cache = cache
        self._make_bounds = bounds
        self._block = block
        self._is_sized = is_sized
        self._bounds: Sequence[int] | None = None
        self._lock = threading.Lock()
        self._last = -1

    @property
    def bounds(self) -> Sequence[int]:
        """Where the blocks begin, and where the last one ends."""
        if self._bounds is None:
            with self._lock:
                if self._bounds is None:
                    self._bounds = self._make_bounds()
        return self._bounds

    @property
    def size(self) -> int:
        return self.bounds[-1]

    @property
    def is_sized(self) -> bool:
        return self._is_sized or self._bounds is not None

    def read_into(self, buffer: memoryview, offset: int) -> None:
        index = bisect.bisect_right(self.bounds, offset) - 1
        while buffer:
            start, end = self.bounds[index], self.bounds[index + 1]
            taken = min(len(buffer), end - offset)
            if taken:
                self._read_block(index, buffer[:taken], offset - start)
            buffer, offset, index = buffer[taken:], offset + taken, index + 1

    def _read_block(self, index: int, buffer: memoryview, offset: int) -> None:
        # Read-ahead requests come in parallel and out of order: one step back or forth is still sequential.
        if self._last >= 0 and 0 <= index - self._last <= 1 and index + 2 < len(self.bounds):
            self._cache.prefetch(self._block(index + 1))
        self._last = index
        self._cache.read_into(self._block(index), buffer, offset)
