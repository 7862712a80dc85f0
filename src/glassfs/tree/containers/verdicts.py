"""What files were found to be, remembered for as long as all stays the same that it rests on. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from glassfs.errors import GlassfsError, Unavailable
from glassfs.source import Entry, Path, Store, Version
from glassfs.tree.containers.lease import ContainerLease, Location

REMEMBERED_VERDICTS = 100_000


class Verdict(NamedTuple):
    """What a file was found to be. ``entries`` are those of all files that it is made of, its own first.

    ``refusal`` says why it is not shown as a container ("": it does not look like one), and is None where it is; then
    there is a ``lease`` on it.
    """

    refusal: str | None
    entries: Sequence[Entry]
    lease: ContainerLease | None = None


class Finding(NamedTuple):
    """A verdict on one version of a file, and what else it rests on.

    ``others`` are the further files that a container is made of; ``asked`` are those that one that was refused asked
    for, and their stamps ("": not there, or not to be opened).
    """

    version: Version
    refusal: str | None
    format: str = ""
    others: Sequence[tuple[Path, Entry]] = ()
    asked: Sequence[tuple[Path, str]] = ()

    @property
    def weight(self) -> int:
        return 1 + len(self.others) + len(self.asked)

    def others_now(self, store: Store) -> Sequence[Entry] | None:
        """The further files of a container as they are now; None where something has changed that this rests on."""
        now = []
        for path, entry in self.others:
            try:
                current = store.entry(path)
            except Unavailable:
                raise
            except GlassfsError:
                return None
            if current.version != entry.version:
                return None
            now.append(current)
        return now if all(_stamp(store, path) == stamp for path, stamp in self.asked) else None


class Verdicts:
    """The last findings by the places of files, up to a number of files that they rest on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[Location, Finding] = OrderedDict()
        self._weight = 0

    def get(self, location: Location) -> Finding | None:
        with self._lock:
            return self._found.get(location)

    def put(self, location: Location, found: Finding) -> None:
        with self._lock:
            before = self._found.pop(location, None)
            self._found[location] = found
            self._weight += found.weight - (before.weight if before else 0)
            while self._weight > REMEMBERED_VERDICTS and len(self._found) > 1:
                self._weight -= self._found.popitem(last=False)[1].weight

    def drop(self, location: Location) -> None:
        with self._lock:
            found = self._found.pop(location, None)
            if found is not None:
                self._weight -= found.weight


def _stamp(store: Store, path: Path) -> str:
    """The stamp of a file that may not be there."""
    try:
        return store.entry(path).stamp
    except Unavailable:
        raise
    except GlassfsError:
        return ""
