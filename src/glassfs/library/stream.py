"""File objects for files of a tree, for ``numpy.load``, ``pandas.read_parquet``, Pillow and others.

One thread at a time, as other file objects; any thread may cancel its reads. A file object holds the lease on its
container until it is closed, so that a deleted container can be read to its end.
"""

from __future__ import annotations

import io
from functools import partial

from glassfs import work
from glassfs.library.documents import bytes_of
from glassfs.source import BUFFERED, SeekableFile
from glassfs.tree import File

__all__ = ["BUFFERED", "Raw", "stream_of"]


def stream_of(file: File, name: str) -> io.BufferedReader:
    """Return a buffered file object. Raises Damaged if the size cannot be determined."""
    return io.BufferedReader(Raw(file, name), BUFFERED)


class Raw(SeekableFile):
    """An unbuffered file object of ``size`` bytes."""

    def __init__(self, file: File, name: str) -> None:
        super().__init__(name)
        self._file = file
        self._work = work.Work()
        self._lease = file.origin.lease
        self._lease.acquire()
        self._is_held = True
        try:
            file.prepare()
            self.size = file.size
        except BaseException:
            self.close()
            raise

    def read_at(self, buffer: memoryview, offset: int) -> int:
        return work.done_for(self._work, partial(self._file.read_into, buffer, offset))

    def readall(self) -> bytes:
        self.demand_open()
        rest = work.done_for(self._work, partial(bytes_of, self._file, self._position))
        self._position += len(rest)
        return rest

    def close(self) -> None:
        if not self.closed and getattr(self, "_is_held", False):
            self._is_held = False
            self._lease.release()
        super().close()

    def cancel(self) -> None:
        """Have the present read and all later ones raise Canceled."""
        self._work.cancel()
