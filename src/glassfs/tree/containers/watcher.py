"""Compare leased containers with their stores, and collect the tree paths of what changed. Any thread."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from glassfs.errors import DeviceFailed, GlassfsError, NotADirectory, NotFound, Unavailable
from glassfs.names import shown_name
from glassfs.source import Entry, Path
from glassfs.tree.containers.lease import ContainerLease, Location
from glassfs.tree.lease import Lease

log = logging.getLogger(__name__)

COMPARED = 256
"""Containers compared with their stores in one round, and as many of their further files; more are compared in turn."""


class Watcher:
    """The current lease of each location, found as long as anything refers to it, and what changes.

    ``on_update`` is called with a lease after attributes of its files changed but not their bytes, ``on_retire`` after
    another version, or none, is at its location. ``on_change`` follows either, and any notification by a store. None
    of them is called under a lock.
    """

    def __init__(
        self, on_update: Callable[[ContainerLease], None], on_retire: Callable[[ContainerLease], None],
        on_change: Callable[[], None],
    ) -> None:
        self._on_update = on_update
        self._on_retire = on_retire
        self._on_change = on_change
        self._lock = threading.Lock()
        self._current: WeakValueDictionary[Location, ContainerLease] = WeakValueDictionary()
        self._queue: list[Location] = []
        """Locations still to be compared before the next pass over all of them begins."""
        self._changed: set[str] = set()
        self._notified: set[tuple[Location, str, str]] = set()
        """Notifications by stores: the folder, its path in the tree, and a name, or "" for everything in it."""
        self._numbers = itertools.count(1)
        self._last_changes: dict[Location, int] = {}
        self._forgotten = 0

    def find(self, location: Location) -> ContainerLease | None:
        return self._current.get(location)

    def add(self, lease: ContainerLease) -> None:
        """Make a lease the current one of its location. The previous one is retired, as another version replaced it."""
        with self._lock:
            previous = self._current.get(lease.location)
            self._current[lease.location] = lease
            if previous is not None:
                previous.retire(is_replaced=True)
        if previous is not None:
            self._is_over(previous)

    def retire(self, lease: ContainerLease, is_replaced: bool) -> bool:
        """Retire a lease whose location has another version, or nothing. Open files of it stay readable."""
        with self._lock:
            if self._current.get(lease.location) is not lease:
                return False
            del self._current[lease.location]
            lease.retire(is_replaced)
        self._is_over(lease)
        return True

    def _is_over(self, lease: ContainerLease) -> None:
        self.note(lease.at)
        self._on_retire(lease)
        self._on_change()

    def check(self, location: Location, entry: Entry | None = None) -> bool:
        """Compare a leased container with what is at its location; return whether anything changed.

        ``entry`` was there a moment ago.
        """
        # Without a lease no node shows this file as a container, and there is nothing to compare.
        lease = self.find(location)
        if lease is None:
            return False
        if entry is None or entry.version != lease.version:
            # Another thread may have leased the new version after the caller asked for the entry.
            try:
                entry = location.store.entry(location.path)
            except (NotFound, NotADirectory):
                entry = None
            except GlassfsError as error:
                log.debug("not compared: %s", error)
                return False
        before = lease.entries
        return self.compare(lease, before, None if entry is None else (entry, *before[1:]))

    def is_current(self, lease: Lease) -> bool:
        """Ask the store, and return whether what is leased is still at its location, as far as is known."""
        if isinstance(lease, ContainerLease) and not lease.is_retired and not _unchanged([lease]):
            self.check(lease.location)
        return not lease.is_retired

    def watch(self, folder: Location, at: str) -> bool:
        """Return whether ``changes`` will report changes in a folder. ``at`` is its path in the tree."""

        def notify(_: Path, name: str) -> None:
            with self._lock:
                is_first = not self._notified
                self._notified.add((folder, at, name))
                if len(self._last_changes) >= 10_000:  # there may be any number of folders
                    self._last_changes.clear()
                    self._forgotten = next(self._numbers)
                self._last_changes[folder] = next(self._numbers)
            if is_first:
                self._on_change()

        return folder.store.watch(folder.path, notify)

    def last_change(self, folder: Location) -> int:
        """Return a number that is another one after each notification about a folder."""
        with self._lock:
            return self._last_changes.get(folder, self._forgotten)

    def refresh(self) -> None:
        """Compare the leased containers with their stores, or the next round of them. Waits for each store."""
        leases = self._next_round()
        parts = 8 + COMPARED // (len(leases) or 1)
        unchanged = _unchanged(leases)
        for lease in leases:
            before = lease.entries
            if lease not in unchanged:
                with suppress(Unavailable, DeviceFailed):
                    self.compare(lease, before, lease.entries_now(before, parts=parts))

    def _next_round(self) -> list[ContainerLease]:
        """Return the leases to compare next: all, or the next ``COMPARED`` of them."""
        with self._lock:
            # Weak references: a lease that nothing uses is not compared, and those that end meanwhile are left out.
            if not self._queue or len(self._current) <= COMPARED:
                self._queue = list(self._current)
            some = self._queue[-COMPARED:]
            del self._queue[-COMPARED:]
            return [lease for location in some if (lease := self._current.get(location)) is not None]

    def changes(self) -> list[str]:
        """Return the tree paths of what changed since the last call, of containers and of watched folders.

        Waits only for stores that reported a change.
        """
        with self._lock:
            notified, self._notified = self._notified, set()
        for folder, at, name in notified:
            if name:
                self.check(folder.below(name))
            shown = shown_name(name) if name else ""
            if shown:
                self.note(f"{at}/{shown}")
            if shown != name or not name:
                self.note(at)  # which name is shown may depend on others in the folder
        with self._lock:
            changed, self._changed = self._changed, set()
        return sorted(changed)

    def note(self, at: str) -> None:
        """Report a tree path with the next ``changes``."""
        with self._lock:
            self._changed.add(at)

    def are_parts_current(self, lease: Lease) -> bool:
        """Ask the store for the further files of a container, and return whether it is still the same."""
        if isinstance(lease, ContainerLease) and len(lease.entries) > 1 and not lease.is_retired:
            before = lease.entries
            with suppress(Unavailable, DeviceFailed):
                self.compare(lease, before, lease.entries_now(before, before[0], COMPARED))
        return not lease.is_retired

    def compare(self, lease: ContainerLease, before: Sequence[Entry], now: tuple[Entry, ...] | None) -> bool:
        """Use what was found out about the files of a lease; return whether anything changed."""
        # Another version means other bytes. With another stamp alone they may be the same, and readers go on.
        if now is None or any(old.version != new.version for old, new in zip(before, now, strict=True)):
            return self.retire(lease, is_replaced=now is not None)
        if all(old.stamp == new.stamp for old, new in zip(before, now, strict=True)) or not lease.update(before, now):
            return False
        self.note(lease.at)
        self._on_update(lease)
        self._on_change()
        return True


def _unchanged(leases: Sequence[ContainerLease]) -> set[ContainerLease]:
    """Return leases on single files that certainly have not changed, after one glance at each of their folders.

    Asking for their entries, as for those that are left, takes five times as long.
    """
    by_folder: defaultdict[Location, list[ContainerLease]] = defaultdict(list)
    for lease in leases:
        store, path = lease.location
        if path and not store.is_remote and len(lease.entries) == 1:
            by_folder[Location(store, path[:-1])].append(lease)
    found: set[ContainerLease] = set()
    for (store, folder), there in by_folder.items():
        try:
            glances = store.glances(folder, [lease.location.path[-1] for lease in there])
        except GlassfsError:
            continue
        found.update(
            lease for lease, glance in zip(there, glances, strict=True)
            if glance is not None and glance[0] == lease.entries[0].stamp
        )
    return found
