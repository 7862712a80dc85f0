"""The catalogue: rows of tables found in containers, kept on disk in the user's cache for the next process.

Everything in it can be found again, so nothing here raises. A thread of its own uses the file, as the disk may hang:
callers wait up to ``settings.catalogue_wait`` seconds, and after one wait failed no more until the disk has answered.
Any thread, and any process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from glassfs.errors import Refused, Unavailable
from glassfs.forks import PerProcess
from glassfs.persistent.private import own_home
from glassfs.settings import settings
from glassfs.threads import DaemonPool

if TYPE_CHECKING:
    from glassfs.persistent.cache import PersistentCache

SWITCH = "GLASSFS_CATALOGUE"
"""The environment variable that switches the catalogue off with ``no``."""
FOLDER, FILE = "glassfs", "catalogue.sqlite"
BUDGET = 256 << 20
"""Bytes that the file may have."""
MOST_FOUND = 8 << 20
"""Bytes after which ``find`` returns no more at a time."""

Key: TypeAlias = bytes
Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Catalogue:
    """The catalogue in the folder that ``find_folder`` returns, on a thread of its own.

    The folder and its parent are made if missing. Without a folder the catalogue is empty.
    """

    def __init__(self, find_folder: Callable[[], str | None]) -> None:
        self._find_folder = find_folder
        self._pool = DaemonPool("catalogue", most=1)
        self._cache: PersistentCache | None = None
        self._pause_until = 0.0
        self._state = PerProcess(_State)

    def find(self, keys: Sequence[Key]) -> Sequence[bytes | None]:
        """Return what is stored under each key, None for nothing; if it is much, only that of the first keys."""
        # The thread searches behind what it has to write, so this process finds what it stored.
        future = self._submit(lambda cache: cache.find(keys, MOST_FOUND))
        try:
            found = None if future is None else future.result(settings.catalogue_wait)
        except FutureTimeout:
            self._state.get().late = future
            found = None
        return found or [None] * len(keys)

    def put(self, values: Mapping[Key, bytes], merge: Callable[[bytes, bytes], bytes] | None = None) -> None:
        """Store these soon, or never, in place of what is stored, or what ``merge`` makes of that and the new value."""
        state = self._state.get()
        size = sum(len(value) + 512 for value in values.values())  # one takes some 512 bytes beside its own
        if not state.add(size):
            return

        def store(cache: PersistentCache) -> None:
            stored = cache.find([*values], MOST_FOUND) if merge else ()
            merged = {key: merge(old, values[key]) for key, old in zip(values, stored, strict=False) if merge and old}
            cache.store({**values, **merged})

        future = self._submit(store)
        if future is None:
            state.remove(size)
        else:
            future.add_done_callback(lambda done: state.remove(size))

    def close(self) -> None:
        """Wait a moment for what is to be written, and close the file until the next call."""
        if self._state.made is not None:
            future = self._submit(lambda cache: self._close())
            with suppress(FutureTimeout):
                if future is not None:
                    future.result(settings.catalogue_wait)

    def _submit(self, do: Callable[[PersistentCache], Result]) -> Future[Result | None] | None:
        """Have the thread do this; None if the disk or the system does not let it."""
        # One search that hangs is enough: the next ones do without the catalogue until that one has ended.
        late = self._state.get().late
        if late is not None and not late.done():
            return None

        def task() -> Result | None:
            cache = self._opened()
            return None if cache is None else do(cache)

        try:
            return self._pool.submit(task)
        except Unavailable:
            return None

    def _opened(self) -> PersistentCache | None:
        """Return the cache; None if its folder cannot be trusted or made. Called by the thread."""
        if self._cache is None and time.monotonic() >= self._pause_until:
            try:
                folder = self._find_folder()
                if folder is not None:
                    from glassfs.persistent.cache import PersistentCache

                    self._cache = PersistentCache(folder, BUDGET, FILE, logging.DEBUG, made=2)
            except (Refused, ImportError) as error:
                log.debug("no catalogue: %s", error)
            if self._cache is None:
                self._pause_until = time.monotonic() + settings.catalogue_wait
        return self._cache

    def _close(self) -> None:
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()


class _State:
    """The tasks of one process: what waits to be written, and the search that timed out last."""

    MOST_BYTES = 32 << 20
    """Bytes that wait to be written; further ones are dropped."""

    def __init__(self) -> None:
        self.late: Future[Any] | None = None
        self._lock = threading.Lock()
        self._bytes = 0

    def add(self, size: int) -> bool:
        """Count a task that holds so many bytes; return False if it is too much. One alone never is."""
        with self._lock:
            if self._bytes and self._bytes + size > self.MOST_BYTES:
                return False
            self._bytes += size
            return True

    def remove(self, size: int) -> None:
        with self._lock:
            self._bytes -= size


def user_folder() -> str | None:
    """Return the folder of the user's catalogue; None if it is switched off or there is no home."""
    if os.environ.get(SWITCH, "").lower() in ("no", "0", "off"):
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(own_home(), ".cache")
    return os.path.join(base, FOLDER) if os.path.isabs(base) else None
