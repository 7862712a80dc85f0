"""What files know of their columns: a tree has many files, so of all of them a limited number of bytes is kept.

Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.lru import LRU

MOST_BYTES, SHARE = 16 << 20, 16
"""Limit of what is known at a time with a block cache: these bytes, and one in ``SHARE`` of its budget."""
Value = TypeVar("Value")

_KNOWN: WeakKeyDictionary[BlockCache, LRU[int, Any]] = WeakKeyDictionary()


class Known(Generic[Value]):
    """What one file knows: ``make`` returns it, again after it was dropped; ``cost`` is its memory in bytes."""

    def __init__(self, cache: BlockCache, make: Callable[[], Value], cost: Callable[[Value], int]) -> None:
        self._cache = cache
        self._make = make
        self._cost = cost
        self._lock = threading.RLock()
        self._is_added = False

    def get(self) -> Value:
        known = known_with(self._cache)
        found: Value | None = known.get(id(self))
        if found is None:
            with work.holding(self._lock):
                found = known.get(id(self))
                if found is None:
                    found = self._make()
                    known.put(id(self), found, self._cost(found))
                    if not self._is_added:
                        self._is_added = True
                        finalize(self, known.pop, id(self)).atexit = False
        return found


def known_with(cache: BlockCache) -> LRU[int, Any]:
    """Return what is known of the files that share a cache, by the ids of their ``Known``."""
    known = _KNOWN.get(cache)
    return _KNOWN.setdefault(cache, LRU(min(MOST_BYTES, cache.budget // SHARE))) if known is None else known
