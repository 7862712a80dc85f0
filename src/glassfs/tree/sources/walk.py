"""Walks through folders of stores. Links to folders are not followed, and mounts of glassfs not entered. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from glassfs.errors import GlassfsError
from glassfs.source import Entry, Kind
from glassfs.tree.containers.lease import Location
from glassfs.tree.draft import DEEPEST as DEEPEST_DIRECTORY

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

    A folder is listed when the walk gets there. If ``list_folder`` raises GlassfsError, it is yielded as DeadEnd, and
    so are folders that have more than ``deepest`` folders on the way to them: servers may have them without end.
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
