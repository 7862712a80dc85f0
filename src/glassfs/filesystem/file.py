"""Open files as programs that use fsspec expect them. One thread at a time, as other file objects.

They read directly from the tree, without fsspec's caches. Until closed they hold the lease on their container and keep
the file system open.
"""

from __future__ import annotations

import io
from typing import Any, SupportsIndex

from fsspec import AbstractFileSystem

from glassfs.errors import Changed
from glassfs.library.finding import REPLACED, version_of
from glassfs.library.stream import BUFFERED, Raw
from glassfs.tree import File


class GlassfsFile(io.BufferedReader):
    """A file of the file system ``fs``. Unpickled, it has the same position in the same version."""

    def __init__(self, fs: AbstractFileSystem, path: str, file: File) -> None:
        raw = Raw(file, path)
        super().__init__(raw, BUFFERED)
        self.fs = fs
        self.path = path
        self.size = raw.size
        self._version = version_of(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.fs, self.path, self.tell(), self._version)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self.__reduce__()


def _reopened(fs: AbstractFileSystem, path: str, position: int, version: str) -> GlassfsFile:
    file: GlassfsFile = fs.open(path)
    if file._version != version:
        file.close()
        raise Changed(REPLACED, part=path)
    file.seek(position)
    return file
