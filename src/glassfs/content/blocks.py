"""Data made as a whole and kept by the cache: rendered data, and decoded blocks of a source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.codec import checksum, compression
from glassfs.codec.checksum import Crc32c
from glassfs.content.data import PIECE, Data, Extent, Location, SizedData
from glassfs.errors import Damaged, GlassfsError
from glassfs.source import total

CHECKED_AT_ONCE = 16 << 20
HELD_BACK = 128 << 10


class Rendered(Data):
    """Bytes that ``make`` returns as a whole; the cache keeps them.

    If ``size`` is given, ``make`` must return exactly as many bytes. Otherwise the first caller that needs the size
    renders them. ``cost`` is the memory in bytes that making them takes.
    """

    __slots__ = ("_cache", "_make", "_size", "cost", "key")

    def __init__(
        self, cache: BlockCache, key: Hashable, make: Callable[[], bytes | bytearray], size: int | None = None,
        cost: int = PIECE,
    ) -> None:
        self._cache = cache
        self.key = key
        self.cost = cost if size is None else max(cost, 2 * size)
        self._make = make
        self._size = size

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = self._cache.size_of(self)
        return self._size

    @property
    def is_sized(self) -> bool:
        return self._size is not None

    @property
    def stream_cost(self) -> int:
        return self.cost

    def whole(self) -> bytes | bytearray:
        made = self._make()
        if self._size is not None and len(made) != self._size:
            raise Damaged(f"gives {len(made)} bytes, but {self._size} were expected")
        return made

    def pieces(self) -> Iterator[bytes]:
        made = memoryview(self.whole())
        for offset in range(0, len(made), PIECE):
            yield bytes(made[offset : offset + PIECE])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self.size:
            self._cache.read_into(self, buffer, offset)


class Decoded(SizedData):
    """One stored block of a source, decoded and checked: ``size`` raw bytes from the stored bytes of ``extent``.

    ``part`` names the block in messages. The cache keeps the raw bytes of a compressed block. If a block is too large
    to check before its first byte is returned, the last HELD_BACK bytes are returned only after the whole block has
    passed the check.
    """

    __slots__ = ("_cache", "_check", "_crc", "_extent", "codec", "key", "part")

    def __init__(
        self, cache: BlockCache, extent: Extent, codec: str, size: int, part: str, crc: Crc32c | None = None,
    ) -> None:
        super().__init__(size)
        self._cache = cache
        self._extent = extent
        self._crc = crc
        self._check = None
        if codec == compression.NONE and crc is not None:
            self._check = _Check(cache, extent, crc)
        self.codec = codec
        self.part = part
        self.key: tuple[Hashable, ...] = (extent.source.version, extent.offset, extent.size, codec, size, crc)

    @property
    def cost(self) -> int:
        return compression.cost(self.codec, min(self._extent.size, self.size + HELD_BACK), self.size)

    @property
    def stream_cost(self) -> int:
        return compression.stream_cost(self.codec, self.size)

    def location(self) -> Location:
        crc = None if self._crc is None else str(self._crc)
        return Location(self._extent.offset, self._extent.size, self.codec, crc)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self.codec != compression.NONE:
            self._cache.read_into(self, buffer, offset)
            return
        self._demand_right(offset + len(buffer))
        self._extent.read_into(buffer, offset)

    def scatter_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        if self.codec != compression.NONE:
            super().scatter_into(buffers, offset)
            return
        self._demand_right(offset + total(buffers))
        self._extent.scatter_into(buffers, offset)

    def mapped(self) -> memoryview | None:
        """Return the bytes of an uncompressed block after checking them; None for others."""
        if self.codec != compression.NONE:
            return None
        self._demand_right(self.size)
        return self._extent.mapped()

    def _demand_right(self, end: int) -> None:
        """Raise Damaged if the bytes up to ``end`` of an uncompressed block must not be returned."""
        if self._extent.size != self.size:
            raise self._damage(f"has {self._extent.size} stored bytes, but {self.size} are declared")
        if self._check is not None and not self._check.found:
            is_early = self.size > CHECKED_AT_ONCE and end <= self.size - HELD_BACK
            if is_early and self._check.found is None:
                self._check.go_on_ahead()
            elif not self._check.result():
                raise self._damage("its checksum does not match")

    def whole(self) -> bytes:
        if self._extent.size > self.size + HELD_BACK:
            return b"".join(self.pieces())  # more is stored than the block can need: do not read it at once
        with self._cache.waiting():
            stored = self._extent.source.buffer(self._extent.offset, self._extent.size)
        try:
            raw = compression.decompress(self.codec, stored, self.size)
        except Damaged as error:
            raise error.at(self._extent.source.name, self.part) from error
        if self._crc is not None and not self._crc.matches(checksum.crc32c(raw), checksum.crc32c(stored)):
            raise self._damage("its checksum does not match")
        return raw

    def pieces(self) -> Iterator[bytes]:
        raw_crc = 0
        left, held = self.size, b""
        stored = _Stored(self._extent, self._cache, is_counted=self._crc is not None)
        try:
            for piece in compression.decompress_stream(self.codec, stored, self.size):
                if self._crc is not None:
                    raw_crc = checksum.crc32c(piece, raw_crc)
                left -= len(piece)
                if left > HELD_BACK:
                    yield piece
                else:
                    held += piece
            if self._crc is not None:
                for _ in stored:  # the checksum of the stored bytes also covers what the decoder did not need
                    pass
        except GlassfsError as error:
            raise error.at(self._extent.source.name, self.part) from error
        if self._crc is not None and not self._crc.matches(raw_crc, stored.crc):
            raise self._damage("its checksum does not match")
        yield held

    def _damage(self, reason: str) -> Damaged:
        return self._extent.source.damage(reason, self.part)


class _Stored:
    """The stored bytes in pieces, with the CRC-32C of those that were returned. Iterable once."""

    def __init__(self, extent: Extent, cache: BlockCache, is_counted: bool) -> None:
        self.crc = 0
        self._pieces = extent.pieces()
        self._cache = cache
        self._is_counted = is_counted

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._cache.waiting():
            piece = next(self._pieces)
        if self._is_counted:
            self.crc = checksum.crc32c(piece, self.crc)
        return piece


class _Check:
    """A check of an uncompressed block against its checksum. ``found`` is its result, None until it is known.

    One thread checks at a time. A read that raises, or that is stopped, leaves the result unknown; the next thread goes
    on from there. The cache notes blocks that are right for the next opening of the container.
    """

    __slots__ = ("_cache", "_crc", "_extent", "_is_queued", "_lock", "_position", "_so_far", "found")

    def __init__(self, cache: BlockCache, extent: Extent, crc: Crc32c) -> None:
        self._cache = cache
        self._extent = extent
        self._crc = crc
        self._lock = threading.Lock()
        self._position = self._so_far = 0
        """The bytes that were checked, and their checksum."""
        self._is_queued = False
        self.found: bool | None = None

    def go_on_ahead(self) -> None:
        """Check CHECKED_AT_ONCE more bytes on another thread. Raises nothing, whatever the result.

        Each read of the block calls this. So the check keeps up with a reader, and ends soon after the last one.
        """
        if not self._is_queued:
            self._is_queued = True
            self._cache.run(self._run_ahead)

    def result(self) -> bool:
        """Return whether the block is right, after checking the rest of it."""
        with work.holding(self._lock):
            while self.found is None:
                self._go_on()
            return self.found

    def _run_ahead(self) -> None:
        try:
            if self._lock.acquire(blocking=False):  # else a reader checks all of it
                try:
                    until = self._position + CHECKED_AT_ONCE
                    while self.found is None and self._position < until:
                        self._go_on()
                finally:
                    self._lock.release()
        finally:
            self._is_queued = False

    def _go_on(self) -> None:
        """Check the next piece. The caller holds the lock."""
        size, notes, source = self._extent.size, self._cache.notes, self._extent.source
        key = (source.version, self._extent.offset, size, self._crc, "right")
        if not self._position and notes.get(key) is not None:
            self.found = True
            return
        piece = self._extent.read(self._position, min(PIECE, size - self._position))
        self._so_far = checksum.crc32c(piece, self._so_far)
        self._position += len(piece)
        if self._position == size:
            self.found = self._crc.matches(self._so_far, self._so_far)
            if self.found:
                notes.put(key, ())
