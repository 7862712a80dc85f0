"""Blocks of remote objects, kept on disk for the next process (``-o disk_cache=DIR,disk_cache_size=SIZE``).

What is asked for is known by the object's key (an opaque text without secrets), its validator (the ETag), the number
of the block and its size. A validator that is empty or weak (``W/…``) names no bytes: nothing is kept under it, neither
blocks nor facts.

Each block is a file that says whose it is, with a checksum; it is written under another name and renamed, without
waiting for the disk. One that is torn or was damaged is found by the checksum, one that somebody put there by its
owner, and removed. What there is, and what was used last, is told by an index (``disk_index``). Beside the files and
the index, folders take up to 1 MiB that is not counted.

Any thread, and several processes at a time may use one folder; the bound holds for all of them together, but for one
block for each process that is just writing. Everything is done in the thread that asks. Reading a block waits for
nobody; the rest may wait a quarter of a second for other threads, and as long for other processes. A process that was
forked off may go on with it.
Refused is raised when the cache is made (``DiskCache``), and nothing later: where the disk is full, fails, can only be
read or has gone, there is one line in the log, and blocks are fetched as if there were no cache.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from glassfs.errors import Refused
from glassfs.sizes import human_size
from glassfs.source import descriptors
from glassfs.source.remote.disk_files import Data, Files, header_of, name_of, owner_of, taken_by
from glassfs.source.remote.server import Facts

if TYPE_CHECKING:
    from glassfs.source.remote.disk_index import Index

LEAST = 512 << 10
"""The smallest budget: one block of those that are fetched."""
PAUSE = 10.0
"""Seconds for which nothing is written after that went wrong."""
PATIENCE = 0.25
"""Seconds that a thread waits for others; the index waits as long for other processes."""
MOST_THROWN = 3
"""Indexes that are thrown away before there is no use in it."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class DiskCache:
    """The cache in ``folder`` (made with 0700 if need be), of up to ``budget`` bytes.

    Raises Refused where the folder is somebody else's, open to others, a link or cannot be made, and where the budget
    is smaller than one block.
    """

    def __init__(self, folder: str, budget: int) -> None:
        if budget < LEAST:
            least = human_size(LEAST)
            raise Refused(f"a disk cache of {human_size(budget)} is smaller than one block of {least}", folder)
        self._folder = os.path.abspath(folder)
        self._budget = budget
        self._pause_until = 0.0
        self._is_failing = False
        self._has_told = False
        self._is_closed = False
        self._thrown = 0
        self._own = _Own()
        self._root: Files | None = None
        try:
            with suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            self._root = Files(self._folder)
            self._root.tag()
            self._root.sweep()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM):
                reason = error.strerror or str(error)
                raise Refused(f"cannot be a folder for a disk cache: {reason}", self._folder) from error
            self._fail(error)

    def get(self, object_key: str, validator: str, number: int, size: int) -> bytes | None:
        """Block ``number``, which is ``size`` bytes long; None where it is not there as it was put."""
        root = self._root
        if root is None or not _names_bytes(validator):
            return None
        owner = owner_of(object_key, validator)
        name = name_of(owner, number)
        try:
            found = root.read(name, owner, number, size)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fail(error)
            return None
        if found is None:
            self._with_index(lambda index: index.forget(name))
        return found

    def put(self, object_key: str, validator: str, number: int, data: Data) -> None:
        """Keeps a block, or does not; one of that length which is there stays as it is."""
        if not 0 < len(data) <= self._budget or not _names_bytes(validator):
            return
        owner = owner_of(object_key, validator)
        name = name_of(owner, number)
        with self._own_here().writing(name) as written:
            if written:
                self._put(name, header_of(owner, number, data), data, written)

    def facts(self, object_key: str) -> Facts | None:
        """What was noted of an object last: to be asked about (If-None-Match) before it is believed."""
        key = owner_of(object_key, "")
        return self._with_index(lambda index: index.facts(key))

    def note_facts(self, object_key: str, facts: Facts) -> None:
        """Notes what a server has said of an object."""
        if _names_bytes(facts.etag):
            key = owner_of(object_key, "")
            self._with_index(lambda index: index.note_facts(key, facts))

    def close(self) -> None:
        """Gives back what is held; afterwards the cache is empty to whoever asks. Twice does no harm."""
        self._is_closed = True
        self._root = None
        with self._own_here().taken() as own:
            if own is not None:
                own.close()

    def _put(self, name: bytes, header: bytes, data: Data, written: set[bytes]) -> None:
        root = self._root
        size = len(header) + len(data)
        if root is not None and root.has(name, size):
            return
        now = time.time_ns()
        reserved = self._with_index(lambda index: index.reserve(name, taken_by(size), now, written))
        root = self._root
        if reserved is None or root is None:
            return
        is_settled = not reserved.has_room
        try:
            if reserved.were_missing:
                root.sweep()
            if reserved.has_room:
                with root.written(header, data, now) as rename:
                    is_settled = bool(self._with_index(lambda index: index.finish(name, lambda: rename(name))))
        except OSError as error:
            self._fail(error)
        if not is_settled:
            self._with_index(lambda index: index.forget(name), is_urgent=True)

    def _with_index(self, do: Callable[[Index], Result], is_urgent: bool = False) -> Result | None:
        """What is done with the index; None where that is of no use now. One that is damaged is thrown away.

        After something went wrong only what is urgent is done for a while, and only if the index is open.
        """
        with self._own_here().taken() as own:
            is_paused = time.monotonic() < self._pause_until
            if own is None or self._is_closed or (is_paused and not (is_urgent and own.index)):
                return None
            try:
                if self._is_failing and not is_paused:
                    self._begin_again(own)
                return do(own.index or self._opened_index(own))
            except Exception as error:  # whatever is in an index that somebody damaged
                self._judge(own, error)
                return None

    def _opened_index(self, own: _Own) -> Index:
        from glassfs.source.remote.disk_index import Index  # SQLite is for those who need it

        if self._root is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        own.index = Index(self._folder, self._root, self._budget)
        return own.index

    def _begin_again(self, own: _Own) -> None:
        """Goes over to what is now where the folder was. Raises OSError and Refused."""
        own.close()
        self._root = Files(self._folder)
        self._is_failing = False

    def _judge(self, own: _Own, error: Exception) -> None:
        from glassfs.source.remote import disk_index

        if disk_index.is_busy(error):
            return
        if disk_index.is_passing(error) or isinstance(error, Refused):
            self._fail(error)
            return
        own.close()
        self._thrown += 1
        if self._thrown >= MOST_THROWN:
            self._fail(error)
            self._pause_until = float("inf")
            return
        log.info("the index of the disk cache %s is thrown away: %s", self._folder, error)
        disk_index.throw_away(self._folder)

    def _fail(self, error: Exception) -> None:
        """Does nothing more for a while, and says so once."""
        if isinstance(error, OSError) and error.errno in descriptors.EXHAUSTED:
            return
        self._is_failing = True
        self._pause_until = max(self._pause_until, time.monotonic() + PAUSE)
        if not self._has_told:
            self._has_told = True
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            log.warning("the disk cache %s is of no use for now, and done without: %s", self._folder, reason)

    def _own_here(self) -> _Own:
        """What belongs to this process: nothing of it may be used, or closed, in one that was forked off."""
        own = self._own
        if own.process != os.getpid():
            own = self._own = _Own(own)
        return own


