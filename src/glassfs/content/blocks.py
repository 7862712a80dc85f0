"""Data made as a whole and kept by the cache: rendered data, and decoded blocks of a source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property, partial

from glassfs import work
from glassfs.cache import BlockCache, LongStream
from glassfs.codec import compression
from glassfs.codec.checksum import Checksum, Covers, RunningChecksum
from glassfs.content.data import Data, Extent, Location, SizedData
from glassfs.errors import Damaged, GlassfsError
from glassfs.sizes import PIECE

CHECKED_AT_ONCE, HELD_BACK = 16 << 20, 128 << 10
"""Bytes that are checked ahead of a reader of a large block, and bytes that it gets only after the check of all."""


class _Cached(Data):
    """Bytes that the cache keeps by ``key``, made to find their ``_size`` if it is None. Subclasses are recipes."""

    key: Hashable
    _cache: BlockCache
    _size: int | None

    @property
    def is_sized(self) -> bool:
        return self._size is not None

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self.size:
            self._cache.read_into(self, buffer, offset)  # type: ignore[arg-type]


class Rendered(_Cached):
    """Bytes that ``make`` returns as a whole; the cache keeps them.

    If ``size`` is given, ``make`` must return exactly as many bytes. Otherwise the first caller that needs the size
    renders them. ``cost`` is the memory in bytes that making them takes.
    """

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
    def is_cheap(self) -> bool:
        return self._cache.is_tiny(self.cost)

    @property
    def stream_cost(self) -> int:
        return self.cost

    def whole(self) -> bytes | bytearray:
        made = self._make()
        if self._size is not None and len(made) != self._size:
            raise Damaged(f"gives {len(made)} bytes, but {self._size} were expected")
        return made

    def pieces(self) -> Iterator[bytes]:
        yield bytes(self.whole())


class Stream(_Cached):
    """Bytes that ``make`` yields from first to last in pieces of a few MiB: ``size``, or as many as it turns out.

    If the size is unknown, the first caller that needs it has the bytes made: short ones stay in the cache, longer ones
    in a spool file. The size is noted with the version of the source, so that it is known when the bytes were dropped.
    Making them again must give the same bytes. ``cost`` returns the memory in bytes that making them takes, and
    ``location`` where the bytes that they are made of are stored.

    Pieces may be empty: between them a canceled reader stops. ``make`` must not hold reserved memory across a piece, as
    another thread may continue.
    """

    key: tuple[Hashable, ...]

    def __init__(
        self, cache: BlockCache, key: tuple[Hashable, ...], make: Callable[[], Iterator[bytes]],
        cost: Callable[[], int] = lambda: PIECE, size: int | None = None,
        location: Callable[[], Location | None] = lambda: None,
    ) -> None:
        self._cache = cache
        self.key = key
        self._make = make
        self._cost = cost
        self._location = location
        self._size = size

    @property
    def size(self) -> int:
        if self._size is None:
            note = (*self.key, "size")
            # The node of a file is dropped and made anew while its version lasts; its size must not cost another pass.
            noted = self._cache.notes.get(note)
            self._size = noted[0] if noted else self._cache.size_of(self)
            self._cache.notes.put(note, (self._size,))
        return self._size

    @property
    def cost(self) -> int:
        return self.stream_cost + 2 * (PIECE if self._size is None else self._size)

    @cached_property  # asked for several times, while it may take a look at all columns of a table
    def stream_cost(self) -> int:
        return PIECE + self._cost()

    def location(self) -> Location | None:
        return self._location()

    def whole(self) -> bytearray:
        """Return all bytes. Raises LongStream if they are many and the size is not known yet."""
        whole = bytearray()
        for piece in self.pieces():
            work.check()
            whole += piece
            # The caller goes on with a spool, from the beginning: what is made twice is short in comparison.
            if self._size is None and len(whole) > PIECE:
                raise LongStream
        return whole

    def pieces(self) -> Iterator[bytes]:
        size = 0
        for piece in self._make():
            size += len(piece)
            if self._size is not None and size > self._size:
                break
            yield piece
        if self._size is not None and size != self._size:
            raise Damaged(f"gives {size} bytes or more, but {self._size} were expected")


class Decoded(SizedData):
    """One stored block of a source, decoded and checked: ``size`` raw bytes from the stored bytes of ``extent``.

    ``part`` names the block in messages. The cache keeps the raw bytes of a compressed block. If a block is too large
    to check before its first byte is returned, the last HELD_BACK bytes are returned only after the whole block has
    passed the check. If an uncompressed block ``is_checked_at_end``, a reader of part of it gets that part unchecked:
    the check runs behind readers and has read no more than they did until nearly all of the block was read; then the
    last bytes are returned only if it passes.
    """

    def __init__(
        self, cache: BlockCache, extent: Extent, codec: str, size: int, part: str, checksum: Checksum | None = None,
        is_checked_at_end: bool = False,
    ) -> None:
        super().__init__(size)
        self._cache = cache
        self._extent = extent
        self._checksum = checksum
        self._is_checked_at_end = is_checked_at_end
        self._given = 0
        self._check = None
        if codec == compression.NONE and checksum is not None:
            self._check = _Check(cache, extent, checksum)
        self.codec = codec
        self.part = part
        self.key: tuple[Hashable, ...] = (
            extent.source.version, extent.offset, extent.size, codec, size, checksum and checksum.key,
        )

    @property
    def cost(self) -> int:
        return compression.cost(self.codec, min(self._extent.size, self.size + HELD_BACK), self.size)

    @property
    def stream_cost(self) -> int:
        return self.cost if self._is_undivided else compression.stream_cost(self.codec, self.size)

    @property
    def _is_undivided(self) -> bool:
        """Whether the pieces are those of the whole: a stream of LZ4 takes up to twenty times as long."""
        return self.codec == compression.LZ4 and self.cost <= self._cache.budget

    def location(self) -> Location:
        checksum = None if self._checksum is None else str(self._checksum)
        return self._extent.location()._replace(codec=compression.name_of(self.codec), checksum=checksum)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if self.codec != compression.NONE:
            self._cache.read_into(self, buffer, offset)
            return
        self._demand_right(offset, offset + len(buffer))
        self._extent.read_into(buffer, offset)

    def mapped(self) -> memoryview | None:
        """Return the bytes of an uncompressed block, after the check unless it is at the end; None for others."""
        if self.codec != compression.NONE:
            return None
        end = self.size
        self._demand_right(end if self._is_checked_at_end else 0, end)
        return self._extent.mapped()

    def _demand_right(self, start: int, end: int) -> None:
        """Raise Damaged if the bytes from ``start`` to ``end`` of an uncompressed block must not be returned."""
        if self._extent.size != self.size:
            raise self._damage(f"has {self._extent.size} stored bytes, but {self.size} are declared")
        check = self._check
        if check is None or check.found:
            return
        # Two promises meet here. A reader of a few bytes must not wait for all others, and a reader of all bytes must
        # not get all of them if they are wrong. So the first bytes are returned at once, the check follows the readers,
        # and the last bytes wait for its result.
        if self._is_checked_at_end and check.found is None:
            self._given += end - start
            # Requests come out of order: some bytes may not have been read yet when the last ones are.
            is_whole = self._given >= self.size - 4 * PIECE
            if not is_whole or end <= self.size - HELD_BACK or start == end:
                check.go_on_ahead(min(self._given, self.size))
                return
        elif self.size > CHECKED_AT_ONCE and end <= self.size - HELD_BACK and check.found is None:
            check.go_on_ahead()
            return
        if not check.result():
            raise self._damage("its checksum does not match")

    def whole(self) -> bytes:
        if self._extent.size > self.size + HELD_BACK:
            return b"".join(self.pieces())  # more is stored than the block can need: do not read it at once
        stored = self._extent.source.buffer(self._extent.offset, self._extent.size)
        try:
            raw = compression.decompress(self.codec, stored, self.size)
        except Damaged as error:
            raise error.at(self._extent.source.name, self.part) from error
        check = RunningChecksum(self._checksum)
        check.add(raw, Covers.RAW)
        check.add(stored, Covers.STORED)
        if not check.is_right:
            raise self._damage("its checksum does not match")
        return raw

    def pieces(self) -> Iterator[bytes]:
        if self._is_undivided and self._extent.size <= self.size + HELD_BACK:
            yield self.whole()
            return
        check = RunningChecksum(self._checksum)
        left, held = self.size, b""
        stored = self._stored_pieces(check)
        try:
            for piece in compression.decompress_stream(self.codec, stored, self.size):
                check.add(piece, Covers.RAW)
                left -= len(piece)
                if left > HELD_BACK:
                    yield piece
                else:
                    # The last bytes are returned only when all of them were checked: a copy of a damaged block fails.
                    held += piece
            if self._checksum is not None and Covers.STORED in self._checksum.covers:
                for _ in stored:  # the checksum of the stored bytes also covers what the decoder did not need
                    pass
        except GlassfsError as error:
            raise error.at(self._extent.source.name, self.part) from error
        if not check.is_right:
            raise self._damage("its checksum does not match")
        yield held

    def _stored_pieces(self, check: RunningChecksum) -> Iterator[bytes]:
        for piece in self._extent.pieces():
            check.add(piece, Covers.STORED)
            yield piece

    def _damage(self, reason: str) -> Damaged:
        return self._extent.source.damage(reason, self.part)


class _Check:
    """A check of an uncompressed block against its checksum. ``found`` is its result, None until it is known.

    One thread checks at a time. A read that raises, or that is stopped, leaves the result unknown; the next thread goes
    on from there. The cache notes blocks that are right for the next opening of the container.
    """

    def __init__(self, cache: BlockCache, extent: Extent, checksum: Checksum) -> None:
        self._cache = cache
        self._extent = extent
        self._checksum = checksum
        self._lock = threading.Lock()
        self._position, self._so_far = 0, RunningChecksum(checksum)
        """The bytes that were checked, and their checksum."""
        self._is_queued = False
        self.found: bool | None = None

    def go_on_ahead(self, end: int | None = None) -> None:
        """Check up to ``end``, or CHECKED_AT_ONCE more bytes, on another thread. Raises nothing, whatever the result.

        Each read of the block calls this. So the check keeps up with a reader, and ends soon after the last one.
        """
        until = self._position + CHECKED_AT_ONCE if end is None else end
        if not self._is_queued and until >= self._position + PIECE:
            self._is_queued = True
            work.run_ahead(partial(self._run_ahead, until))

    def result(self) -> bool:
        """Return whether the block is right, after checking the rest of it."""
        with work.holding(self._lock):
            while self.found is None:
                self._go_on()
            return self.found

    def _run_ahead(self, until: int) -> None:
        try:
            # Only one thread checks. Another one would read the same bytes again, and the check must keep its order.
            if self._lock.acquire(blocking=False):  # else a reader checks all of it
                try:
                    while self.found is None and self._position < until:
                        self._go_on()
                finally:
                    self._lock.release()
        finally:
            self._is_queued = False

    def _go_on(self) -> None:
        """Check the next piece. The caller holds the lock."""
        size, notes, source = self._extent.size, self._cache.notes, self._extent.source
        key = (source.version, self._extent.offset, size, self._checksum.key, "right")
        # A container is parsed again and again while its version lasts: what was right then is still right.
        if not self._position and notes.get(key) is not None:
            self.found = True
            return
        piece = self._extent.read(self._position, min(PIECE, size - self._position))
        for kind in self._checksum.kinds:  # these bytes are both
            self._so_far.add(piece, kind)
        self._position += len(piece)
        if self._position == size:
            self.found = self._so_far.is_right
            if self.found:
                notes.put(key, ())
