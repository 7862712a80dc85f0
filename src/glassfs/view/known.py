"""What files know of their columns: a tree has many files, so of all of them a limited number of bytes is kept.

Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU
from glassfs.view.contract import Key

Value = TypeVar("Value")

_KNOWN: WeakKeyDictionary[BlockCache, LRU[Hashable, Any]] = WeakKeyDictionary()


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
                        # What is known goes with the file: the table of all must not keep entries of objects that are
                        # gone.
                        self._is_added = True
                        finalize(self, known.pop, id(self)).atexit = False
        return found


class KnownParts(Generic[Value]):
    """What is known of the parts of one file, by number. ``key`` is of the version of the file."""

    def __init__(self, cache: BlockCache, key: Key, make: Callable[[int], Value], cost: Callable[[int], int]) -> None:
        self._cache = cache
        self._key = key
        self._make = make
        self._cost = cost
        self._making = KeyedLock()
        self._keys = set[Hashable]()
        finalize(self, _drop, known_with(cache), self._keys).atexit = False

    def get(self, number: int) -> Value:
        key, known = (*self._key, number), known_with(self._cache)
        found: Value | None = known.get(key)
        if found is None:
            with self._making.hold(number):
                found = known.get(key)
                if found is None:
                    found = self._make(number)
                    self._keys.add(key)
                    known.put(key, found, self._cost(number))
        return found


def _drop(known: LRU[Hashable, Any], keys: Iterable[Hashable]) -> None:
    for key in keys:
        known.pop(key)


def known_with(cache: BlockCache) -> LRU[Hashable, Any]:
    """Return what is known of the files that share a cache: by the ids of their ``Known``, and by keys of parts."""
    known = _KNOWN.get(cache)
    return _KNOWN.setdefault(cache, LRU(min(16 << 20, cache.budget // 16))) if known is None else known
