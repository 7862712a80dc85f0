"""What files know of their columns: a tree has many files, so of all of them a limited number of bytes is kept.

Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

from glassfs.cache import BlockCache
from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU

Value = TypeVar("Value")

_KNOWN: WeakKeyDictionary[BlockCache, LRU[Hashable, Any]] = WeakKeyDictionary()


class Known(Generic[Value]):
    """What one file knows, as a whole or of each of its parts.

    ``make``, called with the part, returns it, again after it was dropped. ``cost`` is its memory in bytes.
    """

    def __init__(self, cache: BlockCache, make: Callable[..., Value], cost: Callable[[Value], int]) -> None:
        self._cache = cache
        self._make = make
        self._cost = cost
        self._making = KeyedLock()
        self._keys = set[Hashable]()
        # What is known goes with the file: the table of all must not keep entries of objects that are gone.
        finalize(self, _drop, known_with(cache), self._keys).atexit = False

    def get(self, *part: int) -> Value:
        key, known = (id(self), *part), known_with(self._cache)

        def make() -> Value:
            made = self._make(*part)
            self._keys.add(key)
            known.put(key, made, self._cost(made))
            return made

        found: Value | None = known.get(key)
        return self._making.once(part, lambda: known.get(key), make) if found is None else found


def _drop(known: LRU[Hashable, Any], keys: Iterable[Hashable]) -> None:
    for key in keys:
        known.pop(key)


def known_with(cache: BlockCache) -> LRU[Hashable, Any]:
    """Return what is known of the files that share a cache, by the ids of their ``Known`` and by part."""
    known = _KNOWN.get(cache)
    return _KNOWN.setdefault(cache, LRU(min(16 << 20, cache.budget // 16))) if known is None else known
