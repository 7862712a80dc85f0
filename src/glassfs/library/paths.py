"""A cache of what was found at paths, by the leases of its containers. Any thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from glassfs.tree.lease import Lease

Value = TypeVar("Value")


class PathCache(Generic[Value]):
    """Values by path, up to a total weight of ``limit``; when there are more, all others are dropped.

    A value found before ``forget`` and added after it would be stale: callers take ``generation`` first and pass it to
    ``put``, which then does nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._values: dict[str, Value] = {}
        self._weights: dict[str, int] = {}
        self._weight = 0
        self._paths_of: dict[Lease, tuple[str, ...]] = {}
        """Tuples, as the garbage collector stops visiting those of strings; it would visit lists again and again."""
        self.generation = 0
        """Changes with each ``forget``."""

    def get(self, path: str) -> Value | None:
        return self._values.get(path)

    def put(self, path: str, value: Value, lease: Lease, generation: int, weight: int = 1) -> None:
        with self._lock:
            if self.generation != generation or lease.is_retired:
                return
            if path not in self._values:
                if self._weight + weight > self._limit:
                    self._drop_all()
                self._paths_of[lease] = (*self._paths_of.get(lease, ()), path)
                self._weights[path] = weight
                self._weight += weight
            self._values[path] = value

    def forget(self, lease: Lease | None = None) -> None:
        """Drop all values, or those of one lease."""
        with self._lock:
            self.generation += 1
            if lease is None:
                self._drop_all()
            else:
                for path in self._paths_of.pop(lease, ()):
                    self._values.pop(path, None)
                    self._weight -= self._weights.pop(path, 0)

    def _drop_all(self) -> None:
        self._values, self._paths_of, self._weights, self._weight = {}, {}, {}, 0
