"""Tune glibc's allocator for a daemon: keep the memory that every request needs, return the memory of large blocks.

Replies of up to 1 MiB must not be mapped and unmapped each time; blocks of many MiB must. Free memory in the arenas of
threads is returned to the system when there was no work for a while. Without glibc nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from enum import IntEnum
from typing import Any

from glassfs.settings import settings

MUCH = 64 << 20
"""Bytes that the process has beside the cache at which memory is returned at once."""


class Parameter(IntEnum):
    """Of mallopt(3)."""

    TRIM_THRESHOLD = -1
    MMAP_THRESHOLD = -3
    ARENA_MAX = -8


def _libc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    except OSError:
        return None


def tune() -> None:
    """Set the thresholds. Call this before threads are started."""
    libc = _libc()
    if libc is not None:
        # Replies of up to 1 MiB, and the copies on their way, come from an arena; each arena keeps its free memory.
        libc.mallopt(Parameter.MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(Parameter.TRIM_THRESHOLD, 16 << 20)
        libc.mallopt(Parameter.ARENA_MAX, 2)


class FreeMemory:
    """Returns free memory to the system from time to time. For one thread."""

    def __init__(self) -> None:
        self._libc = _libc()
        self._work = 0
        self._last_change = self._last_trim = time.monotonic()
        self._is_clean = True

    def tick(self, work: int, cached: int) -> bool:
        """Return memory if it is time; return whether none is left that could be. The cache has ``cached`` bytes.

        ``work`` changes when blocks are decoded or dropped, or the kernel learns of directories.
        """
        now = time.monotonic()
        if work != self._work:
            self._work, self._last_change, self._is_clean = work, now, False
        if self._is_clean or self._libc is None:
            return True
        is_quiet = now - self._last_change > settings.trim_quiet
        waited = now - self._last_trim
        if is_quiet or waited > settings.trim_busy or (waited > settings.trim_much and _resident() - cached > MUCH):
            self._libc.malloc_trim(0)
            self._last_trim, self._is_clean = now, is_quiet
        return self._is_clean


def _resident() -> int:
    """Return the bytes of this process in memory, 0 if that is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
