"""All files below some folders at one moment, with their access rights.

Links to folders are not followed, mounts of glassfs not entered, and the depth is limited, so that walks end.
Any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import GlassfsError, Unavailable
from glassfs.names import raw
from glassfs.source import Entry, Kind, Version
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.folder import shown_entries
from glassfs.tree.sources.sources import Start
from glassfs.tree.sources.walk import DEEPEST, Folder, Found, Listed, walk

MOST_ENTRIES = 100_000
"""Files and folders in one snapshot."""
MOST_CHARACTERS = 32 << 20
"""Characters of all paths in one snapshot: names of 255 characters in 64 folders would take gigabytes."""
ATTEMPTS = 4
"""Attempts to list a folder that changes meanwhile."""
WALK_SECONDS = 60.0
"""Time after which the remaining folders are left out."""
CHECK_SECONDS, CHECK_SHARE = 0.4, 4
"""Rights are checked again after this time, or that many times as long as a check takes if that is more."""
PUBLIC_FOLDER, PUBLIC_FILE = 0o555, 0o444
"""Permissions of what every user can reach: for owner and group too: what only others may read is denied to those."""


class File(NamedTuple):
    """A file of a snapshot, with ``above`` folders on the way to it, from the one where the snapshot begins.

    ``is_public`` says whether every user can reach and read it.
    """

    path: str
    location: Location
    version: Version
    stamp: str
    volume: str
    mtime_ns: int
    uid: int
    has_other_names: bool
    above: int
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
        self._count = self._characters = 0
        self._public: dict[str, bool] = {}
        """Which folders are public, by path."""
        for start in starts:
            if not self._take_below(start):
                break
        self.files.sort(key=lambda file: raw(file.path))

    def _take_below(self, start: Start) -> bool:
        """Take a start and everything below it; return whether there is time and space for more."""
        path, location, _ = start
        try:
            entry = self._calls.call(location, "", lambda: location.store.entry(location.path))
        except GlassfsError as error:
            self.faults.append(Fault(path, error))
            return True
        if not self._take(path, location, entry, None):
            return False
        if entry.kind is not Kind.FOLDER:
            return True
        for found in walk(Folder(path, location, (entry,)), partial(self._listed, start), DEEPEST):
            if isinstance(found, Found):
                if not self._take(found.path, found.location, found.entry, found.folder):
                    return False
            else:
                fault = Fault(found.folder.path, found.error, self._public[found.folder.path])
                if self._is_over:
                    self.faults.insert(0, fault)
                    return False
                self.faults.append(fault)
        return True

    def _take(self, path: str, location: Location, entry: Entry, folder: Folder | None) -> bool:
        if entry.kind not in (Kind.FILE, Kind.FOLDER):
            return True
        is_public = folder is None or self._public[folder.path]
        self._characters += len(path)
        if self._count == MOST_ENTRIES or self._characters > MOST_CHARACTERS:
            limit = f"{MOST_ENTRIES:,} files and folders"
            if self._count < MOST_ENTRIES:
                limit = f"{MOST_CHARACTERS:,} characters in their paths"
            reason = f"it and others are left out: there are more than {limit}"
            self.faults.append(Fault(path, GlassfsError(reason), is_public))
            return False
        self._count += 1
        self.mtime_ns = max(self.mtime_ns, entry.mtime_ns)
        needed = PUBLIC_FOLDER if entry.kind is Kind.FOLDER else PUBLIC_FILE
        is_public = is_public and entry.permissions & needed == needed
        self.is_public = self.is_public and is_public
        if entry.kind is Kind.FOLDER:
            self._public[path] = is_public
        elif folder is None or location.may_be_container:
            facts = entry.version, entry.stamp, entry.volume, entry.mtime_ns, entry.uid, entry.has_other_names
            self.files.append(File(path, location, *facts, 0 if folder is None else len(folder.way), is_public))
        return True

    def _listed(self, start: Start, folder: Folder) -> Listed:
        self._is_over = self._clock() > self._until
        if self._is_over:
            raise Unavailable(f"it and others are left out: listing folders took longer than {WALK_SECONDS:g} seconds")
        is_mount_root = start.is_mount_root and len(folder.way) == 1

        def list_now() -> tuple[bool, Listed]:
            if self._is_strict and self._public[folder.path]:
                return _listed_surely(folder, is_mount_root)
            return True, list(shown_entries(folder.location, is_mount_root))

        is_sure, listed = self._calls.call(folder.location, folder.way[-1].volume, list_now)
        self._public[folder.path] = self._public[folder.path] and is_sure
        return listed


def _listed_surely(folder: Folder, is_mount_root: bool) -> tuple[bool, Listed]:
    """List a folder, and return whether every user sees the same there.

    A folder on the way to it may be exchanged for another one while it is listed: compare them before and after.
    """
    store, path = folder.location

    def entries() -> list[Entry]:
        return [store.entry(path[: len(path) - back]) for back in reversed(range(len(folder.way)))]

    before = entries()
    for _ in range(ATTEMPTS):
        listed = list(shown_entries(folder.location, is_mount_root))
        now = entries()
        if [entry.stamp for entry in before] == [entry.stamp for entry in now]:
            return list(map(_access, now)) == list(map(_access, folder.way)), listed
        before = now
    return False, listed


def _access(entry: Entry) -> tuple[str, int]:
    return entry.file_id, entry.permissions
