"""File objects for files of a tree, for ``numpy.load``, ``pandas.read_parquet``, Pillow and others.

One thread at a time, as other file objects; any thread may cancel its reads. A file object holds the lease on its
container until it is closed, so that a deleted container can be read to its end.
"""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

from glassfs import work
from glassfs.library.documents import bytes_of
from glassfs.tree import File

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFERED = 64 << 10


def stream_of(file: File, name: str) -> io.BufferedReader:
    """Return a buffered file object. Raises Damaged if the size cannot be determined."""
    return io.BufferedReader(Raw(file, name), BUFFERED)


class Raw(io.RawIOBase):
    """An unbuffered file object of ``size`` bytes."""

    mode = "rb"

    def __init__(self, file: File, name: str) -> None:
        super().__init__()
        self.name = name
        self._file = file
        self._position = 0
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

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._demand_open()
        read = partial(self._file.read_into, memoryview(buffer).cast("B"), self._position)
        given = work.done_for(self._work, read)
        self._position += given
        return given

    def readall(self) -> bytes:
        self._demand_open()
        rest = work.done_for(self._work, partial(bytes_of, self._file, self._position))
        self._position += len(rest)
        return rest

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._demand_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}.get(whence)
        if start is None:
            raise ValueError(f"invalid whence {whence}")
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        self._demand_open()
        return self._position

    def close(self) -> None:
        if not self.closed and getattr(self, "_is_held", False):
            self._is_held = False
            self._lease.release()
        super().close()

    def cancel(self) -> None:
        """Have the present read and all later ones raise Canceled."""
        self._work.cancel()

    def _demand_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
