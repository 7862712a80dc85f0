"""Leases: who uses one version of one container, or of one plain file, and what becomes of its descriptors."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from glassfs.source import Source


class Lease:
    """One version of what ``sources`` are. Any thread.

    While somebody has acquired it the sources hold on to what reading has opened, so that a file that was deleted stays
    readable; with the last one they are parked, and reading goes on only as long as the version is still there. Whoever
    only keeps something that is made of them holds them too, but gets nothing that is scarce. It is retired when its
    place shows another version or nothing; ``is_replaced`` tells which.
    """

    __slots__ = ("__weakref__", "_keepers", "_lock", "_users", "is_replaced", "is_retired", "sources")

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.is_retired = self.is_replaced = False
        self._users = self._keepers = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                for source in self.sources:
                    source.is_needed = True
                self._begin()

    def release(self) -> None:
        with self._lock:
            if not self._users:
                raise RuntimeError("a lease was released more often than acquired")
            self._users -= 1
            if not self._users:
                for source in self.sources:
                    source.is_needed = False
                self._end()

    def keep(self) -> None:
        """For one who keeps something that is made of the sources."""
        with self._lock:
            self._keepers += 1
            if self._keepers == 1:
                self._begin()

    def unkeep(self) -> None:
        with self._lock:
            self._keepers -= 1
            if not self._keepers:
                self._end()

    def extend(self, sources: Sequence[Source]) -> None:
        """There are further files that it is a version of: whoever holds it holds these, too."""
        with self._lock:
            self.sources = (*self.sources, *sources)
            for source in sources:
                source.is_needed = self._users > 0
                if self._users + self._keepers:
                    source.keep()

    def _begin(self) -> None:
        if self._users + self._keepers == 1:
            for source in self.sources:
                source.keep()

    def _end(self) -> None:
        if not self._users + self._keepers:
            for source in self.sources:
                source.park()

    def retire(self, is_replaced: bool) -> None:
        """Its place shows another version from now on, or nothing any more."""
        self.is_replaced = is_replaced
        self.is_retired = True
