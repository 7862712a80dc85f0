"""The catalogue: rows of tables found in containers, kept on disk in the user's cache for the next process.

``Findings`` in it are what formats found out about containers, for later mounts, commands and workers. A format may
have to read much of a container to find its contents, as in a section without a table of offsets. It keeps what it
found under a name, and asks for it before it searches again. The findings of one container are one entry of the
catalogue, under a digest of its stamp. Any value may be lost, and formats check what they get.

Everything in the catalogue can be found again, so nothing here raises. A thread of its own uses the file, as the disk
may hang: callers wait up to ``settings.catalogue_wait`` seconds, and after one wait failed no more until the disk has
answered. Any thread, and any process.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import xxhash

from glassfs.errors import Refused, Unavailable
from glassfs.forks import PerProcess
from glassfs.lru import LRU
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
MOST_VALUE = 1 << 20
"""Bytes of one value; a larger one is not kept."""
MOST_OF_CONTAINER = 4 << 20
"""Bytes that are kept of one container."""
KNOWN_BYTES = 4 << 20
"""Memory for what was found or kept last."""
SETTLED_NANOSECONDS = 2 * 10**9
ENTRY_BYTES = 512
"""Memory of what is known about a container, beside its values."""
_ITEM = struct.Struct("<II")

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


@dataclass(slots=True)
class Kept:
    """What is kept of one container: values by name, which are only added to, and their ``size`` in memory."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    size: int = ENTRY_BYTES

    def add(self, name: bytes, value: bytes) -> None:
        self.values[name] = value
        self.size += _size(name, value)


class Findings:
    """What is kept of the containers of one tree. ``catalogue`` returns the catalogue, or None if there is none.

    Findings of another ``version`` of glassfs are not used.
    """

    def __init__(self, catalogue: Callable[[], Catalogue | None], version: str) -> None:
        self._catalogue = catalogue
        self._version = version
        self._known: LRU[str, Kept] = LRU(KNOWN_BYTES)
        """By stamp, as computing the key of the catalogue takes longer than everything else here."""
        self._changed: dict[str, Kept] = {}
        self._due = 0.0
        """When what changed is stored."""
        self._lock = threading.Lock()

    def find(self, stamp: str, name: bytes) -> bytes | None:
        """Return what is kept under a name of the container with that stamp."""
        if self._changed and time.monotonic() >= self._due:
            self.flush()
        return self._of(stamp).values.get(name)

    def keep(self, stamp: str, mtime_ns: int, name: bytes, value: bytes) -> None:
        """Keep a value, unless the container was modified a moment ago: it may change under the same stamp."""
        if len(value) > MOST_VALUE or abs(time.time_ns() - mtime_ns) < SETTLED_NANOSECONDS:
            return
        kept = self._of(stamp)
        now = time.monotonic()
        with self._lock:
            if name in kept.values or kept.size + _size(name, value) > MOST_OF_CONTAINER:
                return
            kept.add(name, value)
            if not self._changed:
                self._due = now + settings.findings_flush
            self._changed[stamp] = kept
            # Many containers are stored together, as each change of the file takes a transaction.
            is_due = len(self._changed) >= 128 or now >= self._due
        self._known.put(stamp, kept, kept.size)
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Store what was kept since the previous call, soon."""
        with self._lock:
            changed, self._changed = self._changed, {}
        catalogue = self._catalogue() if changed else None
        if catalogue is not None:
            values = {_key(stamp, self._version): _packed(kept) for stamp, kept in changed.items()}
            catalogue.put(values, _merged)  # workers of a library find different parts of one container

    def _of(self, stamp: str) -> Kept:
        """Return all that is kept of a container."""
        kept = self._known.get(stamp)
        if kept is None:
            kept = self._changed.get(stamp)
        if kept is not None:
            return kept
        catalogue = self._catalogue()
        stored = None if catalogue is None else catalogue.find([_key(stamp, self._version)])[0]
        kept = _unpacked(stored or b"")
        self._known.put(stamp, kept, kept.size)
        return kept


def _key(stamp: str, version: str) -> Key:
    return xxhash.xxh128_digest(f"findings\0003\0{version}\0{sys.byteorder}\0{stamp}".encode())


def _size(name: bytes, value: bytes) -> int:
    return _ITEM.size + len(name) + len(value)


def _packed(kept: Kept) -> bytes:
    """Return names and values, each after their lengths. The catalogue adds a checksum."""
    values = list(kept.values.items())  # in one step, as other threads may add to them
    return b"".join(_ITEM.pack(len(name), len(value)) + name + value for name, value in values)


def _merged(stored: bytes, packed: bytes) -> bytes:
    """Return what is stored with what is new, unless it is too much."""
    found = _unpacked(packed)
    for name, value in _unpacked(stored).values.items():
        if name not in found.values and found.size + _size(name, value) <= MOST_OF_CONTAINER:
            found.add(name, value)
    return _packed(found)


def _unpacked(packed: bytes) -> Kept:
    kept = Kept()
    at = 0
    while at < len(packed):
        name, value = _ITEM.unpack_from(packed, at)
        at += _ITEM.size + name
        kept.add(packed[at - name : at], packed[at : at + value])
        at += value
    return kept
