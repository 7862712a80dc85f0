"""A cache of the children of recently used directories, as making them may need reads. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, Protocol, TypeVar

from glassfs.cache.budget import MemoryBudget
from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU
from glassfs.settings import settings
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


@dataclass
class _Listed(Generic[Children]):
    """Cached children, the bytes of the memory budget that they count for, and when they were used last."""

    children: Children
    counted: int
    used: float


_Key = tuple[Owner, int]


class Listings(Generic[Children]):
    """Children by directory, up to ``limit`` bytes. Those of retired containers are not cached.

    They count as cached bytes of the budget ``memory`` until other bytes are needed there, or ``drop_idle`` finds them
    unused. Large ones weigh a quarter of the limit, and count for half of the budget at most; of those that are larger,
    one stays. As a directory is listed in many calls, those used last are not evicted for other bytes at once, unless
    they are larger than a quarter of the budget, or all of the budget is wanted.
    """

    def __init__(self, memory: MemoryBudget, limit: int = LISTING_BYTES) -> None:
        self._memory = memory
        self._cached: LRU[_Key, _Listed[Children]] = LRU(limit)
        self._keys_of: dict[Lease, set[_Key]] = {}
        self._lock = threading.Lock()
        self._making = KeyedLock()

    def children(self, owner: Owner, ino: int, make: Callable[[], Children]) -> Children:
        """Return the children of a directory, calling ``make`` on one thread if they are not cached."""
        def made() -> Children:
            children = make()
            self._put((owner, ino), children)
            return children

        found = self.known(owner, ino)
        return self._making.once((owner, ino), lambda: self.known(owner, ino), made) if found is None else found

    def known(self, owner: Owner, ino: int) -> Children | None:
        """Return the cached children of a directory."""
        listed = self._cached.get((owner, ino))
        if listed is None:
            return None
        listed.used = monotonic()
        return listed.children

    def forget(self, lease: Lease) -> None:
        """Drop the children of all directories of one version of a container."""
        self._memory.drop_cached(self._dropped(self._keys_of.get(lease, ())))

    def clear(self) -> None:
        self._memory.drop_cached(self._dropped(key for key, _ in self._cached.items()))

    def drop_idle(self) -> bool:
        """Drop children that were not used for ``settings.listing_idle``; return whether there were some."""
        before = monotonic() - settings.listing_idle
        counted = self._dropped(key for key, listed in self._cached.items() if listed.used < before)
        self._memory.drop_cached(counted)
        return counted > 0

    def evict(self, wanted: int) -> int:
        """Drop children of ``wanted`` bytes, used least recently first; return the bytes. For the budget."""
        freed, oldest = 0, self._cached.items()
        for key, listed in oldest:
            is_in_use = monotonic() - listed.used < settings.listing_in_use
            is_protected = is_in_use and wanted < self._memory.limit >= 4 * listed.counted
            if freed >= wanted or (is_protected and listed is oldest[-1][1]):
                break
            freed += self._dropped((key,))
        return freed

    def _put(self, key: _Key, children: Children) -> None:
        limit, most = self._cached.limit, self._memory.limit // 2
        counted = min(children.cost, most)
        weight = min(children.cost, limit // 4) if children.cost <= most else limit
        with self._lock:
            self._keys_of.setdefault(key[0].lease, set()).add(key)
            evicted = self._cached.put(key, _Listed(children, counted, monotonic()), weight)
            dropped = sum(self._released(other, listed) for other, listed in evicted)
        if key[0].lease.is_retired:  # it would never be forgotten again, and keep its listings for good
            dropped += self._dropped([key])
        self._memory.drop_cached(dropped - counted)

    def _dropped(self, keys: Iterable[_Key]) -> int:
        """Drop children, and return the bytes that they counted for. The caller counts them less, under no lock."""
        with self._lock:
            return sum(self._released(key, listed) for key in tuple(keys) if (listed := self._cached.pop(key)))

    def _released(self, key: _Key, listed: _Listed[Children]) -> int:
        known = self._keys_of[key[0].lease]
        known.discard(key)
        if not known:
            del self._keys_of[key[0].lease]
        return listed.counted
