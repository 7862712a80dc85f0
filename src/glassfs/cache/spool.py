"""Recipes of blocks, and blocks too large for memory.

These are decoded as a stream into an unlinked file and served from there while it grows, as far as readers need it; a
block of unknown size to its end when the size is needed. Files that no thread reads are dropped for those that grow if
the disk is full, or if there are too many bytes in files. When the memory of an idle decoder is needed, it is dropped,
and restarted from the start of the block if a reader needs more.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import IO, Protocol

from glassfs import work
from glassfs.cache.budget import MemoryBudget, Ticket
from glassfs.errors import Damaged, GlassfsError, NoSpool, Unavailable
from glassfs.settings import settings

FULL = (errno.ENOSPC, errno.EDQUOT)


class LongStream(Exception):
    """A recipe of unknown size has more bytes than ``whole`` holds in memory: only ``pieces`` gives all of them."""


class Recipe(Protocol):
    """How to make a block of ``size`` bytes.

    ``key`` is equal for equal bytes only, and refers to no source. A key that is a tuple begins with the version of the
    source, so that it can be dropped with that version. ``cost`` is the peak memory of ``whole`` in bytes, the block
    included; ``stream_cost`` that of ``pieces``.
    """

    @property
    def key(self) -> Hashable: ...

    @property
    def size(self) -> int: ...

    @property
    def cost(self) -> int: ...

    @property
    def stream_cost(self) -> int: ...

    def whole(self) -> bytes | bytearray:
        """Return all bytes, which nothing changes afterwards. Raises Damaged or Changed."""

    def pieces(self) -> Iterator[bytes | bytearray]:
        """Yield the bytes in pieces of a few MiB at most; raise errors before the last byte."""


def stored_error(error: BaseException) -> BaseException:
    """Return the error to store for the readers of a block.

    Expected errors lose their traceback, which would keep the source and the frames of the recipe alive.
    """
    if isinstance(error, MemoryError):
        return Unavailable("there is not enough memory to decode a block")
    return fresh(error)


def fresh(error: BaseException) -> BaseException:
    """Return a copy of a stored error for one reader, as raising it adds to its traceback."""
    return error.at() if isinstance(error, GlassfsError) else error


class Spool:
    """One block of ``size`` bytes; None if the size is unknown.

    Raises NoSpool if its file cannot be written, and what the recipe raises. ``failed`` is called with the spool after
    an error that may pass, so that the next reader gets a new one. ``make_room`` is called with the spool before it
    writes, and with whether the disk is full; it returns whether it gave up others.
    """

    def __init__(
        self, recipe: Recipe, size: int | None, memory: MemoryBudget, folder: str | None,
        failed: Callable[[Spool], None], make_room: Callable[[Spool, bool], bool],
    ) -> None:
        self.key: Hashable = recipe.key
        self._size: float = math.inf if size is None else size
        """Infinite until it is known."""
        self._cost = recipe.stream_cost
        self._recipe: Recipe | None = recipe
        """None once the whole block is in the file."""
        self._memory = memory
        self._folder = folder
        self._failed = failed
        self._make_room = make_room
        self._file: IO[bytes] | None = None
        self._ticket = Ticket()
        self._pieces: Iterator[bytes | bytearray] | None = None
        self._position = 0
        """Offset in the block of the decoder's next piece."""
        self.stored = 0
        """Bytes in the file."""
        self._is_busy = self._is_closed = False
        self._readers = 0
        self._last_read = self._started = time.monotonic()
        """When it was read last, and when its decoder was started."""
        self._error: BaseException | None = None
        self._progress = threading.Condition()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` with the block's bytes from ``offset`` on, decoding up to there if necessary."""
        end = offset + len(buffer)
        with self._reading():
            self._decode(end)
            self._last_read = time.monotonic()
            got = 0
            while got < len(buffer):
                try:
                    more = os.preadv(self._opened().fileno(), (buffer[got:],), offset + got)
                    if more == 0:
                        raise OSError(errno.EIO, "the file was cut")
                except OSError as error:
                    self._failed(self)
                    raise self._no_spool(error) from error
                got += more

    def measure(self) -> int:
        """Return the size in bytes, after decoding the whole block unless it is known."""
        with self._reading():
            if self._size == math.inf:
                self._decode(math.inf)
        return int(self._size)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._progress:
            self._readers += 1
        try:
            yield
        finally:
            self._last_read = time.monotonic()
            with self._progress:
                self._readers -= 1

    def idle_since(self) -> float:
        """Return the monotonic time of the last read; infinity if a thread is reading."""
        return math.inf if self._readers else self._last_read

    def suspend(self) -> int:
        """Drop the decoder unless it is in use. Return the bytes that this frees, which still count as cached."""
        now = time.monotonic()
        if now < min(self.idle_since() + settings.kept_gap, self._started + settings.kept):
            return 0
        if not self._progress.acquire(blocking=False):
            return 0
        try:
            return self._drop_decoder()
        finally:
            self._progress.release()

    def close(self) -> None:
        """Release the memory that current readers do not need."""
        with self._progress:
            self._is_closed = True
            freed = self._drop_decoder()
        self._memory.drop_cached(freed)

    def _drop_decoder(self) -> int:
        """Drop an idle decoder; return the bytes of memory that it used."""
        if self._is_busy or self._pieces is None:
            return 0
        self._pieces = None
        return self._cost

    def _decode(self, end: float) -> None:
        """Return when the block is in the file up to ``end``, decoded here unless another thread does it."""
        while True:
            if not self._is_settled(end):
                self._wait(end)
            with self._progress:
                if self._error is not None:
                    raise fresh(self._error)
                if self._has(end):
                    return
                if self._is_busy:
                    continue
                self._is_busy = True
                has_decoder = self._pieces is not None
            error: BaseException | None = None
            # One reader decodes one piece, then the next reader may be another one: no reader works for all others, and
            # one that is canceled leaves the decoder where it is.
            reserved: int | None = None
            try:
                self._reserve(has_decoder)
                reserved = self._cost
                error = self._decode_some()
            finally:
                self._finish(reserved, error)

    def _has(self, end: float) -> bool:
        """Return whether the file has the bytes up to ``end``, or all of them."""
        return self.stored >= min(end, self._size)

    def _is_settled(self, end: float) -> bool:
        return self._has(end) or self._error is not None or not self._is_busy

    def _wait(self, end: float) -> None:
        """Wait for the thread that decodes."""
        if self._memory.is_nested:
            self._memory.hurry(self._ticket)
        with self._memory.waiting(), self._progress:
            work.patiently(lambda seconds: self._progress.wait_for(lambda: self._is_settled(end), seconds))

    def _reserve(self, has_decoder: bool) -> None:
        """Reserve memory for the decoder. That of an existing one is already counted, as cached."""
        if has_decoder:
            self._memory.reserve_cached(self._cost)
        else:
            self._memory.reserve(self._cost, self._ticket)

    def _finish(self, reserved: int | None, error: BaseException | None) -> None:
        """Publish the result of ``_decode_some`` and release memory. ``reserved`` is None if it did not run."""
        with self._progress:
            self._is_busy = False
            if reserved is not None:
                self._error = error
                is_whole = self.stored >= self._size
                is_over = is_whole or error is not None or self._is_closed
                if is_over:
                    self._pieces = None
                if is_whole:
                    self._recipe = None
                self._memory.release(reserved, 0 if is_over else reserved)
            self._progress.notify_all()

    def _decode_some(self) -> BaseException | None:
        """Write some more of the block to the file; return the error that stopped it."""
        try:
            with self._memory.nested():
                goal = self._position
                if self._pieces is None and self._recipe is not None:
                    # A restarted decoder must get further than it repeats, or many readers would only repeat.
                    goal = int(min(2 * self.stored, self._size - 1))
                    self._pieces, self._position = self._recipe.pieces(), 0
                    self._started = time.monotonic()
                while self._pieces is not None and self._position <= goal:
                    work.check()
                    with work.shielded():  # others continue where this reader is stopped, with the same decoder
                        self._write_next_piece(self._pieces)
        except work.Canceled:
            raise
        except BaseException as caught:
            error = stored_error(caught).with_traceback(None)  # tracebacks would keep this spool and its file alive
            error.__cause__ = error.__context__ = None
            if not isinstance(caught, Damaged):
                # Such as a full disk, which passes. Damage is stored, as it is expensive to find.
                self._failed(self)
            return error
        return None

    def _write_next_piece(self, pieces: Iterator[bytes | bytearray]) -> None:
        try:
            piece = next(pieces, None)
        except BaseException:
            # A generator that raised is at its end, which must not be taken for the end of the block.
            self._pieces = None
            raise
        if piece is None:
            if self._size < math.inf:
                raise Damaged(f"gives {self._position} bytes, but {self._size} are declared")
            # The end of a block of unknown size is its size.
            self._size, self._pieces = self._position, None
            return
        self._make_room(self, False)
        work.check(len(piece))  # a budget bounds what a small container expands to on the disk as well
        view = memoryview(piece)[max(0, self.stored - self._position) :]
        self._position += len(piece)
        position = self._position - len(view)
        while view:
            try:
                written = os.pwrite(self._opened().fileno(), view, position)
            except OSError as error:
                if error.errno not in FULL or not self._make_room(self, True):
                    raise self._no_spool(error) from error
                continue
            position += written
            view = view[written:]
        with self._progress:
            self.stored = max(self.stored, self._position)
            self._progress.notify_all()

    def _opened(self) -> IO[bytes]:
        """Return the file, created on first use."""
        if self._file is None:
            try:
                import tempfile

                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                raise self._no_spool(error) from error
        return self._file

    def _no_spool(self, error: OSError) -> NoSpool:
        folder = self._folder or os.environ.get("TMPDIR", "/tmp")  # tempfile may have found no folder at all
        size = self._size if self._size < math.inf else f"more than {self.stored}"
        return NoSpool(f"a block of {size} bytes cannot be kept there: {error.strerror}", folder)
