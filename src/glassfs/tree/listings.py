"""A cache of the children of recently used directories, as making them may need reads. Any thread."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
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


class _Large(Generic[Children]):
    """The children of a large directory, the bytes that they count for, and when they were used last."""

    __slots__ = ("children", "counted", "used")

    def __init__(self, children: Children, counted: int, used: float) -> None:
        self.children = children
        self.counted = counted
        self.used = used


class Listings(Generic[Children]):
    """Children by directory, up to ``limit`` bytes. Those of retired containers are not cached.

    Children of more than two thirds of the limit count as cached bytes of the memory budget ``memory`` instead: they
    stay until other bytes are needed there, or ``drop_idle`` finds that they were not used for a while. Of those larger
    than half of the budget, which count for half of it, only one stays. Those used last are not evicted at once, unless
    they are larger than a quarter of it: a directory is listed in many calls.
    """

    def __init__(
        self, limit: int = LISTING_BYTES, memory: MemoryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._largest = limit * 2 // 3
        self._memory = memory
        self._clock = clock
        self._cached: LRU[tuple[Owner, int], Children] = LRU(limit)
        self._large: OrderedDict[tuple[Owner, int], _Large[Children]] = OrderedDict()
        self._keys_of: dict[Lease, set[tuple[Owner, int]]] = {}
        self._lock = threading.Lock()
        self._making = KeyedLock()

    def children(self, owner: Owner, ino: int, make: Callable[[], Children]) -> Children:
        """Return the children of a directory, calling ``make`` on one thread if they are not cached."""
        key = (owner, ino)
        found = self._find(key)
        if found is None:
            with self._making.hold(key):
                # Another thread may have made them meanwhile. Marking them as used again would take longer.
                found = self._cached.peek(key) or (self._find(key) if self._large else None)
                if found is None:
                    found = make()
                    self._put(key, found)
        return found

    def known(self, owner: Owner, ino: int) -> Children | None:
        """Return the cached children of a directory."""
        return self._find((owner, ino))

    def forget(self, lease: Lease) -> None:
        """Drop the children of all directories of one version of a container."""
        with self._lock:
            keys = self._keys_of.pop(lease, set())
            for key in keys:
                self._cached.pop(key)
            dropped = [self._large.pop(key) for key in keys if key in self._large]
        self._released(dropped)

    def clear(self) -> None:
        with self._lock:
            self._cached.clear()
            dropped, self._large = list(self._large.values()), OrderedDict()
            self._keys_of.clear()
        self._released(dropped)

    def drop_idle(self) -> bool:
        """Drop large children that were not used for ``settings.listing_idle``; return whether there were some."""
        if not self._large:
            return False
        before = self._clock() - settings.listing_idle
        with self._lock:
            keys = [key for key, large in self._large.items() if large.used < before]
            dropped = [self._dropped(key) for key in keys]
        self._released(dropped)
        return bool(dropped)

    def evict(self, wanted: int) -> int:
        """Drop large children of ``wanted`` bytes, used least recently first; return the bytes. For the budget."""
        freed = 0
        with self._lock:
            while self._large and freed < wanted:
                key = next(iter(self._large))
                if len(self._large) == 1 and self._is_protected(self._large[key]):
                    break
                freed += self._dropped(key).counted
        return freed

    def _is_protected(self, large: _Large[Children]) -> bool:
        is_in_use = self._clock() - large.used < settings.listing_in_use
        return is_in_use and self._memory is not None and large.counted <= self._memory.limit // 4

    def _find(self, key: tuple[Owner, int]) -> Children | None:
        found = self._cached.get(key)
        if found is None and self._large:
            with self._lock:
                large = self._large.get(key)
                if large is not None:
                    large.used = self._clock()
                    self._large.move_to_end(key)
                    found = large.children
        return found

    def _put(self, key: tuple[Owner, int], children: Children) -> None:
        lease = key[0].lease
        is_large = children.cost > self._largest
        counted = 0
        if is_large and self._memory is not None:
            counted = min(children.cost, self._memory.limit // 2)
            self._memory.release(0, counted)
        dropped = []
        with self._lock:
            # A retired lease would never be forgotten again, and keep its listings for good.
            if lease.is_retired:  # ``forget`` may have been called already
                dropped = [_Large(children, counted, 0)] if is_large else []
            else:
                self._keys_of.setdefault(lease, set()).add(key)
                if is_large:
                    if self._memory is not None and children.cost > counted:
                        larger = [other for other, large in self._large.items() if large.children.cost > large.counted]
                        dropped = [self._dropped(other) for other in larger]
                    self._large[key] = _Large(children, counted, self._clock())
                else:
                    for evicted, _ in self._cached.put(key, children, children.cost):
                        self._forget_key(evicted)
        self._released(dropped)

    def _dropped(self, key: tuple[Owner, int]) -> _Large[Children]:
        """Remove large children. Under the lock."""
        self._forget_key(key)
        return self._large.pop(key)

    def _forget_key(self, key: tuple[Owner, int]) -> None:
        keys = self._keys_of[key[0].lease]
        keys.discard(key)
        if not keys:
            del self._keys_of[key[0].lease]

    def _released(self, dropped: Sequence[_Large[Children]]) -> None:
        """Count large children as no longer cached. Not under the lock, as the budget calls ``evict``."""
        if dropped and self._memory is not None:
            self._memory.drop_cached(sum(large.counted for large in dropped))
