"""Find entries by patterns. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from glassfs.errors import Changed, Damaged, NotADirectory, NotAllowed, NotFound, Refused, TooLarge
from glassfs.library.finding import below

_WILD = frozenset("*?[")
_BROKEN = (Damaged, Refused, Changed, TooLarge, NotAllowed, NotFound, NotADirectory)
"""Errors of a directory that do not concern other directories."""


class Globbed(Protocol):
    """What is searched: a directory or a file."""

    @property
    def path(self) -> str: ...

    def is_dir(self) -> bool: ...

    def keys(self) -> KeysView[str]: ...

    def get(self: Entry, path: str) -> Entry | None: ...


Entry = TypeVar("Entry", bound=Globbed)


def matching(entry: Entry, pattern: Sequence[str], is_lenient: bool = False) -> Iterator[Entry]:
    """Yield the entries that match. If ``is_lenient``, directories that cannot be listed are skipped."""
    if not pattern:
        yield entry
        return
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        yield from _below(entry, rest or ["*"], is_lenient)
    elif not _WILD & set(first):
        found = _inner(entry, first, is_lenient)
        if found is not None and (not rest or found.is_dir()):
            yield from matching(found, rest, is_lenient)
    else:
        is_lenient = is_lenient or "**" in rest
        for name in _names(entry, is_lenient):
            if fnmatchcase(name, first):
                found = _inner(entry, name, is_lenient)
                if found is not None and (not rest or found.is_dir()):
                    yield from matching(found, rest, is_lenient)


def _below(entry: Entry, rest: Sequence[str], is_lenient: bool) -> Iterator[Entry]:
    """Yield the matches of ``rest`` in a directory, which must be listable unless ``is_lenient``, and all below it."""
    _names(entry, is_lenient)
    waiting = [entry]
    while waiting:
        directory = waiting.pop()
        yield from matching(directory, rest, True)
        inner = [
            found for name in _names(directory, True)
            if (found := _inner(directory, name, True)) is not None and found.is_dir()
            and found.path == below(directory.path, name)[1:]  # not through a link, which may lead in a circle
        ]
        waiting += reversed(inner)


def _names(directory: Globbed, is_lenient: bool) -> list[str]:
    try:
        return list(directory.keys())
    except _BROKEN as error:
        # What was only presumed to be a directory has no names, and that is no error.
        if not (is_lenient or isinstance(error, NotADirectory)):
            raise
        return []


def _inner(directory: Entry, name: str, is_lenient: bool) -> Entry | None:
    try:
        return directory.get(name)
    except _BROKEN:
        if not is_lenient:
            raise
        return None
