"""Mappings that drop their least recently used entries: by the sum of weights, and, for short keys only, by number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Result = TypeVar("Result")
LONGEST_CACHED = 1 << 10
"""Characters or bytes of a container that a cache of a module may be keyed by."""


def cached_if_short(most: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator like ``lru_cache(most)`` for functions whose first argument is text or bytes of a container.

    Results for long ones are not kept: a cache of a module belongs to no container, so nothing else bounds its memory.
    """
    def decorated(compute: Callable[..., Result]) -> Callable[..., Result]:
        cached = lru_cache(most)(compute)

        def call(text: str | bytes, *more: Any) -> Result:
            return cached(text, *more) if len(text) <= LONGEST_CACHED else compute(text, *more)

        return call

    return decorated


class LRU(Generic[Key, Value]):
    """Values by key, up to a total weight of ``limit`` and up to ``most`` entries. Any thread.

    The weight of an entry is 1 unless given: with default weights ``limit`` is a number of entries. The most recently
    added entry stays even if it alone exceeds the limit; callers that do not want that check the weight first.

    Values are never None.
    """

    def __init__(self, limit: int, most: int | None = None) -> None:
        self.limit = limit
        self._most = most
        # Reentrant: releasing a value may run a callback of a weak reference that drops another entry.
        self._lock = threading.RLock()
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._weights: dict[Key, int] = {}  # not in pairs with values: the garbage collector would visit each
        self.weight = 0
        """The sum of the weights of all entries."""

    def get(self, key: Key) -> Value | None:
        """Return the value of ``key`` and mark it as used last, or return None."""
        if key not in self._entries:
            return None
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def peek(self, key: Key) -> Value | None:
        """Return the value of ``key`` without marking it as used, or return None."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value, weight: int = 1) -> list[tuple[Key, Value]]:
        """Add or replace an entry as the one used last; return the entries that were evicted for it."""
        with self._lock:
            self._remove(key)
            self._weights[key] = weight  # first: such a callback may drop the new entry, too
            self._entries[key] = value
            self.weight += weight
            return self._evict()

    def reweigh(self, key: Key, weight: int) -> list[tuple[Key, Value]]:
        """Change the weight of an entry, if it is still here; return the entries that were evicted for it."""
        with self._lock:
            if key not in self._entries:
                return []
            self.weight += weight - self._weights[key]
            self._weights[key] = weight
            return self._evict()

    def exchange(self, key: Key, value: Value) -> None:
        """Replace the value of an entry, if it is still here, which keeps its weight and its place."""
        with self._lock:
            if key in self._entries:
                self._entries[key] = value

    def pop(self, key: Key) -> Value | None:
        """Remove an entry and return its value, or return None."""
        with self._lock:
            return self._remove(key)

    def pop_where(self, is_meant: Callable[[Key], bool]) -> list[Value]:
        """Remove all entries whose keys match, and return their values."""
        with self._lock:
            entries = [self._remove(key) for key in list(self._entries) if is_meant(key)]
        return [value for value in entries if value is not None]

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            entries, self._entries = self._entries, OrderedDict()
            self._weights = {}
            self.weight = 0
        entries.clear()

    def items(self) -> list[tuple[Key, Value]]:
        """Return all entries, the one used least recently first."""
        with self._lock:
            return list(self._entries.items())

    def _remove(self, key: Key) -> Value | None:
        value = self._entries.pop(key, None)
        if value is not None:
            self.weight -= self._weights.pop(key)
        return value

    def _evict(self) -> list[tuple[Key, Value]]:
        evicted = []
        while len(self._entries) > 1 and (
            self.weight > self.limit or (self._most is not None and len(self._entries) > self._most)
        ):
            key, value = self._entries.popitem(last=False)
            self.weight -= self._weights.pop(key)
            evicted.append((key, value))
        return evicted