def _names_bytes(validator: str) -> bool:
    return Facts(0, validator, 0).has_strong_etag


class _Own:
    """The index of one process, for one thread at a time, and what its threads are writing."""

    def __init__(self, former: _Own | None = None) -> None:
        self.process = os.getpid()
        self.index: Index | None = None
        self._former = former  # never closed: that would touch what its process is doing
        self._lock = threading.Lock()
        self._is_held = False
        self._written: set[bytes] = set()
        self._writing = threading.Lock()
        _all.add(self)

    def close(self) -> None:
        index, self.index = self.index, None
        if index is not None:
            index.close()

    @contextmanager
    def taken(self) -> Iterator[_Own | None]:
        """For this thread alone; None where another one does not come to an end with it."""
        is_ours = self._lock.acquire(timeout=PATIENCE)
        try:
            yield self if is_ours else None
        finally:
            if is_ours:
                self._lock.release()

    def hold(self) -> None:
        """Lets nobody begin anything, so that a process can be forked off."""
        if self._lock.acquire(timeout=PATIENCE):
            self._is_held = True

    def let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()

    @contextmanager
    def writing(self, name: bytes) -> Iterator[set[bytes]]:
        """What is being written at any time, with that block; nothing if another thread is at it."""
        with self._writing:
            is_alone = name not in self._written
            self._written.add(name)
        try:
            yield self._written if is_alone else set()
        finally:
            if is_alone:
                with self._writing:
                    self._written.discard(name)


def _hold_all() -> None:
    for own in list(_all):
        own.hold()


def _let_all_go() -> None:
    for own in list(_all):
        own.let_go()


_all: WeakSet[_Own] = WeakSet()
# SQLite knows which locks a process has, and would go on knowing it in one that was forked off meanwhile.
os.register_at_fork(before=_hold_all, after_in_parent=_let_all_go, after_in_child=_let_all_go)
