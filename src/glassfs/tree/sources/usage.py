"""How many bytes the sources of a tree have, for ``df``: summed up beside those who ask. Any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from glassfs.errors import GlassfsError
from glassfs.source import Entry, Kind
from glassfs.tree.containers.lease import Location

log = logging.getLogger(__name__)

PATIENCE = 0.1
"""Seconds that the first who asks waits for the first sum."""
LEAST_PAUSE = 10.0
PAUSE = 20
"""A sum is good for so many times as long as it took."""


class Usage:
    """The sizes of all files at and below ``places``. Whoever asks gets the last sum, or what is known of the first.

    In a distant store, where nobody can tell how many folders there are and each costs a request, only those count that
    are in the folder itself.

    ``made_of`` tells all files that a container which stands for itself among the places is made of, its own first.
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
                threading.Thread(target=self._run, name="glassfs-usage", daemon=True).start()
            except RuntimeError:  # no thread can be started: the next one who asks may have more luck
                self._is_running = False
        self._is_known.wait(PATIENCE)
        return self._sum

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            total = 0
            waiting = list(self._locations)
            while waiting:
                location = waiting.pop()
                try:
                    entry = location.store.entry(location.path)
                    if entry.kind is Kind.FILE:
                        total += entry.size
                        total += sum(other.size for other in self._made_of(location, entry)[1:])
                    elif entry.kind is Kind.FOLDER:
                        for name, inner in location.store.list(location.path):
                            if inner.kind is Kind.FILE:
                                total += inner.size
                            elif inner.kind is Kind.FOLDER and not location.store.is_remote:
                                waiting.append(Location(location.store, (*location.path, name)))
                except GlassfsError as error:
                    log.debug("left out of the sizes: %s", error)
                if not self._is_known.is_set():
                    self._sum = total
            self._sum = total
        finally:
            self._is_known.set()
            self._next = time.monotonic() + max(LEAST_PAUSE, PAUSE * (time.monotonic() - begun))
            self._is_running = False
