"""An open file, as programs that read through fsspec expect one. One thread at a time, as other file objects.

It reads straight from the tree, with nothing of fsspec in between. Until it is closed it holds the lease on its
container, as the file objects of ``library`` do, and the file system, so that nothing is closed under it.
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
    """``size`` bytes at ``path`` of the file system ``fs``. A pickle is the same place in the same version."""

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
