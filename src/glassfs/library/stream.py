"""A file of a tree as a file object, for all that reads one: ``numpy.load``, ``pandas.read_parquet``, Pillow.

One thread at a time, as other file objects. It holds the lease on the container until it is closed, so that a container
that was deleted can be read to its end.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from glassfs.library.documents import bytes_of
from glassfs.tree import File

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFERED = 64 << 10


def stream_of(file: File, name: str) -> io.BufferedReader:
    """Raises Damaged where finding out the size does."""
    return io.BufferedReader(Raw(file, name), BUFFERED)


class Raw(io.RawIOBase):
    """The ``size`` bytes of ``file`` behind a cursor."""

    mode = "rb"

    def __init__(self, file: File, name: str) -> None:
        super().__init__()
        self.name = name
        self._file = file
        self._position = 0
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
        given = self._file.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += given
        return given

    def readall(self) -> bytes:
        self._demand_open()
        rest = bytes_of(self._file, self._position)
        self._position += len(rest)
        return rest

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._demand_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}.get(whence)
        if start is None:
            raise ValueError(f"there is no whence {whence}")
        if start + offset < 0:
            raise ValueError(f"there is no position {start + offset}")
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

    def _demand_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
