"""The bytes of one version of a file of the local system, read from its descriptor. Any thread.

Reads use ``preadv``, not ``mmap``: touching a page of a truncated file raises SIGBUS and kills the process. ``preadv``
into the caller's buffer copies once and releases the GIL. After each read, size and mtime are compared with those at
opening: the kernel sets the mtime before it copies new bytes in, so a read that finds the old mtime has old bytes only.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakSet

from glassfs import work
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotAllowed, NotFound, Unavailable
from glassfs.source import descriptors
from glassfs.source.contract import Entry, Path, Source
from glassfs.source.scattered import fill, total

AT_ONCE = 1 << 20
"""Bytes that one call reads into a result of its own."""
MOST_MAPPINGS = 128
"""Before Python 3.13 each mapping holds a descriptor."""
_mappings: WeakSet[mmap.mmap] = WeakSet()
MISSING = (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_FAILING = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.EREMOTEIO)
_ERRORS: tuple[tuple[tuple[int, ...], type[GlassfsError]], ...] = (
    (MISSING, NotFound), ((errno.ENOTDIR,), NotADirectory), (_FORBIDDEN, NotAllowed), (_FAILING, DeviceFailed),
    (descriptors.EXHAUSTED, Unavailable),
)

Open = Callable[[Path, Entry], tuple[int, Entry]]
"""Returns a descriptor of the file at a path, and its entry, or the given one if it is of the same version. Raises
OSError and Unavailable."""


def translated(error: OSError, name: str) -> GlassfsError:
    """Return the error of glassfs for what the system reported about the file called ``name``."""
    kind = next((kind for numbers, kind in _ERRORS if error.errno in numbers), Changed)
    return kind(error.strerror or str(error), name)


class LocalSource(Source):
    """A regular file of a store in the version ``entry``; ``fd`` is its descriptor if it is open.

    ``open_again`` opens it by its path. ``head`` are first bytes of this version, see ``read_ahead``.
    """

    was_read = False
    """Set by each read, but not by what is read ahead, and cleared by the pool when it searches for idle sources."""
    is_lost = False
    _is_closed = False
    _readers = 0

    def __init__(
        self, open_again: Open, name: str, path: Path, entry: Entry, fd: int | None = None, head: bytes = b"",
    ) -> None:
        self.name = name
        self.entry = entry
        self._open_again = open_again
        self._path = path
        self._checked = (entry.size, entry.mtime_ns)
        self._lock = threading.Lock()
        self._fd = fd
        self._head = head
        self._is_parked = fd is None
        self._is_pooled = fd is not None
        if fd is not None:
            descriptors.pool.add(self)

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__ failed
            self._give_back()  # without the lock: in a forked child, a thread that does not exist may hold it

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._fill(buffers, offset, total(buffers))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._fill((buffer,), offset, len(buffer))

    def read(self, offset: int, size: int) -> bytes:
        end = offset + size
        if size > AT_ONCE or not 0 <= offset <= end <= self.entry.size:
            return super().read(offset, size)
        head = self._head
        if end <= len(head):
            return head[offset:end]
        # As ``_fill``, but the system writes into the result, without a buffer to copy it from.
        work.check(size)
        with self._lock:
            fd = self._begun() if self._fd is None or self._is_closed else self._fd
            self._readers += 1
            self.was_read = True
        try:
            found = os.pread(fd, size, offset)
            status = os.fstat(fd)
        except OSError as error:
            raise self._failed(error, offset) from error
        finally:
            self._end()
        if (status.st_size, status.st_mtime_ns) != self._checked:
            self._demand_unchanged(status)
        return found if len(found) == size else super().read(offset, size)

    def _fill(self, buffers: Sequence[memoryview], offset: int, wanted: int) -> None:
        work.check(wanted)
        with self._lock:  # as ``_begin``, without a call
            fd = self._begun() if self._fd is None or self._is_closed else self._fd
            self._readers += 1
            self.was_read = True
        try:
            # Mostly one buffer, filled by one call: ``fill``, without calling it.
            got = os.preadv(fd, buffers, offset) if len(buffers) == 1 and wanted else 0
            if got < wanted:
                got = fill(fd, buffers, offset, wanted)
            status = os.fstat(fd)
        except OverflowError:  # beyond any file
            raise self.outside(offset, wanted) from None
        except OSError as error:
            raise self._failed(error, offset) from error
        finally:
            self._end()
        if (status.st_size, status.st_mtime_ns) != self._checked:
            self._demand_unchanged(status)
        if got != wanted:
            raise self.outside(offset, wanted)

    def _failed(self, error: OSError, offset: int) -> DeviceFailed:
        return DeviceFailed(f"cannot be read at {offset}: {error.strerror or error}", self.name)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        fd = self._begin()
        try:
            self._demand_unchanged(os.fstat(fd))
            return _mapped(fd, offset, size)
        finally:
            self._end()

    def keep(self) -> None:
        self._is_parked = False

    def park(self) -> None:
        with self._lock:
            self._is_parked = True
            self._give_back()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._give_back()

    def evict(self, is_forced: bool = False) -> bool:
        """Close the descriptor, unless it is being read; the next read opens it again. Return whether it is closed.

        The descriptor of a deleted or replaced file that is in use is closed only if ``is_forced``.
        """
        if not self._lock.acquire(False):
            return False
        try:
            fd = self._fd
            if fd is None:
                return True
            if self.is_needed and not is_forced:
                self.is_lost = os.fstat(fd).st_nlink == 0
                if self.is_lost:
                    return False
            if self._readers:
                return False
            self._fd = None
            self._is_pooled = False
            os.close(fd)
            return True
        finally:
            self._lock.release()

    def _demand_unchanged(self, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) != self._checked:
            raise Changed("was changed while it was open", self.name)

    def _begin(self) -> int:
        """Return the descriptor, which stays valid until ``_end``. Raises Changed and Unavailable."""
        with self._lock:
            fd = self._begun()
            self._readers += 1
            self.was_read = True
            return fd

    def _begun(self) -> int:
        """Return the descriptor, open. The caller holds the lock."""
        if self._is_closed:
            raise Changed("was closed", self.name)
        if self._fd is None:
            self._fd = self._opened_again()
        return self._fd

    def _end(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._is_parked or self._is_closed:
                self._give_back()
                return
            if self._is_pooled:
                return
            self._is_pooled = True
        descriptors.pool.add(self)

    def _give_back(self) -> None:
        if self._readers == 0 and self._fd is not None:
            fd, self._fd = self._fd, None
            self._is_pooled = False
            descriptors.pool.discard(self)
            os.close(fd)

    def _opened_again(self) -> int:
        try:
            fd, entry = self._open_again(self._path, self.entry)
        except Unavailable as error:
            raise error.at(self.name) from None
        except OSError as error:
            if error.errno in (*_FORBIDDEN, *_FAILING):
                raise translated(error, self.name) from None
            raise Changed(f"cannot be opened again: {error.strerror or error}", self.name) from error
        if entry is not self.entry and entry.version != self.version:
            os.close(fd)
            raise Changed("has been replaced by another file", self.name)
        return fd


def _mapped(fd: int, offset: int, size: int) -> memoryview | None:
    """Return these bytes of an open file; None if they are not all in it or cannot be mapped now."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + size - start
    if not size or len(_mappings) >= MOST_MAPPINGS:
        return None
    try:
        if sys.version_info >= (3, 13):
            pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start, trackfd=False)
        else:
            pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start)
            _mappings.add(pages)
    except (OSError, ValueError, OverflowError):  # no support by the file system, no descriptor, no address space
        return None
    return memoryview(pages)[offset - start :]
