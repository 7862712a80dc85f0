"""Walks through folders of stores, and the total size of a tree's sources, for ``df``.

Links to folders are not followed, and mounts of glassfs not entered. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from glassfs import threads
from glassfs.errors import GlassfsError, Unavailable
from glassfs.settings import settings
from glassfs.source import Entry, Kind
from glassfs.tree.build import DEEPEST as DEEPEST_DIRECTORY
from glassfs.tree.containers.lease import ContainerLease, Location

DEEPEST = 64
"""Folders on the way to one, in a walk for a sum or a table over all files."""

Listed = Iterable[tuple[str, str, Entry]]
"""The name to show, the name in the store, and the entry of each file in a folder."""


class Branch(NamedTuple):
    """A folder to be listed: its path in the tree, and the entries of the folders on the way to it and its own."""

    path: str
    location: Location
    way: tuple[Entry, ...] = ()


class Visit(NamedTuple):
    """Something in a folder, with its path in the tree."""

    path: str
    location: Location
    entry: Entry
    folder: Branch


class DeadEnd(NamedTuple):
    """A folder that cannot be listed, and why."""

    folder: Branch
    error: GlassfsError


def walk(
    start: Branch, list_folder: Callable[[Branch], Listed], deepest: int = DEEPEST_DIRECTORY,
) -> Iterator[Visit | DeadEnd]:
    """Yield everything below a folder, each folder followed by what is in it, in the order of ``list_folder``.

    A folder for which ``list_folder`` raises GlassfsError is yielded as DeadEnd, and so are folders with more than
    ``deepest`` folders on the way to them: servers may have them without end.
    """
    waiting = [_inside(start, list_folder)]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        yield found
        if isinstance(found, Visit) and found.entry.kind is Kind.FOLDER:
            folder = Branch(found.path, found.location, (*found.folder.way, found.entry))
            # Depth first, with a listing for each folder on the way: memory is bounded by the widest folders of one
            # path.
            if len(folder.way) <= deepest:
                waiting.append(_inside(folder, list_folder))
            else:
                yield DeadEnd(folder, GlassfsError(f"is more than {deepest} folders deep"))


def list_plainly(folder: Branch) -> Listed:
    """List a folder under the names in its store, files before folders, each sorted."""
    listed = folder.location.store.list(folder.location.path)
    return [
        (name, name, entry) for name, entry in sorted(listed, key=lambda one: (one[1].kind is Kind.FOLDER, one[0]))
    ]


def _inside(folder: Branch, list_folder: Callable[[Branch], Listed]) -> Iterator[Visit | DeadEnd]:
    try:
        listed = list_folder(folder)
    except GlassfsError as error:
        yield DeadEnd(folder, error)
        return
    for name, original, entry in listed:
        path = f"{folder.path}/{name}" if folder.path else name
        yield Visit(path, folder.location.below(original), entry, folder)


class Usage:
    """Call it for the size in bytes of all files at and below ``locations``: the last sum, 0 before there is one.

    In a remote store folders further down are not counted, as each costs a request. ``find`` returns the lease on a
    container that is itself one of the locations, with the entries of all its files.
    """

    def __init__(
        self, locations: Iterable[Location],
        find: Callable[[Location], ContainerLease | None] = lambda location: None,
    ) -> None:
        self._locations = list(locations)
        self._find = find
        self._sum = 0
        self._is_known = threading.Event()
        self._next = 0.0
        """When to sum up again; never while a thread does."""
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            is_due = time.monotonic() >= self._next
            if is_due:
                self._next = float("inf")
        if is_due:
            try:
                threads.start("usage", self._run)
            except Unavailable:  # the next caller tries again
                self._next = 0.0
        self._is_known.wait(settings.usage_wait)
        return self._sum

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            self._sum = sum(size for location in self._locations for size in self._sizes(location))
        finally:
            self._is_known.set()
            now = time.monotonic()
            self._next = now + max(settings.usage_valid, settings.usage_valid_times * (now - begun))

    def _sizes(self, location: Location) -> Iterator[int]:
        """Yield the sizes of the files at and below a location."""
        try:
            entry = location.entry()
            if entry.kind is Kind.FILE:
                lease = self._find(location)
                yield entry.size if lease is None else sum(one.size for one in lease.entries)
        except GlassfsError:
            return
        if entry.kind is Kind.FOLDER:
            for found in walk(Branch("", location), list_plainly, 0 if location.store.is_remote else DEEPEST):
                if isinstance(found, Visit) and found.entry.kind is Kind.FILE:
                    yield found.entry.size
