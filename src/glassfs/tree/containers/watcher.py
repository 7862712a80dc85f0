"""What is known of files, as long as they are unchanged, and the tree paths of what changed. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from glassfs.errors import DeviceFailed, GlassfsError, NotADirectory, NotFound, Unavailable
from glassfs.lru import LRU
from glassfs.names import shown_name
from glassfs.source import Entry, Path
from glassfs.tree.containers.lease import ContainerLease, Location, Refusal
from glassfs.tree.lease import Lease

COMPARED = 256
"""Files of containers that are compared with their stores in one round; more are compared in turn."""
REMEMBERED_FILES = 20_000
"""Files that are remembered, or on which what is remembered of others rests: about 1 KiB each."""


class Watcher:
    """What is known of the file at each location, its current lease or why it is no container, and what changes.

    A number of files is remembered; a lease is found as long as anything refers to it. ``on_update`` is called with a
    lease after attributes of its files changed but not their bytes, ``on_retire`` after another version, or none, is at
    its location; ``on_change`` after either, and after any notification by a store. None is called under a lock.
    """

    def __init__(
        self, on_update: Callable[[ContainerLease], None], on_retire: Callable[[ContainerLease], None],
        on_change: Callable[[], None],
    ) -> None:
        self._on_update = on_update
        self._on_retire = on_retire
        self._on_change = on_change
        self._lock = threading.Lock()
        self._known: LRU[Location, ContainerLease | Refusal] = LRU(REMEMBERED_FILES)
        self._leases: WeakValueDictionary[Location, ContainerLease] = WeakValueDictionary()
        """The current ones, also those that are no longer among the remembered files."""
        self._queue: list[Location] = []
        """Locations still to be compared before the next pass over all of them begins."""
        self._changed: set[str] = set()
        self._notified: set[tuple[Location, str, str]] = set()
        """Notifications by stores: the folder, its path in the tree, and a name, or "" for everything in it."""

    def known(self, location: Location) -> ContainerLease | Refusal | None:
        """Return what is known of a file, which may have changed since."""
        return self._known.get(location) or self._leases.get(location)

    def find(self, location: Location) -> ContainerLease | None:
        return self._leases.get(location)

    def add(self, location: Location, found: ContainerLease | Refusal, weight: int) -> None:
        """Remember what was found about a file, which counts as ``weight`` files.

        A lease that was the current one is retired, as another version replaced it.
        """
        with self._lock:
            previous = self._leases.pop(location, None)
            self._known.put(location, found, weight)
            if isinstance(found, ContainerLease):
                self._leases[location] = found
            if previous is not None:
                previous.retire(is_replaced=True)
        if previous is not None:
            self._is_over(previous)

    def retire(self, lease: ContainerLease, is_replaced: bool) -> bool:
        """Retire a lease whose location has another version, or nothing. Open files of it stay readable."""
        with self._lock:
            if self.find(lease.location) is not lease:
                return False
            self._known.pop(lease.location)
            del self._leases[lease.location]
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
                entry = location.entry()
            except (NotFound, NotADirectory):
                entry = None
            except GlassfsError:
                return False
        before = lease.entries
        return self.compare(lease, before, None if entry is None else (entry, *before[1:]))

    def is_current(self, lease: Lease) -> bool:
        """Ask the store, and return whether what is leased, with all its files, is still there, as far as is known."""
        if isinstance(lease, ContainerLease) and not lease.is_retired:
            store, path = lease.location
            if not store.is_unchanged(path, lease.entries[0]):
                self.check(lease.location)
            before = lease.entries
            if lease.has_others and not lease.is_retired:
                with suppress(Unavailable, DeviceFailed):
                    self.compare(lease, before, lease.entries_now(before, before[0]))
        return not lease.is_retired

    def watch(self, folder: Location, at: str) -> bool:
        """Return whether ``changes`` will report changes in a folder. ``at`` is its path in the tree."""

        def notify(_: Path, name: str) -> None:
            with self._lock:
                is_first = not self._notified
                self._notified.add((folder, at, name))
            if is_first:
                self._on_change()

        return folder.store.watch(folder.path, notify)

    def refresh(self) -> None:
        """Compare the leased containers with their stores, or the next round of them. Waits for each store."""
        for lease in self._next_round():
            before, (store, path) = lease.entries, lease.location
            # Of a folder that is watched, each change is reported, but those by another name of the file.
            if not lease.has_others and not before[0].has_other_names and store.is_watched(path[:-1]):
                continue
            if lease.has_others or not store.is_unchanged(path, before[0]):
                with suppress(Unavailable, DeviceFailed):
                    self.compare(lease, before, lease.entries_now(before))

    def _leased(self, folder: Location | None = None) -> list[Location]:
        """Return the locations of all leases, or of those in one folder."""
        leased = list(self._leases)
        return leased if folder is None else [at for at in leased if (at.store, at.path[:-1]) == folder]

    def _next_round(self) -> list[ContainerLease]:
        """Return the leases to compare next: all, or the next ones that have ``COMPARED`` files."""
        leases, files = [], 0
        with self._lock:
            if not self._queue:
                self._queue = self._leased()
            while self._queue and files < COMPARED:
                lease = self.find(self._queue.pop())
                if lease is not None:
                    leases.append(lease)
                    files += len(lease.entries) + len(lease.absent)
        return leases

    def changes(self) -> list[str]:
        """Return the tree paths of what changed since the last call, of containers and of watched folders.

        Waits only for stores that reported a change.
        """
        with self._lock:
            notified, self._notified = self._notified, set()
        for folder, at, name in notified:
            # Without a name anything in the folder may have changed, and its watch may be over.
            for location in (folder.below(name),) if name else self._leased(folder):
                self.check(location)
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

