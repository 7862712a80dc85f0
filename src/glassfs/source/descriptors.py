"""The descriptors of this process: how many sources may hold one, and what to do when none is left."""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

from glassfs.errors import Unavailable

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
MOST = 128
"""Descriptors that sources hold in total; reopening a file is cheap."""
MOST_LOST = 4096

Opened = TypeVar("Opened")


class Descriptor:
    """A descriptor, closed with the last reference to it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


_Holders = OrderedDict[int, "ref[Any]"]
"""Sources that may hold a descriptor. Their ``evict`` gives it up and returns whether there is none any more.

That of a deleted file in use, which could not be opened again, is given up only if ``is_forced``.
"""


class Descriptors:
    """The sources that hold a descriptor, oldest first. When there are too many, the oldest close theirs.

    Descriptors of deleted files stay open while the process may open more. There is no lock, as the garbage collector
    may call ``discard`` at any point: each step is a single operation of a dictionary.
    """

    def __init__(self) -> None:
        self._holders: _Holders = OrderedDict()
        self._lost: _Holders = OrderedDict()
        self._most = 0

    def add(self, holder: Any) -> None:
        """Register a source that has opened a descriptor; the oldest give up theirs if there are too many."""
        if len(self._holders) >= self._most:
            # Some at once, as asking for the limit takes as long as closing one.
            self._most = limit()
            self._reduce(self._holders, self._most - 1 - self._most // 16)
            if self._lost:
                self._reduce(self._lost, room_for_lost(), is_forced=True)
        self._holders[id(holder)] = ref(holder)

    def discard(self, holder: Any) -> None:
        """Unregister a source that has closed its descriptor."""
        self._holders.pop(id(holder), None)
        self._lost.pop(id(holder), None)

    def release_all(self) -> None:
        """Close all descriptors, except those of deleted files."""
        self._reduce(self._holders, 0)

    def release_lost(self) -> None:
        """Close those of deleted files as well."""
        self._reduce(self._lost, 0, is_forced=True)

    def _reduce(self, holders: _Holders, most: int, is_forced: bool = False) -> None:
        for _ in range(len(holders)):  # lost ones may return
            if len(holders) <= most:
                return
            try:
                number, weak = holders.popitem(last=False)
            except KeyError:  # another thread removed it
                return
            holder = weak()
            if holder is not None and not holder.evict(is_forced):
                self._lost[number] = weak


def limit() -> int:
    """Return how many descriptors sources may hold; the rest is for folders, spool files, connections and users."""
    return max(8, min(MOST, _half()))


def room_for_lost() -> int:
    """Return how many more deleted files may use."""
    return max(0, min(MOST_LOST, _half()) - limit())


def _half() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_LOST + MOST if soft == resource.RLIM_INFINITY else soft // 2 - 16


def opened(open_one: Callable[[], Opened]) -> Opened:
    """Return what ``open_one`` opens. If no descriptor is left, sources close theirs first.

    Raises Unavailable if that does not help, and whatever else ``open_one`` raises.
    """
    # Descriptors that can be had again go first, those of deleted files only if that was not enough.
    releases = [pool.release_lost, pool.release_all]
    while True:
        try:
            return open_one()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            if not releases:
                raise Unavailable(os.strerror(error.errno or 0)) from error
        releases.pop()()


pool = Descriptors()
