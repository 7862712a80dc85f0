"""Prepare the process of a daemon: its limit of open files, its capabilities, and the memory that it keeps.

Capabilities (capabilities(7)) belong to threads, and new threads inherit them. Those for worker processes are kept only
for programs that the daemon starts. Replies of up to 1 MiB must not be mapped and unmapped each time; blocks of many
MiB must. Free memory of the allocator (glibc) is returned to the system when there was no work for a while.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import time
from typing import Any

from glassfs.sandbox.confinement import OF_SERVER, Capabilities, Prctl, bound_capabilities, keep_capabilities
from glassfs.settings import settings

log = logging.getLogger(__name__)

YOUNG, MIDDLE, OLD = 5_000, 1_000, 100
"""Objects made before the young ones are collected, and how often that happens before older ones are, too."""
NEEDED = Capabilities.DAC_OVERRIDE | Capabilities.DAC_READ_SEARCH | Capabilities.SYS_ADMIN
"""To read sources of all owners, and to mount and unmount."""
PASSED_ON = NEEDED | OF_SERVER
"""For programs that the daemon starts."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one: a container may consist of many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.info("the limit of open files stays at %d: %s", soft, error)


def settle() -> None:
    """Drop the capabilities that are not needed, and tune the allocator. Sources start threads: call this before.

    A failure is logged, and the mount is served all the same.
    """
    tune_allocator()
    is_root = os.geteuid() == 0
    try:
        # The bounding set limits programs that the daemon starts; the other sets limit its own threads. Other users
        # have capabilities only in a user namespace of their own, where those that root needs would open files that are
        # closed to their owner.
        if is_root:
            bound_capabilities(PASSED_ON)
        keep_capabilities(*((NEEDED, PASSED_ON) if is_root else (Capabilities.SYS_ADMIN,) * 2))
    except OSError as error:
        log.warning("%s: %s", error.strerror, os.strerror(error.errno or 0))
    if is_root:  # for other users it would disable fusermount3
        ctypes.CDLL(None).prctl(Prctl.SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def tune_allocator() -> None:
    """Keep replies of up to 1 MiB, and the copies on their way, in arenas, each of which keeps its free memory."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(-3, 8 << 20)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 16 << 20)  # M_TRIM_THRESHOLD
        libc.mallopt(-8, 2)  # M_ARENA_MAX


def tune_collector() -> None:
    """Collect what is made from now on in short steps, and what exists already not at all."""
    # Nodes are made by the thousand, and reference counts free most of them. A collection of the young objects touches
    # all of them: with few, they are still in the processor's cache. Many short collections take a third of the time of
    # a few long ones, and none stops a reader for tens of milliseconds.
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


def _libc() -> Any:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


class FreeMemory:
    """Returns free memory to the system from time to time. For one thread."""

    def __init__(self) -> None:
        self._libc = _libc()
        self._work = 0
        self._last_change = self._last_trim = time.monotonic()
        self._is_clean = True

    def tick(self, work: int) -> bool:
        """Return memory if it is time; return whether none is left that could be.

        ``work`` changes when blocks are decoded or dropped, or the kernel learns of directories.
        """
        now = time.monotonic()
        if work != self._work:
            self._work, self._last_change, self._is_clean = work, now, False
        if self._is_clean or self._libc is None:
            return True
        is_quiet = now - self._last_change > settings.trim_quiet
        if is_quiet or now - self._last_trim > settings.trim_busy:
            self._libc.malloc_trim(0)
            self._last_trim, self._is_clean = now, is_quiet
        return self._is_clean
