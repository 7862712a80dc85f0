"""Read files of a tree: as bytes, as JSON values, and as file objects for ``numpy.load``, Pillow and others.

A file object is for one thread at a time, as others are. It holds the lease on its container until it is closed, so
that a deleted container can be read to its end.
"""

from __future__ import annotations

import io
import json
from typing import Any

from glassfs.content import Null, Scalar
from glassfs.errors import Damaged, Unavailable, Unsuited
from glassfs.source import BUFFERED, SeekableFile
from glassfs.tree import File

__all__ = ["BUFFERED", "Raw", "bytes_of", "stream_of", "value_of"]


def stream_of(file: File, name: str) -> io.BufferedReader:
    """Return a buffered file object. Raises Damaged if the size cannot be determined."""
    return io.BufferedReader(Raw(file, name), BUFFERED)


class Raw(SeekableFile):
    """An unbuffered file object of ``size`` bytes."""

    _is_held = False

    def __init__(self, file: File, name: str) -> None:
        super().__init__(name)
        self._file = file
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
        return self._file.read_into(buffer, offset)

    def readall(self) -> bytes:
        self._checkClosed()
        rest = bytes_of(self._file, self._position)
        self._position += len(rest)
        return rest

    def close(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lease.release()
        super().close()


def bytes_of(file: File, start: int = 0, stop: int | None = None) -> bytes:
    """Return the bytes from ``start`` to before ``stop``; large ones are not copied again."""
    size = max(0, (file.size if stop is None else min(stop, file.size)) - start)
    if size <= 64 << 10:  # as copying so few takes less than the detour
        return file.read(start, size)
    try:
        whole = io.BytesIO()
        whole.seek(size - 1)
        whole.write(b"\0")
    except (MemoryError, OverflowError) as error:
        raise Unavailable(f"there is not enough memory for {size} bytes") from error
    with whole.getbuffer() as buffer:
        file.read_into(buffer, start)
    return whole.getvalue()


def value_of(file: File) -> Any:
    """Return the value of a JSON file; of JSON lines, the list of their values. Raises Damaged and Unsuited."""
    content = file.content
    if isinstance(content, Null):
        return None
    if isinstance(content, Scalar):
        return content.value
    if ".json" not in file.name[-6:]:
        raise Unsuited("is not JSON")
    try:
        if file.name.endswith(".jsonl"):
            return [json.loads(line) for line in bytes_of(file).splitlines()]
        return json.loads(bytes_of(file))
    except RecursionError as error:
        raise Damaged("is JSON that is nested too deep") from error
    except ValueError as error:
        raise Damaged(f"is not valid JSON: {error}") from error
