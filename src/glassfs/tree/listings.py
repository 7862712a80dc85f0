"""A cache of the children of recently used directories, as making them may need reads. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU
from glassfs.tree.lease import Lease

LISTING_BYTES = 4 << 20


class Weighed(Protocol):
    """What can be cached: ``cost`` is its approximate memory in bytes."""

    @property
    def cost(self) -> int: ...


Children = TypeVar("Children", bound=Weighed)


class Owner(Protocol):
    """What the directories of one container have in common."""

    @property
    def lease(self) -> Lease: ...


class Listings(Generic[Children]):
    """Children by directory, up to ``limit`` bytes. Those of retired containers are not cached.

    A directory counts for at most two thirds of the limit: the children of a very large one stay, as they take longest
    to make, and others still fit beside them.
    """

    def __init__(self, limit: int = LISTING_BYTES) -> None:
        self._limit = limit
        self._cached: LRU[tuple[Owner, int], Children] = LRU(limit)
        self._keys_of: dict[Lease, set[tuple[Owner, int]]] = {}
        self._lock = threading.Lock()
        self._making = KeyedLock()

    def children(self, owner: Owner, ino: int, make: Callable[[], Children]) -> Children:
        """Return the children of a directory, calling ``make`` on one thread if they are not cached."""
        key = (owner, ino)
        found = self._cached.get(key)
        if found is None:
            with self._making.hold(key):
                found = self._cached.get(key)
                if found is None:
                    found = make()
                    self._put(key, found)
        return found

    def known(self, owner: Owner, ino: int) -> Children | None:
        """Return the cached children of a directory."""
        return self._cached.get((owner, ino))

    def forget(self, lease: Lease) -> None:
        """Drop the children of all directories of one version of a container."""
        with self._lock:
            for key in self._keys_of.pop(lease, ()):
                self._cached.pop(key)

    def clear(self) -> None:
        with self._lock:
            self._cached.clear()
            self._keys_of.clear()

    def _put(self, key: tuple[Owner, int], children: Children) -> None:
        lease = key[0].lease
        with self._lock:
            if lease.is_retired:  # ``forget`` may have been called already
                return
            self._keys_of.setdefault(lease, set()).add(key)
            for evicted, _ in self._cached.put(key, children, min(children.cost, self._limit * 2 // 3)):
                others = self._keys_of[evicted[0].lease]
                others.discard(evicted)
                if not others:
                    del self._keys_of[evicted[0].lease]
