"""The children of directories that were looked into lately, as making them may cost reading. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from glassfs.tree.lease import Lease
from glassfs.tree.turns import Turns

KEPT_BYTES = 4 << 20


class Weighed(Protocol):
    """What can be remembered: ``cost`` is the memory that it takes, about, in bytes."""

    @property
    def cost(self) -> int: ...


Children = TypeVar("Children", bound=Weighed)


class Owner(Protocol):
    """What the directories of one container have in common."""

    @property
    def lease(self) -> Lease: ...


class Listings(Generic[Children]):
    """Children by directory, up to so many bytes in all. Nothing is kept of a container that was retired.

    However many a directory has, they count for two thirds of the limit at most: the children of one very large
    directory stay, as they take longest to make, and there is room for others beside them.
    """

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._kept: OrderedDict[tuple[Owner, int], Children] = OrderedDict()
        self._of: dict[Lease, set[tuple[Owner, int]]] = {}
        self._lock = threading.Lock()
        self._turns = Turns()

    def children(self, owner: Owner, ino: int, make: Callable[[], Children]) -> Children:
        """What ``make`` gives for this directory, made by one thread and remembered."""
        key = (owner, ino)
        found = self.known(*key)
        if found is None:
            with self._turns.of(key):
                found = self.known(*key)
                if found is None:
                    found = make()
                    self._keep(key, found)
        return found

    def known(self, owner: Owner, ino: int) -> Children | None:
        """What is remembered of this directory."""
        key = (owner, ino)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def forget(self, lease: Lease) -> None:
        """Drops all that belongs to one version of a container, whoever owned it."""
        with self._lock:
            for key in self._of.pop(lease, ()):
                self._used -= self._weight(self._kept.pop(key))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._of.clear()
            self._used = 0

    def _keep(self, key: tuple[Owner, int], children: Children) -> None:
        lease = key[0].lease
        with self._lock:
            if lease.is_retired:  # before its turn to be forgotten, or after it
                return
            self._kept[key] = children
            self._of.setdefault(lease, set()).add(key)
            self._used += self._weight(children)
            while self._used > self._limit and len(self._kept) > 1:
                oldest, dropped = self._kept.popitem(last=False)
                self._used -= self._weight(dropped)
                others = self._of[oldest[0].lease]
                others.discard(oldest)
                if not others:
                    del self._of[oldest[0].lease]

    def _weight(self, children: Children) -> int:
        return min(children.cost, self._limit * 2 // 3)
