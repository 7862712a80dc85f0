"""The registry of leases: one per location, found as long as anything refers to it. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from glassfs.source import Entry
from glassfs.tree.containers.lease import ContainerLease, Location
from glassfs.tree.containers.opener import Parts

COMPARED = 256
"""Containers compared with their stores in one round; more are compared in turn."""


class Leases:
    """The current lease of each location. Every change of a lease goes through here, under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: WeakValueDictionary[Location, ContainerLease] = WeakValueDictionary()
        self._queue: list[Location] = []
        """Locations still to be compared before the next pass over all of them begins."""

    def find(self, location: Location) -> ContainerLease | None:
        return self._current.get(location)

    def find_or_add(self, location: Location, make: Callable[[], ContainerLease]) -> ContainerLease:
        with self._lock:
            lease = self._current.get(location)
            if lease is None:
                lease = self._current[location] = make()
            return lease

    def replace(self, lease: ContainerLease) -> ContainerLease | None:
        """Make a lease the current one of its location; return the previous one, now retired."""
        with self._lock:
            previous = self._current.get(lease.location)
            self._current[lease.location] = lease
            if previous is not None:
                previous.retire(is_replaced=True)
        return previous

    def retire(self, lease: ContainerLease, is_replaced: bool) -> bool:
        """Retire a lease. Returns False if it is no longer the current one of its location."""
        with self._lock:
            if self._current.get(lease.location) is not lease:
                return False
            del self._current[lease.location]
            lease.retire(is_replaced)
        return True

    def update(self, lease: ContainerLease, before: Sequence[Entry], now: tuple[Entry, ...]) -> bool:
        """Exchange the entries of a lease. Returns False if another thread changed them or the lease first."""
        with self._lock:
            if self._current.get(lease.location) is not lease or lease.entries is not before:
                return False
            lease.entries = now
        return True

    def settle(self, lease: ContainerLease, format_name: str, parts: Parts) -> None:
        """Record what parsing a presumed container has found out."""
        lease.extend([part for _, part in parts])  # not under the lock, as it may have to wait for a disk
        with self._lock:
            lease.settle(format_name, parts)

    def next_round(self) -> list[ContainerLease]:
        """Return the leases to compare next: all, or the next ``COMPARED`` of them."""
        with self._lock:
            if len(self._current) <= COMPARED:
                return list(self._current.values())
            if not self._queue:
                self._queue = list(self._current)
            some = self._queue[-COMPARED:]
            del self._queue[-COMPARED:]
            return [lease for location in some if (lease := self._current.get(location)) is not None]
