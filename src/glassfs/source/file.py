"""File objects for libraries that want one: seekable and read-only. One thread at a time, as other file objects."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import TYPE_CHECKING

from glassfs.source.contract import Source

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFERED = 64 << 10
"""Bytes that a buffered file object reads at once."""


class SeekableFile(io.RawIOBase):
    """An unbuffered file object. Subclasses have a ``size`` and implement ``read_at``."""

    mode = "rb"
    size: int

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._position = 0

    @abstractmethod
    def read_at(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` (bytes, writable) from ``offset``; return how many bytes there were, fewer at the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._checkClosed()
        given = self.read_at(memoryview(buffer).cast("B"), self._position)
        self._position += given
        return given

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._checkClosed()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}.get(whence)
        if start is None:
            raise ValueError(f"invalid whence {whence}")
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position


class SourceFile(SeekableFile):
    """A file object over the bytes of a source, which stays open when the file object is closed."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name)
        self.size = source.size
        self._source = source

    def read_at(self, buffer: memoryview, offset: int) -> int:
        size = max(0, min(len(buffer), self.size - offset))
        if size:
            self._source.read_into(buffer[:size], offset)
        return size
