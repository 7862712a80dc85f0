"""Places in one buffer that a run of bytes is put into, filled by one preadv(2) as it is where the system has it.

Where the places are is said once, for many buffers: to make a view of each, and to have Python look at each of the
views, takes as long as reading the bytes does. What the kernel is given instead, their addresses, is remembered for the
buffers used last; it follows from nothing but the places and where a buffer is. Any thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import final, overload

SEGMENTS = 1024
"""How many places Linux and macOS fill in one call (IOV_MAX)."""
REMEMBERED = 128
"""Vectors of at most 16 KiB."""
FURTHEST = 1 << 62
"""Further than any file reaches; ctypes would cut off what does not fit into an integer of C."""


class Spans:
    """Where some places in a buffer are: ``pairs`` of where each begins and its size, one behind the other.

    ``size`` is that of all of them, ``end`` what a buffer must have. Nobody changes them afterwards.
    """

    __slots__ = ("end", "pairs", "size")

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """Raises OverflowError for what is less than 0."""
        self.pairs = array("Q", [number for span in spans for number in span])
        self.size = sum(self.pairs[1::2])
        self.end = max(map(int.__add__, self.pairs[::2], self.pairs[1::2]), default=0)

    def __len__(self) -> int:
        return len(self.pairs) // 2


@final
class Scattered(Sequence[memoryview]):
    """The places ``spans`` of ``buffer`` (bytes, writable). Raises ValueError where they are not all in it."""

    __slots__ = ("_buffer", "spans")

    def __init__(self, buffer: memoryview, spans: Spans) -> None:
        if spans.end > len(buffer):
            raise ValueError("the places are not in the buffer")
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

    def read(self, number: int, offset: int) -> bool:
        """Whether all of them could be filled by one read of a descriptor. Otherwise they may hold anything."""
        if _preadv is None or not self.spans.size or len(self) > SEGMENTS or not 0 <= offset < FURTHEST:
            return False
        held = ctypes.c_char.from_buffer(self._buffer)  # for as long as this is there, the bytes stay where they are
        vector = _vector(self.spans, ctypes.addressof(held))
        return _preadv(number, vector.buffer_info()[0], len(self), offset) == self.spans.size


def total(buffers: Sequence[memoryview]) -> int:
    """How many bytes these have together."""
    return buffers.spans.size if type(buffers) is Scattered else sum(map(len, buffers))


@lru_cache(REMEMBERED)
def _vector(spans: Spans, address: int) -> array[int]:
    """``struct iovec`` for each place of a buffer that is at ``address``."""
    vector = spans.pairs[:]
    vector[::2] = array("Q", [address + start for start in spans.pairs[::2]])
    return vector


def _system_call() -> Callable[[int, int, int, int], int] | None:
    """preadv(2) with the addresses of what it fills, where these and offsets have 64 bits."""
    if sys.platform != "linux" or sys.maxsize < 1 << 62 or not hasattr(os, "preadv"):
        return None
    try:
        function = ctypes.CDLL(None).preadv
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    return function


_preadv = _system_call()


def fill(number: int, buffers: Sequence[memoryview], offset: int, wanted: int) -> int:
    """Fills ``buffers``, ``wanted`` bytes, from ``offset`` of a descriptor on. Returns how many there were."""
    if type(buffers) is Scattered and buffers.read(number, offset):
        return wanted
    got = 0
    while got < wanted:
        more = os.preadv(number, buffers[:SEGMENTS], offset + got)
        if not more:
            break
        got += more
        if got < wanted:
            buffers = _behind(buffers, more)
    return got


def _behind(buffers: Sequence[memoryview], size: int) -> list[memoryview]:
    """What is left of ``buffers`` after their first ``size`` bytes."""
    rest = list(buffers)
    while size >= len(rest[0]):
        size -= len(rest.pop(0))
    rest[0] = rest[0][size:]
    return rest
