"""How glibc's allocator is to treat a daemon: keep what requests need all the time, give back what blocks needed once.

The daemon makes a reply of up to 1 MiB for each request, which is not to be mapped and unmapped each time; and blocks
of many MiB, which are. What is left over in the arenas of threads is given back when there was no work for a while.
Where there is no glibc, nothing happens.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST_IN_ARENA = 8 << 20
KEPT = 16 << 20
ARENAS = 2
QUIET = 1.5
"""Seconds without work after which memory is given back."""
BUSY = 5.0
"""Seconds of work after which it is given back all the same."""


def _libc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    except OSError:
        return None


def tame() -> None:
    """To be called before there are threads."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_IN_ARENA)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)
        libc.mallopt(M_ARENA_MAX, ARENAS)


class Memory:
    """Gives free memory back to the system from time to time. For one thread."""

    def __init__(self) -> None:
        self._libc = _libc()
        self._work = 0
        self._last_change = self._last_trim = time.monotonic()
        self._is_clean = True

    def tick(self, work: int) -> None:
        """``work`` is a number that changes when blocks are decoded, and when the kernel learns of directories."""
        now = time.monotonic()
        if work != self._work:
            self._work, self._last_change, self._is_clean = work, now, False
        if self._is_clean or self._libc is None:
            return
        is_quiet = now - self._last_change > QUIET
        if is_quiet or now - self._last_trim > BUSY:
            self._libc.malloc_trim(0)
            self._last_trim, self._is_clean = now, is_quiet
