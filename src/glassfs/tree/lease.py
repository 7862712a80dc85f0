"""Leases: which readers use one version of a container or plain file, and when its descriptors are closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from glassfs.source import Source


class Lease:
    """A lease on one version of the files behind ``sources``. Any thread.

    Readers acquire it and release it, and so do caches of what is parsed. Meanwhile the sources keep their descriptors,
    so that a deleted file stays readable; after the last release they are parked, and reading works only while that
    version is still there.

    A lease is retired when its location has another version (``is_replaced``) or no file. ``compared`` is when a
    lookup compared it with its store last, or made it, by ``time.monotonic``.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.compared = time.monotonic()
        self.is_retired = self.is_replaced = False
        self._users = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The bytes of all sources."""
        return sum([source.size for source in self.sources])

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
                    source.keep()

    def release(self) -> None:
        with self._lock:
            if not self._users:
                raise RuntimeError("a lease was released more often than acquired")
            self._users -= 1
            if not self._users:
                for source in self.sources:
                    source.park()

    def extend(self, sources: Sequence[Source]) -> None:
        """Add further files of the same version, open as the others are."""
        with self._lock:
            self.sources = (*self.sources, *sources)
            if self._users:
                for source in sources:
                    source.keep()

    def retire(self, is_replaced: bool) -> None:
        """Record that the location has another version, or no file any more."""
        self.is_replaced = is_replaced
        self.is_retired = True
