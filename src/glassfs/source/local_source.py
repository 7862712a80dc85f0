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
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

from glassfs import work
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotAllowed, NotFound, Unavailable
from glassfs.sizes import PIECE
from glassfs.source import descriptors
from glassfs.source.contract import Entry, Path, Source

_mappings: WeakSet[mmap.mmap] = WeakSet()
MISSING = (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_FAILING = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.EREMOTEIO)
_ERRORS: tuple[tuple[tuple[int, ...], type[GlassfsError]], ...] = (
    (MISSING, NotFound), ((errno.ENOTDIR,), NotADirectory), (_FORBIDDEN, NotAllowed), (_FAILING, DeviceFailed),
    (descriptors.EXHAUSTED, Unavailable),
)

Result = TypeVar("Result")
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

    def read_into(self, buffer: memoryview, offset: int) -> None:
        wanted = len(buffer)
        try:
            got = self._done(wanted, offset, lambda fd: _filled(fd, buffer, offset))
        except OverflowError:  # beyond any file
            raise self.outside(offset, wanted) from None
        if got != wanted:
            raise self.outside(offset, wanted)

    def read(self, offset: int, size: int) -> bytes:
        end = offset + size
        if size > PIECE or not 0 <= offset <= end <= self.entry.size:
            return super().read(offset, size)
        head = self._head
        if end <= len(head):
            return head[offset:end]
        # The system writes into the result, so there is no buffer to copy it from.
        found = self._done(size, offset, lambda fd: os.pread(fd, size, offset))
        return found if len(found) == size else super().read(offset, size)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        return self._done(0, offset, lambda fd: _mapped(fd, offset, size))

    def _done(self, size: int, offset: int, do: Callable[[int], Result]) -> Result:
        """Return what ``do`` returns for the descriptor, if the file still is the one that was opened."""
        # The descriptor must stay open while it is read, also if another thread parks or closes the source meanwhile:
        # the last reader closes it then.
        work.check(size)
        with self._lock:
            fd = self._begun() if self._fd is None or self._is_closed else self._fd
            self._readers += 1
        try:
            found = do(fd)
            status = os.fstat(fd)
        except OSError as error:
            raise DeviceFailed(f"cannot be read at {offset}: {error.strerror or error}", self.name) from error
        finally:
            self._end()
        # Compared after the read, as a writer changes these before the kernel has any of its bytes.
        if (status.st_size, status.st_mtime_ns) != self._checked:
            raise Changed("was changed while it was open", self.name)
        return found

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
            # A deleted file cannot be opened again, so its descriptor is the only way to its bytes.
            if not self._is_parked and not is_forced:
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


def _filled(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from ``offset`` of an open file; return how many bytes there were."""
    got = 0
    while got < len(buffer) and (more := os.preadv(fd, (buffer[got:],), offset + got)):
        got += more
    return got


def _mapped(fd: int, offset: int, size: int) -> memoryview | None:
    """Return these bytes of an open file; None if they are not all in it or cannot be mapped now."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + size - start
    # Before Python 3.13 each mapping holds a descriptor.
    if not size or len(_mappings) >= 128:
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
