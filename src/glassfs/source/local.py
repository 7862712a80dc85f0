"""A file of the local system, read with ``preadv``.

Not through ``mmap``: a page of a file that somebody truncates raises SIGBUS and kills the process, where
``preadv`` returns fewer bytes. ``preadv`` into the caller's buffer copies once and releases the GIL.

After each read the file's size and mtime are compared with those at opening: the kernel sets the mtime before
it copies new bytes in, so a read that finds the old mtime has seen old bytes only.
"""

from __future__ import annotations

import os
import stat
import threading

from glassfs.errors import Changed, Damaged
from glassfs.source.base import Identity, Source


class LocalSource(Source):
    """The regular file at ``path``. Raises OSError (FileNotFoundError, PermissionError …) when it cannot be opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self.name = os.path.basename(self.path)
        self._lock = threading.Lock()
        self._readers = 0
        self._is_parked = self._is_closed = False
        self._file: _Descriptor | None = _Descriptor(self.path)
        status = os.fstat(self._file.number)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{self.name}: not a regular file")
        self.size = status.st_size
        self.identity = identity_of(status)
        self.mode, self.uid, self.gid = status.st_mode, status.st_uid, status.st_gid
        self._version = (status.st_size, status.st_mtime_ns)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        wanted = len(buffer)
        descriptor = self._begin()
        try:
            got = os.preadv(descriptor, (buffer,), offset)
            while 0 < got < wanted:
                more = os.preadv(descriptor, (buffer[got:],), offset + got)
                if more == 0:
                    break
                got += more
            status = os.fstat(descriptor)
        except (OSError, OverflowError) as error:
            raise Damaged(f"{self.name}: cannot be read at {offset}: {error}") from error
        finally:
            self._end()
        if (status.st_size, status.st_mtime_ns) != self._version:
            raise Changed(f"{self.name}: was changed while it is open")
        if got != wanted:
            raise self.outside(offset, wanted)

    def park(self) -> None:
        with self._lock:
            self._is_parked = True
            self._give_back()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._give_back()

    def _begin(self) -> int:
        """The descriptor, which stays what it is until ``_end``. Raises Changed."""
        with self._lock:
            if self._is_closed:
                raise Changed(f"{self.name}: was closed")
            if self._file is None:
                self._file = self._opened_again()
            self._readers += 1
            return self._file.number

    def _end(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._is_parked or self._is_closed:
                self._give_back()

    def _give_back(self) -> None:
        if self._readers == 0 and self._file is not None:
            self._file.close()
            self._file = None

    def _opened_again(self) -> _Descriptor:
        try:
            file = _Descriptor(self.path)
        except OSError as error:
            raise Changed(f"{self.name}: cannot be opened again: {error.strerror}") from error
        if identity_of(os.fstat(file.number)) != self.identity:
            raise Changed(f"{self.name}: is another file by now")
        return file

    def sibling(self, name: str) -> Source:
        if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise FileNotFoundError(f"{name!r} is not the name of a file in the same folder")
        place = os.path.join(os.path.dirname(self.path), name)
        if os.path.dirname(os.path.realpath(place)) != os.path.dirname(os.path.realpath(self.path)):
            raise FileNotFoundError(f"{name!r} leads out of the folder")
        return LocalSource(place)


class _Descriptor:
    """An open file, closed at the latest when nobody has it any more."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = -1
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    __del__ = close


def identity_of(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
