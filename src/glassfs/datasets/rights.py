"""Find out which of the containers that a table shows are no longer readable for every user.

The attributes of their files, and of the folders on the way to them, are compared with those at the last check. A
folder that is watched is compared only after something in it has changed. Any thread; the checks of one volume, also
those whose callers no longer wait, take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from glassfs import work
from glassfs.datasets.files import PUBLIC_FILE, PUBLIC_FOLDER, SnapshotFile
from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import GlassfsError, NotADirectory, NotAllowed, NotFound
from glassfs.keyed_lock import KeyedLock
from glassfs.settings import settings
from glassfs.source import Path, Version
from glassfs.tree.containers.lease import Location
from glassfs.tree.containers.watcher import Watcher

CHECK_SHARE = 4
"""Rights stay valid for this many times as long as a check takes, so that checks take a fifth of the time at most."""
FurtherFiles = dict[int, Sequence[tuple[Path, str]]]
"""Paths and stamps of the further files of containers, by the numbers of their files."""
_CLOSED = (NotFound, NotADirectory, NotAllowed)


@dataclass(slots=True, eq=False)
class _PublicItem:
    """A file or folder that must be public, and the numbers of the containers that need it.

    If another file has replaced it, its rows stay if the owner is the same: no other user can have done that.
    """

    needed: int
    stamp: str
    version: Version | None = None
    uid: int = 0
    containers: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _PublicFolder:
    """Items in a folder by name; ``at`` is its path in the tree, or None if watching it would not help."""

    location: Location
    volume: str
    at: str | None
    items: dict[str, _PublicItem] = field(default_factory=dict)
    change: int | None = None
    """The last change in it before it was compared; None if it was not watched then."""


class Rights:
    """The rights to some files, which were public at the time ``checked`` and are until proven otherwise."""

    def __init__(
        self, watcher: Watcher, calls: TimedCalls, files: Mapping[int, SnapshotFile], parts: FurtherFiles,
        checked: float, clock: Callable[[], float],
    ) -> None:
        self._watcher = watcher
        self._calls = calls
        self._clock = clock
        self._lock = threading.Lock()
        self._valid_until = checked + settings.rights_valid
        self._checking = KeyedLock()
        """By volume."""
        self._lost: set[int] = set()
        self._folders: dict[tuple[Location, bool], _PublicFolder] = {}
        """By location, and whether their items can be watched."""
        for number, file in files.items():
            if not file.location.store.is_remote:  # the objects of one server always have the same rights
                self._add(number, file, parts.get(number, ()))

    def lost(self) -> set[int]:
        """Return the numbers of the files that not every user could reach and read at this check or an earlier one.

        Rights that were checked a moment ago are not checked again. Files on a disk that does not answer keep their
        rights until it does.
        """
        with work.holding(self._lock):
            begun = self._clock()
            if begun >= self._valid_until:
                self._check_all()
                ended = self._clock()
                self._valid_until = max(begun + settings.rights_valid, ended + CHECK_SHARE * (ended - begun))
            return set(self._lost)

    def _check_all(self) -> None:
        by_volume: dict[str, list[_PublicFolder]] = {}
        for folder in self._folders.values():
            by_volume.setdefault(folder.volume, []).append(folder)
        for volume, folders in by_volume.items():
            with suppress(GlassfsError):
                self._calls.call(("rights", volume), volume, partial(self._check_volume, volume, folders))
        self._calls.close()

    def _add(self, number: int, file: SnapshotFile, parts: Sequence[tuple[Path, str]]) -> None:
        store, path = file.location
        shown = file.path.split("/")
        top = len(path) - file.above
        # Every folder from the start of the walk on is needed: who closes one closes all below it. Folders above the
        # start are not the source's, and the kernel checks them for each reader.
        for length in range(top, len(path)):
            at = "/".join(["", *shown[: length - len(path) - 1]]) if length > top else None
            self._item(Location(store, path[:length]), file.volume, at, _PublicItem(PUBLIC_FOLDER, ""), number)
        # A file with several names may change under one that is in no watched folder.
        at = "/".join(["", *shown[:-1]]) if file.above and not file.has_other_names else None
        item = _PublicItem(PUBLIC_FILE, file.stamp, file.version, file.uid)
        self._item(file.location, file.volume, at, item, number)
        for part, stamp in parts:
            self._item(Location(store, part), file.volume, at, _PublicItem(PUBLIC_FILE, stamp), number)

    def _item(self, location: Location, volume: str, at: str | None, item: _PublicItem, number: int) -> None:
        store, path = location
        above = Location(store, path[:-1])
        folder = self._folders.get((above, at is not None))
        if folder is None:
            folder = self._folders[above, at is not None] = _PublicFolder(above, volume, at)
        folder.items.setdefault(path[-1] if path else "", item).containers.append(number)

    def _check_volume(self, volume: str, folders: Iterable[_PublicFolder]) -> None:
        def check_all() -> bool:
            for folder in folders:
                with suppress(GlassfsError):
                    self._check(folder)
            return True

        self._checking.once(volume, lambda: None, check_all)

    def _check(self, folder: _PublicFolder) -> None:
        location = folder.location
        # In this order: what changes after a step is found by a later one, or by the next check.
        change = self._watcher.last_change(location)
        is_watched = folder.at is not None and self._watcher.watch(location, folder.at)
        if is_watched and folder.change == change:
            return
        # Until the comparison is complete, the folder counts as changed: the next check begins again if this one is
        # stopped.
        folder.change = None
        names = list(folder.items)
        try:
            found = location.store.glances(location.path, names)
        except _CLOSED:
            found = [None] * len(names)
        for name, glance in zip(names, found, strict=True):
            item = folder.items[name]
            # A glance is a stat without the version. Whatever differs from the last one is looked at closely.
            is_same = glance is not None and glance[0] == item.stamp and glance[1] & item.needed == item.needed
            if not is_same and self._is_closed(location.below(name) if name else location, item):
                self._lost.update(item.containers)
                # What is lost stays lost for this snapshot, also if it is opened again: the next walk finds it.
                del folder.items[name]
        if is_watched:
            folder.change = change

    def _is_closed(self, location: Location, item: _PublicItem) -> bool:
        try:
            entry = location.store.entry(location.path)
        except _CLOSED:
            return True
        if entry.permissions & item.needed != item.needed:
            return True
        # Another user who replaced the file may have had no right to read the rows that the table still has.
        if item.version is not None and item.version != entry.version and item.uid != entry.uid:
            return True
        item.stamp = entry.stamp
        return False
