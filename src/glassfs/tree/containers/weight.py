"""A cache of open containers by their memory, which is measured: what an untrusted container allocates cannot be
estimated from its size.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from sys import getsizeof
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol, TypeVar

from glassfs.cache import BlockCache
from glassfs.cache.findings import Findings
from glassfs.content import Container
from glassfs.content.allowance import OBJECT, Lasting
from glassfs.lru import LRU, Key
from glassfs.settings import settings
from glassfs.sizes import PIECE
from glassfs.source import Source, Store
from glassfs.tree.lease import Lease

CONTAINER_COST = 32 * OBJECT
"""Bytes counted for each container beside its measured weight: its sources, table entries and nodes."""
_SHARED = (type, ModuleType, CodeType, FrameType, BlockCache, Findings, Store, Source, Lease, Lasting)
"""Types of objects that outlive what refers to them."""

_Below = Callable[[Any], Iterable[object]]


class Opened(Protocol):
    """What is kept of an open container."""

    @property
    def container(self) -> Container: ...


Kept = TypeVar("Kept", bound=Opened)


class OpenContainers(LRU[Key, Kept]):
    """Open containers, up to ``limit`` bytes and ``most`` containers. Any thread.

    Unless a container knows its weight, it is measured when the next one was put here, as most allocate at their first
    use, and later in turn. ``on_evict`` is called, under no lock, with those evicted for others, and the key of the one
    that is used now. A container heavier than the whole limit stays until another one comes.
    """

    def __init__(
        self, limit: int, on_evict: Callable[[list[tuple[Key, Kept]], Key], None], most: int | None = None,
    ) -> None:
        super().__init__(limit, most)
        self._on_evict = on_evict
        self._last: Key | None = None
        self._to_weigh: list[Key] = []
        self._next_round = 0.0

    def put(self, key: Key, value: Kept, weight: int = 0) -> list[tuple[Key, Kept]]:
        """Add a container; return those that were evicted for it. The caller then calls ``was_put``."""
        return super().put(key, value, CONTAINER_COST + (value.container.held or 0))

    def was_put(self, key: Key, evicted: list[tuple[Key, Kept]]) -> None:
        """Release what was evicted for a container, and weigh the previous one. The caller holds no lock."""
        if evicted:
            self._on_evict(evicted, key)
        last, self._last = self._last, key
        if last is not None and last != key:
            self.weigh(last)

    def weigh(self, key: Key) -> int:
        """Weigh a container again, unless it knows its weight; evict others if it has grown. Return its weight."""
        opened = self.peek(key)
        if opened is None or opened.container.held is not None:
            return 0
        weight = CONTAINER_COST + weight_of(opened.container, self.limit)
        evicted = self.reweigh(key, weight)
        if evicted:
            self._on_evict(evicted, key)
        return weight

    def weigh_some(self) -> None:
        """Weigh some containers again, all in turn. Only one thread may call this, periodically."""
        # In proportion to its own cost: weighing many containers must not take a noticeable part of a processor.
        begun = time.monotonic()
        if not self._to_weigh:
            if begun < self._next_round:
                return
            self._to_weigh = [key for key, _ in self.items()]
            self._next_round = begun + settings.weighing_pause
        weighed = 0
        while self._to_weigh and weighed < PIECE:
            weighed += self.weigh(self._to_weigh.pop())
        self._next_round += settings.weighing_pause * (time.monotonic() - begun)


def weight_of(thing: object, limit: int) -> int:
    """Return the bytes of an object and all that it refers to, or a number above ``limit`` if there are more.

    Approximate while other threads change the object. Shared objects count, except code, modules and the services of
    which a process has only one.
    """
    seen: set[int] = set()
    weight = 0
    found = [thing]
    for one in found:  # which grows meanwhile
        number = id(one)
        if number in seen:
            continue
        seen.add(number)
        kind: Any = type(one)
        below = _below(kind)
        if below is None:
            continue
        weight += getsizeof(one)
        if weight > limit:
            break
        if below is not _nothing:
            found += below(one)
    return weight


def _nothing(one: object) -> Iterable[object]:
    return ()


def _of_function(one: Any) -> Iterable[object]:
    """Leave out its globals, which belong to the module."""
    return one.__closure__, one.__defaults__, one.__kwdefaults__


def _of_method(one: Any) -> Iterable[object]:
    """Count its function only if that is a closure; others belong to the class."""
    return (one.__self__, one.__func__) if getattr(one.__func__, "__closure__", None) else (one.__self__,)


def _of_array(one: Any) -> Iterable[object]:
    """Add the owner of the bytes, which NumPy arrays do not report to the garbage collector."""
    return *gc.get_referents(one), one.base


@lru_cache(1 << 12)
def _below(kind: type) -> _Below | None:
    """Return a function that lists what objects of a type refer to; None if they do not count."""
    if kind in (str, bytes, int, float, bool, bytearray, type(None)):
        return _nothing
    if issubclass(kind, _SHARED):
        return None
    if kind is FunctionType:
        return _of_function
    if kind is MethodType:
        return _of_method
    return _of_array if hasattr(kind, "__array_interface__") else gc.get_referents
