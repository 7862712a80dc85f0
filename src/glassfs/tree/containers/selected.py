"""A store of which a selection shows some containers, and of each some episodes. Any thread.

What is shown of a file is part of its version, so all that is known of a version ends when a selection shows something
else of the same bytes, as if the file had changed. Bytes are those of the store below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from glassfs.content.selected import Picks
from glassfs.content.table import Selection
from glassfs.errors import Changed, GlassfsError
from glassfs.source import Entry, Kind, Path, Source, Store, Version

_MARK = "\1"
"""Separates the version of a file from what is shown of it, which is 16 characters."""
_NOTHING = Picks({}, missing=[("", "episodes: are not selected anew yet, as the container has changed")])


class Shown(NamedTuple):
    """What is shown of a store: containers by their paths, and the folders around them.

    ``omitted`` is what is left out in a folder, names and reasons.
    """

    picks: Mapping[Path, Picks]
    folders: frozenset[Path]
    omitted: Mapping[Path, Sequence[tuple[str, str]]]


class SelectedSource(Source):
    """A file, of whose episodes only ``picks`` are shown."""

    def __init__(self, file: Source, picks: Picks) -> None:
        self.file, self.picks = file, picks
        self.name, self.entry, self.is_remote = file.name, _marked(file.entry, picks), file.is_remote

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.file.read_into(buffer, offset)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        return self.file.mapped(offset, size)

    def keep(self) -> None:
        self.file.keep()

    def park(self) -> None:
        self.file.park()

    def close(self) -> None:
        self.file.close()


class SelectedStore(Store):
    """What ``shown`` returns now, of ``inner``. Names of anything else are hidden; it can still be opened by its path,
    as a further file of a container. ``closing`` is called when the store is closed.
    """

    def __init__(
        self, inner: Store, shown: Callable[[], Shown], closing: Callable[[], None], selection: Selection | None,
    ) -> None:
        self.inner, self._state, self._closing, self.selection = inner, shown, closing, selection
        self.has_lasting_versions = inner.has_lasting_versions
        self.follows_links, self.is_remote = inner.follows_links, inner.is_remote

    def shown(self, path: Path) -> str:
        return self.inner.shown(path)

    def hides(self, path: Path) -> bool:
        return not any(path in known for known in self._state())

    def entry(self, path: Path) -> Entry:
        return self._narrowed(path, self.inner.entry(path))

    def is_unchanged(self, path: Path, entry: Entry) -> bool:
        # Asked for each sample of a program: making an entry takes as long as the look-up in the store below.
        try:
            picks = self._state().picks.get(path, _NOTHING)
            return entry.stamp == f"{self.inner.entry(path).stamp}{_MARK}{picks.digest}"
        except GlassfsError:
            return False

    def entries(self, folder: Path, names: Sequence[str]) -> list[Entry | None]:
        found = self.inner.entries(folder, names)
        return [entry and self._narrowed((*folder, name), entry) for name, entry in zip(names, found, strict=True)]

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        state = self._state()
        for name, entry in self.inner.list(path):
            below = (*path, name)
            if below in state.picks or below in state.folders:
                yield name, self._narrowed(below, entry)
        for name, reason in state.omitted.get(path, ()):
            yield name, Entry(Kind.OTHER, Version(""), "", "", 0, 0, 0, 0, 0, omitted=reason)

    def open(self, path: Path) -> Source:
        source = self.inner.open(path)
        return SelectedSource(source, self.picks(path, source.version))

    def source(self, path: Path, entry: Entry) -> Source:
        source = self.inner.source(path, unmarked(entry))
        found = SelectedSource(source, self.picks(path, source.version))
        if found.version != entry.version:
            raise Changed("is selected in another way", found.name)
        return found

    def finish(self) -> None:
        self.inner.finish()

    def close(self) -> None:
        self._closing()
        self.inner.close()

    def picks(self, path: Path, version: str) -> Picks:
        """Return what is shown of a version of a file: nothing if it is not the one that was evaluated."""
        found = self._state().picks.get(path, _NOTHING)
        return found if found.version == as_stored(version) else _NOTHING

    def _narrowed(self, path: Path, entry: Entry) -> Entry:
        return _marked(entry, self.picks(path, entry.version)) if entry.kind is Kind.FILE else entry


def _marked(entry: Entry, picks: Picks) -> Entry:
    mark = _MARK + picks.digest
    return entry._replace(version=Version(entry.version + mark), stamp=entry.stamp + mark)


def unmarked(entry: Entry) -> Entry:
    """Return the entry of a file as the store below has it."""
    version, stamp = as_stored(entry.version), as_stored(entry.stamp)
    return entry._replace(version=Version(version), stamp=stamp)


def as_stored(version: str) -> str:
    """Return a version or a stamp as the store below has it."""
    return version[:-17] if version[-17:-16] == _MARK else version  # names in versions may have any character
