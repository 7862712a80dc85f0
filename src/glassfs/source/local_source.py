"""The bytes of one version of a file of the local system, read from its descriptor. Any thread.

Reads use ``preadv``, not ``mmap``: touching a page of a truncated file raises SIGBUS and kills the process. After each
read, size and mtime are compared with those at opening: the kernel sets the mtime before it copies new bytes in, so a
read that finds the old mtime has old bytes only.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

from glassfs import work
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotADirectory, NotAllowed, NotFound, Unavailable
from glassfs.source import descriptors
from glassfs.source.contract import Entry, Path, Source
from glassfs.source.descriptors import Descriptor

_mappings: WeakSet[mmap.mmap] = WeakSet()
MISSING = (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_FAILING = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.EREMOTEIO)
_ERRORS: tuple[tuple[tuple[int, ...], type[GlassfsError]], ...] = (
    (MISSING, NotFound), ((errno.ENOTDIR,), NotADirectory), (_FORBIDDEN, NotAllowed), (_FAILING, DeviceFailed),
    (descriptors.EXHAUSTED, Unavailable),
)

Result = TypeVar("Result")
Open = Callable[[Path], tuple[int, Entry]]
"""Returns a descriptor of the file at a path, and its entry. Raises OSError and Unavailable."""


def translated(error: OSError, name: str) -> GlassfsError:
    """Return the error of glassfs for what the system reported about the file called ``name``."""
    kind = next((kind for numbers, kind in _ERRORS if error.errno in numbers), Changed)
    return kind(error.strerror or str(error), name)


class LocalSource(Source):
    """A regular file of a store in the version ``entry``; ``fd`` is its descriptor if it is open.

    ``open_again`` opens it by its path.
    """

    _is_closed = False

    def __init__(
        self, open_again: Open, name: str, path: Path, entry: Entry, fd: int | None = None,
    ) -> None:
        self.name = name
        self.entry = entry
        self._open_again = open_again
        self._path = path
        self._checked = (entry.size, entry.mtime_ns)
        self._lock = threading.Lock()
        self._opened = None if fd is None else Descriptor(fd)
        self._is_parked = fd is None
        if fd is not None:
            descriptors.pool.add(self)

    def __del__(self) -> None:
        descriptors.pool.discard(self)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        wanted = len(buffer)
        try:
            got = self._done(wanted, offset, _filled, buffer, offset)
        except OverflowError:  # beyond any file
            raise self.outside(offset, wanted) from None
        if got != wanted:
            raise self.outside(offset, wanted)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        return self._done(0, offset, _mapped, offset, size)

    def _done(self, size: int, offset: int, do: Callable[..., Result], *arguments: Any) -> Result:
        """Return what ``do`` returns for the descriptor and these, if the file still is the one that was opened."""
        work.check(size)
        # It stays open while this thread refers to it, also if another one parks or closes the source meanwhile.
        opened = self._opened or self._reopened()
        try:
            found = do(opened.fd, *arguments)
            status = os.fstat(opened.fd)
        except OSError as error:
            raise DeviceFailed(f"cannot be read at {offset}: {error.strerror or error}", self.name) from error
        finally:
            del opened  # an error refers to this frame
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
        """Give up the descriptor; the next read opens it again. Return whether there is none any more.

        The descriptor of a deleted or replaced file that is in use is given up only if ``is_forced``.
        """
        opened = self._opened
        # A deleted file cannot be opened again, so its descriptor is the only way to its bytes.
        if opened is not None and not (self._is_parked or is_forced) and os.fstat(opened.fd).st_nlink == 0:
            return False
        self._opened = None
        return True

    def _give_back(self) -> None:
        self._opened = None
        descriptors.pool.discard(self)

    def _reopened(self) -> Descriptor:
        """Open the file, once for all readers unless the source is parked."""
        with self._lock:
            if self._is_closed:
                raise Changed("was closed", self.name)
            opened = self._opened
            if opened is not None:
                return opened
            opened = Descriptor(self._opened_again())
            if self._is_parked:
                return opened
            self._opened = opened
        descriptors.pool.add(self)
        return opened

    def _opened_again(self) -> int:
        try:
            fd, entry = self._open_again(self._path)
        except Unavailable as error:
            raise error.at(self.name) from None
        except OSError as error:
            if error.errno in (*_FORBIDDEN, *_FAILING):
                raise translated(error, self.name) from None
            raise Changed(f"cannot be opened again: {error.strerror or error}", self.name) from error
        if entry.version != self.version:
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
    # Each mapping holds a descriptor.
    if not size or len(_mappings) >= 128:
        return None
    try:
        pages = mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=start)
    except (OSError, ValueError, OverflowError):  # no support by the file system, no descriptor, no address space
        return None
    _mappings.add(pages)
    return memoryview(pages)[offset - start :]
