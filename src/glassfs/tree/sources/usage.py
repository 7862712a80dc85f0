"""The total size of a tree's sources, for ``df``: summed up in the background. Any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from glassfs import threads
from glassfs.errors import GlassfsError, Unavailable
from glassfs.source import Entry, Kind
from glassfs.tree.containers.lease import Location
from glassfs.tree.sources.walk import DEEPEST, Branch, Visit, list_plainly, walk

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.1
"""How long callers wait for the first sum."""
LEAST_PAUSE_SECONDS = 10.0
PAUSE = 20
"""A sum is valid for this many times as long as it took."""


class Usage:
    """Call it for the size in bytes of all files at and below ``locations``: the last sum, or the first one so far.

    In a remote store folders further down are not counted, as each costs a request. ``made_of`` returns the entries of
    all files of a container that is itself one of the locations, its own first.
    """

    def __init__(
        self, locations: Iterable[Location],
        made_of: Callable[[Location, Entry], Sequence[Entry]] = lambda location, entry: [entry],
    ) -> None:
        self._locations = list(locations)
        self._made_of = made_of
        self._sum = 0
        self._is_known = threading.Event()
        self._is_running = False
        self._next = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            is_due = not self._is_running and time.monotonic() >= self._next
            if is_due:
                self._is_running = True
        if is_due:
            try:
                threads.start("usage", self._run)
            except Unavailable:  # the next caller tries again
                self._is_running = False
        self._is_known.wait(WAIT_SECONDS)
        return self._sum

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            total = 0
            for location in self._locations:
                for size in self._sizes(location):
                    total += size
                    if not self._is_known.is_set():
                        self._sum = total
            self._sum = total
        finally:
            self._is_known.set()
            self._next = time.monotonic() + max(LEAST_PAUSE_SECONDS, PAUSE * (time.monotonic() - begun))
            self._is_running = False

    def _sizes(self, location: Location) -> Iterator[int]:
        """Yield the sizes of the files at and below a location."""
        try:
            entry = location.store.entry(location.path)
            if entry.kind is Kind.FILE:
                yield entry.size
                yield sum(other.size for other in self._made_of(location, entry)[1:])
        except GlassfsError as error:
            log.debug("left out of the sizes: %s", error)
            return
        if entry.kind is Kind.FOLDER:
            for found in walk(Branch("", location), list_plainly, 0 if location.store.is_remote else DEEPEST):
                if not isinstance(found, Visit):
                    log.debug("left out of the sizes: %s", found.error)
                elif found.entry.kind is Kind.FILE:
                    yield found.entry.size
