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


@dataclass(slots=True)
class _Listed(Generic[Children]):
    """Cached children, the bytes of the memory budget that they count for, and when they were used last."""

    children: Children
    counted: int
    used: float


_Key = tuple[Owner, int]


class Listings(Generic[Children]):
    """Children by directory, up to ``limit`` bytes. Those of retired containers are not cached.

    Children of more than two thirds of the limit are large: they weigh a quarter of it, and count as cached bytes of
    the budget ``memory`` until other bytes are needed there, or ``drop_idle`` finds them unused. They count for half of
    the budget at most; of those that are larger, one stays. As a directory is listed in many calls, those used last are
    not evicted for other bytes at once, unless they are larger than a quarter of the budget.
    """

    def __init__(self, memory: MemoryBudget, limit: int = LISTING_BYTES) -> None:
        self._memory = memory
        self._cached: LRU[_Key, _Listed[Children]] = LRU(limit)
        self._large: dict[_Key, _Listed[Children]] = {}
        """Those among them that are large."""
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
        if listed.counted:
            listed.used = monotonic()
        return listed.children

    def forget(self, lease: Lease) -> None:
        """Drop the children of all directories of one version of a container."""
        with self._lock:
            counted = self._dropped(self._keys_of.get(lease, ()))
        self._release(counted)

    def clear(self) -> None:
        with self._lock:
            counted = self._dropped(key for key, _ in self._cached.items())
        self._release(counted)

    def drop_idle(self) -> bool:
        """Drop large children that were not used for ``settings.listing_idle``; return whether there were some."""
        before = monotonic() - settings.listing_idle
        with self._lock:
            counted = self._dropped(key for key, large in self._large.items() if large.used < before)
        self._release(counted)
        return counted > 0

    def evict(self, wanted: int) -> int:
        """Drop large children of ``wanted`` bytes, used least recently first; return the bytes. For the budget."""
        freed = 0
        with self._lock:
            oldest = sorted(self._large.items(), key=lambda item: item[1].used)
            for key, large in oldest:
                is_in_use = monotonic() - large.used < settings.listing_in_use
                is_protected = is_in_use and large.counted <= self._memory.limit // 4
                if freed >= wanted or (is_protected and large is oldest[-1][1]):
                    break
                freed += self._dropped((key,))
        return freed

    def _put(self, key: _Key, children: Children) -> None:
        limit, lease = self._cached.limit, key[0].lease
        is_large = children.cost > limit * 2 // 3
        counted = min(children.cost, self._memory.limit // 2) if is_large else 0
        self._release(-counted)
        listed = _Listed(children, counted, monotonic())
        dropped = []
        with self._lock:
            self._keys_of.setdefault(lease, set()).add(key)
            if is_large:
                if children.cost > counted:
                    dropped = [other for other, large in self._large.items() if large.children.cost > large.counted]
                self._large[key] = listed
            evicted = self._cached.put(key, listed, limit // 4 if is_large else children.cost)
            # A retired lease would never be forgotten again, and keep its listings for good.
            dropped += [other for other, _ in evicted] + ([key] if lease.is_retired else [])
            counted = self._dropped(set(dropped))
        self._release(counted)

    def _dropped(self, keys: Iterable[_Key]) -> int:
        """Drop children, and return the bytes that they counted for. The caller holds the lock."""
        counted = 0
        for key in tuple(keys):
            self._cached.pop(key)
            large = self._large.pop(key, None)
            counted += large.counted if large is not None else 0
            known = self._keys_of[key[0].lease]
            known.discard(key)
            if not known:
                del self._keys_of[key[0].lease]
        return counted

    def _release(self, counted: int) -> None:
        """Count so many bytes less as cached. Not under the lock, as the budget calls ``evict``."""
        if counted:
            self._memory.drop_cached(counted)
