"""A cache in a folder on disk, of blocks and small values, shared by the processes of one user.

Each block is a file with a checksum, written without waiting for the disk. Unfinished, torn or damaged blocks fail
their checksum, planted ones the check of their owner; all are removed. An index (``index``) knows
the sizes and times of last use, and holds the values. Beside files and index, folders take up to 1 MiB that is not
counted.

Any thread, and several processes at a time may use one folder. The budget holds for all of them together, except for
one block for each process that is writing. Everything runs in the calling thread. Reading a block waits for no other
thread, and blocks are written one after another; the rest waits up to a quarter of a second for other threads, and as
long for other processes. A forked process
may go on using the cache. Refused is raised when the cache is made, and nothing later: if the disk is full, fails, is
read-only or gone, one line is logged and the cache seems empty.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from glassfs.errors import Refused
from glassfs.forks import around_fork, generation
from glassfs.persistent.files import Data, Files, disk_size, header_of, name_of, write

if TYPE_CHECKING:
    from glassfs.persistent.index import Index, Values

PAUSE_SECONDS = 10.0
"""How long nothing is written after an error."""
LOCK_TIMEOUT_SECONDS = 0.25
"""How long a thread waits for other threads."""
MOST_THROWN = 3
"""Damaged indexes that are replaced before the cache is disabled."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_UNSUITABLE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class PersistentCache:
    """The cache in ``folder``, of up to ``budget`` bytes, values ``values_budget``.

    The folder is made with mode 0700 if missing, as are the ones on its way among the last ``made`` components.
    ``index_name`` is the file name of the index. Errors are logged once, at ``level``. Raises Refused if the folder is
    a link, belongs to another user, is open to others or cannot be made, or if another user could replace it.
    """

    def __init__(
        self, folder: str, budget: int, values_budget: int, index_name: str = "index.sqlite",
        level: int = logging.WARNING, made: int = 1,
    ) -> None:
        self._folder = os.path.abspath(folder)
        self._index_path = os.path.join(self._folder, index_name)
        self._budget = budget
        self._values_budget = values_budget
        self._level = level
        self._pause_until = 0.0
        self._is_failing = self._has_logged = self._is_closed = False
        self._thrown = 0
        self._own = _Own()
        self._files: Files | None = None
        try:
            self._files = Files(self._folder, made)
            self._files.tag(index_name)
        except Refused as error:
            raise Refused(f"cannot be the folder of a disk cache: {error.reason}", self._folder) from error
        except OSError as error:
            if error.errno in _UNSUITABLE:
                reason = error.strerror or str(error)
                raise Refused(f"cannot be the folder of a disk cache: {reason}", self._folder) from error
            self._fail(error)

    def read_block(self, owner: bytes, number: int, size: int) -> bytes | None:
        """Return a block of ``size`` bytes; None if it is not cached. ``owner`` is a digest of 32 bytes."""
        if self._files is None:
            return None
        name = name_of(owner, number)
        try:
            found = self._files.read(name, owner, number, size)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fail(error)
            return None
        if found is None:
            self._with_index(lambda index: index.forget(name))
        return found

    def write_block(self, owner: bytes, number: int, data: Data) -> None:
        """Cache a block if possible. A cached block of the same length stays unchanged."""
        if 0 < len(data) <= self._budget:
            name = name_of(owner, number)
            with self._own_here().writing:
                self._write(name, header_of(owner, number, data), data)

    def find(self, keys: Sequence[bytes], number: int = 0, most_bytes: int = 1 << 62) -> dict[bytes, bytes]:
        """Return part ``number`` of the values of these keys, in order, until ``most_bytes`` are found."""
        return self._with_index(lambda index: index.find(keys, number, most_bytes)) or {}

    def find_with_others(self, key: bytes, count: int) -> dict[bytes, bytes]:
        """Return the first part of a value, if it is stored, and of small ones that were stored before and after it,
        ``count`` at most, all of them as ``part_of`` takes them.
        """
        return self._with_index(lambda index: index.find_with_others(key, count)) or {}

    @staticmethod
    def part_of(key: bytes, stored: bytes) -> bytes | None:
        """Return the first part of a value, given it as it is stored; None if it is damaged."""
        from glassfs.persistent.index import part_of

        return part_of(key, 0, stored)

    def store(self, values: Values) -> None:
        """Store values with all their parts, if possible, replacing those of equal keys."""
        self._with_index(lambda index: index.store(values))

    def close(self) -> None:
        """Release everything; afterwards the cache seems empty. May be called twice."""
        self._is_closed = True
        self._files = None
        with self._own_here().locked() as own:
            if own is not None:
                own.close()

    def _write(self, name: bytes, header: bytes, data: Data) -> None:
        size = len(header) + len(data)
        if self._files is not None and self._files.has(name, size):
            return
        now = time.time_ns()
        file = self._with_index(lambda index: index.create(name, disk_size(size), now))
        if file is not None:
            try:
                write(file, header, data, now)
            except OSError as error:
                self._fail(error)
                self._with_index(lambda index: index.forget(name), is_urgent=True)

    def _with_index(self, do: Callable[[Index], Result], is_urgent: bool = False) -> Result | None:
        """Return what ``do`` does with the index; None if that fails. A damaged index is thrown away.

        During the pause after an error only urgent work is done, and only if the index is open.
        """
        with self._own_here().locked() as own:
            is_paused = time.monotonic() < self._pause_until
            if own is None or self._is_closed or (is_paused and not (is_urgent and own.index)):
                return None
            try:
                if self._is_failing and not is_paused:
                    own.close()
                    self._files = Files(self._folder)  # the folder that is there now
                    self._is_failing = False
                return do(own.index or self._opened_index(own))
            except Exception as error:  # a damaged index may cause any
                self._judge(own, error)
                return None

    def _opened_index(self, own: _Own) -> Index:
        from glassfs.persistent.index import Index  # SQLite is loaded only if it is needed

        if self._files is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        own.index = Index(self._index_path, self._files, self._budget, self._values_budget)
        return own.index

    def _judge(self, own: _Own, error: Exception) -> None:
        """Decide whether an error passes, lasts, or means that the index is damaged."""
        from glassfs.persistent import index

        if index.is_busy(error):
            return
        if index.is_passing(error) or isinstance(error, Refused):
            self._fail(error)
            return
        own.close()
        self._thrown += 1
        if self._thrown >= MOST_THROWN:
            self._fail(error)
            self._pause_until = float("inf")
            return
        log.info("%s: throwing away a damaged index: %s", self._index_path, error)
        index.throw_away(self._index_path)

    def _fail(self, error: Exception) -> None:
        """Pause, and log the first error. A lack of descriptors or memory is not an error of the disk."""
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return
        self._is_failing = True
        self._pause_until = max(self._pause_until, time.monotonic() + PAUSE_SECONDS)
        if not self._has_logged:
            self._has_logged = True
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            log.log(self._level, "%s: cannot be used as a disk cache for now: %s", self._folder, reason)

    def _own_here(self) -> _Own:
        """Return the state of this process: an inherited one may be neither used nor closed."""
        own = self._own
        if own.generation != generation():
            own = self._own = _Own(own)
        return own


class _Own:
    """The state of one process: its index, for one thread at a time, and the lock of the thread that writes a block."""

    def __init__(self, former: _Own | None = None) -> None:
        self.generation = generation()
        self.index: Index | None = None
        self._former = former  # never closed: that would interfere with the process that owns it
        self._lock = threading.Lock()
        self._is_held = False
        self.writing = threading.Lock()
        _all.add(self)

    def close(self) -> None:
        index, self.index = self.index, None
        if index is not None:
            index.close()

    @contextmanager
    def locked(self) -> Iterator[_Own | None]:
        """Exclude other threads; yield None if another thread does not finish in time."""
        is_ours = self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)
        try:
            yield self if is_ours else None
        finally:
            if is_ours:
                self._lock.release()

    def hold(self) -> None:
        """Exclude other threads while this one forks."""
        if self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()


def _hold_all() -> None:
    for own in list(_all):
        own.hold()


def _release_all() -> None:
    for own in list(_all):
        own.release()


_all: WeakSet[_Own] = WeakSet()
# SQLite remembers which locks its process has, and would do so in a process that was forked while it had some.
around_fork(_hold_all, _release_all, _release_all)
