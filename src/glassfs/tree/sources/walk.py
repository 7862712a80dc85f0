"""All files below what a person named, as they are now, for whoever wants to look into all of them. Any thread.

Links are not followed and mounts of glassfs not entered, so it ends. What is too deep or too much is left out, and so
is, where looking into files costs much, what is no container by its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from glassfs.errors import GlassfsError, Unavailable
from glassfs.names import raw
from glassfs.source import Entry, Kind, Version
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.folder import shown_entries
from glassfs.tree.sources.helper import Helper

MOST_ENTRIES = 100_000
"""Files and folders that are looked at in all."""
DEEPEST = 64
ATTEMPTS = 4
"""How many times a folder is listed that changes meanwhile."""
LONGEST = 60.0
"""Seconds after which the folders that are left are left out."""
_SEARCH, _READ = 0o555, 0o444
"""For the owner and the group too: what only others may read is denied to those."""


class Start(NamedTuple):
    """A file or folder under its path, "" where a walk begins at the root of a tree, or of a part of it."""

    path: str
    location: Location
    is_mount_root: bool = False


class File(NamedTuple):
    """A file under its path in the tree, and what its entry said.

    ``is_public`` tells whether everybody can come to it and read it.
    """

    path: str
    location: Location
    version: Version
    stamp: str
    volume: str
    mtime_ns: int
    is_public: bool


class Fault(NamedTuple):
    """What is left out, and why; ``is_public`` as of a file."""

    path: str
    error: GlassfsError
    is_public: bool = True


class Walk:
    """What is below some places, taken at once. ``faults`` are folders that are left out.

    The ``helper`` lists them, so that one that hangs is left out, too. If ``is_strict``, what is called public is so
    for certain, whoever may exchange folders meanwhile.
    """

    def __init__(
        self, starts: Iterable[Start], helper: Helper, is_strict: bool = False, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._helper = helper
        self._is_strict = is_strict
        self.files: list[File] = []
        self.faults: list[Fault] = []
        self.mtime_ns = 0
        self.is_public = True
        """Whether all of it is."""
        self._count = 0
        self._waiting: list[tuple[Start, bool, tuple[Entry, ...]]] = []
        for start in starts:
            try:
                entry = helper.call(start.location, "", partial(start.location.store.entry, start.location.path))
            except GlassfsError as error:
                self.faults.append(Fault(start.path, error))
            else:
                self._add(start, entry, True, ())
        until = clock() + LONGEST
        while self._waiting:
            folder, is_public, above = self._waiting.pop()
            if clock() > until:
                reason = f"it and others are left out: listing folders took longer than {LONGEST:g} seconds"
                self.faults.insert(0, Fault(folder.path, Unavailable(reason), is_public))
                break
            self._look_into(folder, is_public, above)
        self.files.sort(key=_in_order)

    def _look_into(self, folder: Start, is_public: bool, above: tuple[Entry, ...]) -> None:
        try:
            listed = self._listed_surely if is_public and self._is_strict else self._listed
            is_sure, found = self._helper.call(folder.location, above[-1].volume, partial(listed, folder, above))
        except GlassfsError as error:
            self.faults.append(Fault(folder.path, error, is_public))
            return
        is_public = is_public and is_sure
        for name, original, entry in found:
            location = Location(folder.location.store, (*folder.location.path, original))
            self._add(Start(f"{folder.path}/{name}" if folder.path else name, location), entry, is_public, above)

    def _add(self, at: Start, entry: Entry, is_public: bool, above: tuple[Entry, ...]) -> None:
        if entry.kind not in (Kind.FILE, Kind.FOLDER):
            return
        self._count += 1
        if self._count == MOST_ENTRIES + 1:
            reason = f"it and others are left out: there are more than {MOST_ENTRIES:,} files and folders"
            self.faults.append(Fault(at.path, GlassfsError(reason), is_public))
        if self._count > MOST_ENTRIES:
            return
        self.mtime_ns = max(self.mtime_ns, entry.mtime_ns)
        needed = _SEARCH if entry.kind is Kind.FOLDER else _READ
        is_public = is_public and entry.permissions & needed == needed
        self.is_public = self.is_public and is_public
        if entry.kind is Kind.FILE:
            if above and not at.location.may_be_container:
                return
            facts = entry.version, entry.stamp, entry.volume, entry.mtime_ns
            self.files.append(File(at.path, at.location, *facts, is_public))
        elif len(above) >= DEEPEST:
            self.faults.append(Fault(at.path, GlassfsError(f"is more than {DEEPEST} folders deep"), is_public))
        else:
            self._waiting.append((at, is_public, (*above, entry)))

    @staticmethod
    def _listed(folder: Start, above: tuple[Entry, ...]) -> tuple[bool, list[tuple[str, str, Entry]]]:
        """What is in a folder."""
        return True, list(shown_entries(folder.location, folder.is_mount_root))

    @staticmethod
    def _listed_surely(folder: Start, above: tuple[Entry, ...]) -> tuple[bool, list[tuple[str, str, Entry]]]:
        """What is in a folder, and whether that is what everybody finds there.

        ``above`` are the folders on the way to it and itself, as they were: one of them could be exchanged for another
        one while this is listed.
        """
        store, path = folder.location

        def way() -> list[Entry]:
            return [store.entry(path[: len(path) - back]) for back in reversed(range(len(above)))]

        before = way()
        for _ in range(ATTEMPTS):
            found = list(shown_entries(folder.location, folder.is_mount_root))
            now = way()
            if [entry.stamp for entry in before] == [entry.stamp for entry in now]:
                return list(map(_access, now)) == list(map(_access, above)), found
            before = now
        return False, found


def _access(entry: Entry) -> tuple[str, int]:
    return entry.file_id, entry.permissions


def _in_order(file: File) -> bytes:
    return raw(file.path)
