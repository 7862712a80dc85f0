"""Find out to which joined tables files may contribute rows, without opening them as containers. Any thread.

The tree remembers the formats of files that were opened. For others the suffix decides. For a few local files whose
suffixes belong to no format, the first bytes are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from glassfs.content import EPISODES
from glassfs.datasets.files import File
from glassfs.datasets.timed_calls import TimedCalls
from glassfs.errors import GlassfsError
from glassfs.formats.registry import HEAD, Format, Head, joined_by, recognise
from glassfs.lru import LRU
from glassfs.names import raw
from glassfs.source import Version
from glassfs.tree.containers.containers import Containers
from glassfs.tree.containers.lease import Location

MOST_HEADS, HEADS_SECONDS = 256, 0.5
"""Files whose first bytes are read for a listing, and the time for that; of others nothing is expected."""


class Formats:
    """The formats of the files below a folder, as far as listing it needs them."""

    def __init__(self, containers: Containers, clock: Callable[[], float] = time.monotonic) -> None:
        self._containers = containers
        self._calls = TimedCalls(HEADS_SECONDS)
        self._clock = clock
        self._known: LRU[tuple[Location, Version], Sequence[str]] = LRU(4 * MOST_HEADS)

    def tables_of(self, files: Iterable[File]) -> set[str]:
        """Return the names of the joined tables to which these files should contribute rows."""
        found: set[str] = set()
        unknown: list[File] = []
        for file in files:
            tables = self._containers.tables_of(file.location, file.version)
            if tables is None:
                tables = joined_by(file.path)
            if tables is not None:
                found.update(tables)
            elif not file.location.store.is_remote:
                unknown.append(file)
        until = self._clock() + HEADS_SECONDS
        try:
            for file in unknown[:MOST_HEADS]:
                with suppress(GlassfsError):  # it cannot be read now, so it is in no table
                    found.update(self._told_by_head(file))
                if self._clock() > until:
                    break
        finally:
            self._calls.close()
        return found

    def _told_by_head(self, file: File) -> Sequence[str]:
        key = file.location, file.version
        known = self._known.get(key)
        if known is None:
            chosen = self._calls.call(file.location, file.volume, lambda: _format_of(file))
            known = chosen.joined if chosen is not None else ()
            self._known.put(key, known, 1)
        return known


def _format_of(file: File) -> Format | None:
    source = file.location.store.open(file.location.path)
    try:
        return recognise(Head.of(source, source.read(0, min(HEAD, source.size))))
    finally:
        source.close()


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of tables in the order in which they are shown."""
    return sorted(names, key=lambda name: (name != EPISODES, raw(name)))
