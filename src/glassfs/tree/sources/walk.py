"""Walks through folders of stores: one generator for all, and the files of a whole tree with who may read them.

Links are not followed and mounts of glassfs not entered, so that walks end. Any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from glassfs.errors import GlassfsError, Unavailable
from glassfs.source import Entry, Kind, Version
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.folder import shown_entries
from glassfs.tree.sources.timed_calls import TimedCalls

MOST_ENTRIES = 100_000
"""Files and folders in one snapshot."""
DEEPEST = 64
ATTEMPTS = 4
"""Attempts to list a folder that changes meanwhile."""
WALK_SECONDS = 60.0
"""Time after which the remaining folders are left out."""
_SEARCH, _READ = 0o555, 0o444
"""Permissions for owner and group too: what only others may read is denied to those."""

Listed = Iterable[tuple[str, str, Entry]]
"""The name to show, the name in the store, and the entry of each file in a folder."""


class Found(NamedTuple):
    """A file or folder, with its path in the tree and the folder it was found in.

    ``error`` says why a folder cannot be listed.
    """

    path: str
    location: Location
    entry: Entry
    parent: Found | None = None
    error: GlassfsError | None = None


def walk(
    start: Found, list_folder: Callable[[Found], Listed], is_entered: Callable[[Found], bool] = lambda folder: True,
) -> Iterator[Found]:
    """Yield everything below a folder, each folder followed by what is in it, in the order of ``list_folder``.

    A folder is listed when the walk gets there. If ``list_folder`` raises GlassfsError, it is yielded with the error.
    """
    waiting = [iter([start])]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        if found is not start:
            yield found
        if found.entry.kind is Kind.FOLDER and is_entered(found):
            try:
                waiting.append(_inside(found, list_folder(found)))
            except GlassfsError as error:
                yield found._replace(error=error)


def list_plainly(folder: Found) -> Listed:
    """List a folder under the names in its store, sorted."""
    listed = folder.location.store.list(folder.location.path)
    return [(name, name, entry) for name, entry in sorted(listed, key=lambda one: one[0])]


def _inside(folder: Found, listed: Listed) -> Iterator[Found]:
    for name, original, entry in listed:
        path = f"{folder.path}/{name}" if folder.path else name
        yield Found(path, folder.location.below(original), entry, folder)


class Start(NamedTuple):
    """Where a snapshot begins: a location and its path in the tree, "" for the root."""

    path: str
    location: Location
    is_mount_root: bool = False


class File(NamedTuple):
    """A file of a snapshot. ``is_public`` tells whether every user can reach and read it."""

    path: str
    location: Location
    version: Version
    stamp: str
    volume: str
    mtime_ns: int
    is_public: bool


class Fault(NamedTuple):
    """What is left out of a snapshot, and why; ``is_public`` as of a file."""

    path: str
    error: GlassfsError
    is_public: bool = True


class FileSnapshot:
    """The ``files`` below some starts, sorted by path, and ``faults`` for what is left out.

    Left out are folders that cannot be listed, that hang, or are too deep or too many, and in remote stores files whose
    names are not those of containers. If ``is_strict``, ``is_public`` is certain even if another process exchanges
    folders meanwhile.
    """

    def __init__(
        self, starts: Iterable[Start], calls: TimedCalls, is_strict: bool = False, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._is_strict = is_strict
        self._clock = clock
        self._until = clock() + WALK_SECONDS
        self._is_over = False
        self.files: list[File] = []
        self.faults: list[Fault] = []
        self.mtime_ns = 0
        self.is_public = True
        """Whether all files and folders are public."""
        self._count = 0
        self._public: dict[str, bool] = {}
        """Which folders are public, by path."""
        for start in starts:
            if not self._take_below(start):
                break
        self.files.sort(key=lambda file: file.path.encode("utf-8", "surrogateescape"))

    def _take_below(self, start: Start) -> bool:
        """Take a start and everything below it; return whether there is time and space for more."""
        location = start.location
        try:
            entry = self._calls.call(location, "", lambda: location.store.entry(location.path))
        except GlassfsError as error:
            self.faults.append(Fault(start.path, error))
            return True
        root = Found(start.path, location, entry)
        if not self._take(root):
            return False
        for found in walk(root, lambda folder: self._listed(folder, start), self._is_shallow):
            if found.error is not None:
                fault = Fault(found.path, found.error, self._public[found.path])
                if self._is_over:
                    self.faults.insert(0, fault)
                    return False
                self.faults.append(fault)
            elif not self._take(found):
                return False
        return True

    def _take(self, found: Found) -> bool:
        path, location, entry, parent, _ = found
        if entry.kind not in (Kind.FILE, Kind.FOLDER):
            return True
        is_public = parent is None or self._public[parent.path]
        if self._count == MOST_ENTRIES:
            reason = f"it and others are left out: there are more than {MOST_ENTRIES:,} files and folders"
            self.faults.append(Fault(path, GlassfsError(reason), is_public))
            return False
        self._count += 1
        self.mtime_ns = max(self.mtime_ns, entry.mtime_ns)
        needed = _SEARCH if entry.kind is Kind.FOLDER else _READ
        is_public = is_public and entry.permissions & needed == needed
        self.is_public = self.is_public and is_public
        if entry.kind is Kind.FOLDER:
            self._public[path] = is_public
        elif parent is None or location.may_be_container:
            facts = entry.version, entry.stamp, entry.volume, entry.mtime_ns
            self.files.append(File(path, location, *facts, is_public))
        return True

    def _is_shallow(self, folder: Found) -> bool:
        is_shallow = len(_way(folder)) <= DEEPEST
        if not is_shallow:
            error = GlassfsError(f"is more than {DEEPEST} folders deep")
            self.faults.append(Fault(folder.path, error, self._public[folder.path]))
        return is_shallow

    def _listed(self, folder: Found, start: Start) -> Listed:
        self._is_over = self._clock() > self._until
        if self._is_over:
            raise Unavailable(f"it and others are left out: listing folders took longer than {WALK_SECONDS:g} seconds")
        is_mount_root = start.is_mount_root and folder.parent is None

        def list_now() -> tuple[bool, Listed]:
            if self._is_strict and self._public[folder.path]:
                return _listed_surely(folder, is_mount_root)
            return True, list(shown_entries(folder.location, is_mount_root))

        is_sure, listed = self._calls.call(folder.location, folder.entry.volume, list_now)
        self._public[folder.path] = self._public[folder.path] and is_sure
        return listed


def _listed_surely(folder: Found, is_mount_root: bool) -> tuple[bool, Listed]:
    """List a folder, and tell whether every user finds the same there.

    A folder on the way to it may be exchanged for another one while it is listed: compare them before and after.
    """
    way = [found.location for found in _way(folder)]

    def entries() -> list[Entry]:
        return [location.store.entry(location.path) for location in way]

    before = entries()
    for _ in range(ATTEMPTS):
        listed = list(shown_entries(folder.location, is_mount_root))
        now = entries()
        if [entry.stamp for entry in before] == [entry.stamp for entry in now]:
            return list(map(_access, now)) == [_access(found.entry) for found in _way(folder)], listed
        before = now
    return False, listed


def _way(folder: Found) -> list[Found]:
    """Return the folders on the way to one, and itself."""
    way = [folder]
    while way[-1].parent is not None:
        way.append(way[-1].parent)
    return way[::-1]


def _access(entry: Entry) -> tuple[str, int]:
    return entry.file_id, entry.permissions
