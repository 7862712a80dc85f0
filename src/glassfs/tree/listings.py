"""The children of directories that were looked into lately, as making them may cost reading. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sized
from typing import Generic, Protocol, TypeVar

from glassfs.tree.lease import Lease
from glassfs.tree.turns import Turns

KEPT_NODES = 200_000

Children = TypeVar("Children", bound=Sized)


class Owner(Protocol):
    """What the directories of one container have in common."""

    @property
    def lease(self) -> Lease: ...


class Listings(Generic[Children]):
    """Children by directory, up to a number of nodes in all. Nothing is kept of a container that was retired.

    However many a directory has, it counts for two thirds of that number at most: the children of one very large
    directory stay, as they take longest to make, and there is room for others beside them.
    """

    def __init__(self, limit: int = KEPT_NODES) -> None:
        self._limit = limit
        self._count = 0
        self._kept: OrderedDict[tuple[Owner, int], Children] = OrderedDict()
        self._of: dict[Lease, set[tuple[Owner, int]]] = {}
        self._lock = threading.Lock()
        self._turns = Turns()

    def children(self, owner: Owner, ino: int, make: Callable[[], Children]) -> Children:
        """What ``make`` gives for this directory, made by one thread and remembered."""
        key = (owner, ino)
        found = self._find(key)
        if found is None:
            with self._turns.of(key):
                found = self._find(key)
                if found is None:
                    found = make()
                    self._keep(key, found)
        return found

    def forget(self, lease: Lease) -> None:
        """Drops all that belongs to one version of a container, whoever owned it."""
        with self._lock:
            for key in self._of.pop(lease, ()):
                self._count -= self._weight(self._kept.pop(key))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._of.clear()
            self._count = 0

    def _find(self, key: tuple[Owner, int]) -> Children | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: tuple[Owner, int], children: Children) -> None:
        with self._lock:
            if key[0].lease.is_retired:  # before its turn to be forgotten, or after it
                return
            self._kept[key] = children
            self._of.setdefault(key[0].lease, set()).add(key)
            self._count += self._weight(children)
            while self._count > self._limit and len(self._kept) > 1:
                oldest, dropped = self._kept.popitem(last=False)
                self._count -= self._weight(dropped)
                others = self._of[oldest[0].lease]
                others.discard(oldest)
                if not others:
                    del self._of[oldest[0].lease]

    def _weight(self, children: Children) -> int:
        return min(len(children) + 1, self._limit * 2 // 3)
