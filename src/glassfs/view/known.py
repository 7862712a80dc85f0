"""What files know of their columns, of all files of a tree up to a number of bytes. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar
from weakref import finalize

from glassfs.cache import BlockCache
from glassfs.keyed_lock import KeyedLock
from glassfs.lru import LRU

Value = TypeVar("Value")


class Known(Generic[Value]):
    """What one file knows, as a whole or of each of its parts. ``make``, called with the part, returns it, again after
    it was dropped; ``cost`` is its memory in bytes.
    """

    def __init__(self, cache: BlockCache, make: Callable[..., Value], cost: Callable[[Value], int]) -> None:
        self._known = cache.of_files
        self._make = make
        self._cost = cost
        self._making = KeyedLock()
        self._keys = set[Hashable]()
        # What is known goes with the file: the table of all must not keep entries of objects that are gone.
        finalize(self, _drop, self._known, self._keys).atexit = False

    def get(self, *part: int) -> Value:
        key, known = (id(self), *part), self._known

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
