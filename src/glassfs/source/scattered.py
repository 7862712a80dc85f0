"""Spans of a buffer that one preadv(2) fills from consecutive bytes of a file.

Creating a view of each span, and having Python inspect each view, takes as long as reading the bytes. So the spans are
described once for many buffers, and the addresses passed to the kernel are cached for the buffers used last: they
depend only on the spans and the address of the buffer. Any thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import final, overload

from glassfs.source import system

SEGMENTS = 1024
"""How many spans Linux and macOS fill in one call (IOV_MAX)."""
REMEMBERED = 128
"""Vectors of at most 16 KiB."""
FURTHEST = 1 << 62
"""Beyond any file; ctypes would truncate what does not fit into a C integer."""


class Spans:
    """Spans of a buffer. ``pairs`` has offset and size of each, alternating.

    ``size`` is the sum of their sizes, ``end`` the size that a buffer must have. Immutable.
    """

    __slots__ = ("end", "pairs", "size")

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """Raises OverflowError for negative numbers."""
        self.pairs = array("Q", [number for span in spans for number in span])
        self.size = sum(self.pairs[1::2])
        self.end = max(map(int.__add__, self.pairs[::2], self.pairs[1::2]), default=0)

    def __len__(self) -> int:
        return len(self.pairs) // 2


@final
class Scattered(Sequence[memoryview]):
    """The ``spans`` of ``buffer`` (bytes, writable). Raises ValueError if they are not all inside it."""

    __slots__ = ("_buffer", "spans")

    def __init__(self, buffer: memoryview, spans: Spans) -> None:
        if spans.end > len(buffer):
            raise ValueError("the spans are not in the buffer")
        self._buffer = buffer
        self.spans = spans

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, number: int) -> memoryview: ...

    @overload
    def __getitem__(self, number: slice) -> list[memoryview]: ...

    def __getitem__(self, number: int | slice) -> memoryview | list[memoryview]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        one = range(len(self))[number]
        start, size = self.spans.pairs[2 * one : 2 * one + 2]
        return self._buffer[start : start + size]

    def read(self, fd: int, offset: int) -> bool:
        """Fill all spans with one read of a descriptor; return whether that worked. If not, they may hold anything."""
        if _preadv is None or not self.spans.size or len(self) > SEGMENTS or not 0 <= offset < FURTHEST:
            return False
        held = ctypes.c_char.from_buffer(self._buffer)  # pins the bytes at their address
        vector = _vector(self.spans, ctypes.addressof(held))
        return _preadv(fd, vector.buffer_info()[0], len(self), offset) == self.spans.size


def total(buffers: Sequence[memoryview]) -> int:
    """Return how many bytes the buffers have in total."""
    return buffers.spans.size if type(buffers) is Scattered else sum(map(len, buffers))


@lru_cache(REMEMBERED)
def _vector(spans: Spans, address: int) -> array[int]:
    """Return ``struct iovec`` for each span of a buffer at ``address``."""
    vector = spans.pairs[:]
    vector[::2] = array("Q", [address + start for start in spans.pairs[::2]])
    return vector


# With 64-bit addresses and offsets only.
_preadv = None if sys.maxsize < 1 << 62 else system.function(
    "preadv", ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64,
)


def fill(fd: int, buffers: Sequence[memoryview], offset: int, wanted: int) -> int:
    """Fill ``buffers``, ``wanted`` bytes, from ``offset`` of a descriptor; return how many bytes there were."""
    if type(buffers) is Scattered and buffers.read(fd, offset):
        return wanted
    got = 0
    while got < wanted:
        more = os.preadv(fd, buffers[:SEGMENTS], offset + got)
        if not more:
            break
        got += more
        if got < wanted:
            buffers = _behind(buffers, more)
    return got


def _behind(buffers: Sequence[memoryview], size: int) -> list[memoryview]:
    """Return what is left of ``buffers`` after their first ``size`` bytes."""
    rest = list(buffers)
    while size >= len(rest[0]):
        size -= len(rest.pop(0))
    rest[0] = rest[0][size:]
    return rest
