"""A file of the local system, read with ``preadv``.

Not through ``mmap``: a page of a file that somebody truncates raises SIGBUS and kills the process, where
``preadv`` returns fewer bytes. ``preadv`` into the caller's buffer copies once and releases the GIL.

After each read the file's size and mtime are compared with those at opening: the kernel sets the mtime before
it copies new bytes in, so a read that finds the old mtime has seen old bytes only.
"""

from __future__ import annotations

import os
import stat
import weakref

from glassfs.errors import Changed, Damaged
from glassfs.source.base import Identity, Source


class LocalSource(Source):
    """The regular file at ``path``. Raises OSError (FileNotFoundError, PermissionError …) when it cannot be opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self.name = os.path.basename(self.path)
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{self.name}: not a regular file")
        self.size = status.st_size
        self.identity = identity_of(status)
        self.mode, self.uid, self.gid = status.st_mode, status.st_uid, status.st_gid
        self._version = (status.st_size, status.st_mtime_ns)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        wanted = len(buffer)
        try:
            got = os.preadv(self._fd, (buffer,), offset)
            while 0 < got < wanted:
                more = os.preadv(self._fd, (buffer[got:],), offset + got)
                if more == 0:
                    break
                got += more
            status = os.fstat(self._fd)
        except (OSError, OverflowError) as error:
            if not self._finalizer.alive:
                raise Changed(f"{self.name}: was closed") from error
            raise Damaged(f"{self.name}: cannot be read at {offset}: {error}") from error
        if (status.st_size, status.st_mtime_ns) != self._version:
            raise Changed(f"{self.name}: was changed while it is open")
        if got != wanted:
            raise self.outside(offset, wanted)

    def sibling(self, name: str) -> Source:
        if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise FileNotFoundError(f"{name!r} is not the name of a file in the same folder")
        place = os.path.join(os.path.dirname(self.path), name)
        if os.path.dirname(os.path.realpath(place)) != os.path.dirname(os.path.realpath(self.path)):
            raise FileNotFoundError(f"{name!r} leads out of the folder")
        return LocalSource(place)

    def close(self) -> None:
        self._finalizer()


def identity_of(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
