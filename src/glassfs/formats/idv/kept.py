"""What was found out about the blocks of one file, kept as long as the file and while it is used.

Few things, and few bytes: they are not counted in the budget of the cache. Any thread may ask; two that ask for the
same at the same time may both find it out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast

MOST_KEPT = 32
MOST_BYTES = 4 << 20


class Weighed(Protocol):
    """Something that tells about how many bytes of memory it keeps."""

    @property
    def weight(self) -> int: ...


Found = TypeVar("Found", bound=Weighed)


class Kept:
    """The things that were asked for last. Keys must not refer to whoever has this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._things: OrderedDict[Hashable, tuple[Weighed, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """What is kept under ``key``, which is always of the same type, or what ``find`` gives."""
        with self._lock:
            known = self._things.get(key)
            if known is not None:
                self._things.move_to_end(key)
                return cast(Found, known[0])
        found = find()
        weight = found.weight
        if weight <= MOST_BYTES:
            with self._lock:
                self._drop(key)
                self._things[key] = found, weight
                self._bytes += weight
                while len(self._things) > MOST_KEPT or self._bytes > MOST_BYTES:
                    self._drop(next(iter(self._things)))
        return found

    def _drop(self, key: Hashable) -> None:
        _, weight = self._things.pop(key, (None, 0))
        self._bytes -= weight
