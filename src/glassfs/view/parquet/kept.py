"""What is known of the files that were used last, up to so many bytes: any of it can be found out again. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary, ref

from glassfs.cache import BlockCache

LARGEST, SHARE = 16 << 20, 16
"""The limit with a cache, and how many times that its budget must be at the least."""


class Kept:
    """What was ``put`` for an object, as long as that is there and no more than ``limit`` bytes were put since.

    Of one that takes more than the limit nothing is lost before others come.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._lock = threading.RLock()  # an object may go while this thread has it
        self._kept: OrderedDict[int, tuple[ref[Any], Any, int]] = OrderedDict()

    @property
    def used(self) -> int:
        return self._used

    def find(self, owner: object) -> Any:
        """What is kept for it, or None."""
        with self._lock:
            found = self._kept.get(id(owner))
            if found is None:
                return None
            self._kept.move_to_end(id(owner))
            return found[1]

    def put(self, owner: object, thing: object, cost: int) -> None:
        """There must be nothing kept for it yet."""
        number = id(owner)
        with self._lock:
            self._kept[number] = ref(owner, lambda gone: self._drop(number, gone)), thing, cost
            self._used += cost
            while self._used > self._limit and len(self._kept) > 1:
                _, (_, _, dropped) = self._kept.popitem(last=False)
                self._used -= dropped

    def _drop(self, number: int, gone: ref[Any]) -> None:
        with self._lock:
            found = self._kept.get(number)
            if found is not None and found[0] is gone:
                del self._kept[number]
                self._used -= found[2]


_KEPT: WeakKeyDictionary[BlockCache, Kept] = WeakKeyDictionary()


def kept_with(cache: BlockCache) -> Kept:
    """What is kept for the files of those who share this cache."""
    return _KEPT.get(cache) or _KEPT.setdefault(cache, Kept(min(LARGEST, cache.budget // SHARE)))
