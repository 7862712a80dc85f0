"""A cache on disk, of blocks and small values: one SQLite file, shared by the processes of one user.

Each value has a checksum, and the one that was stored first is evicted first: readers never change the file. After the
first error, unless another process is at work or this one lacks memory or descriptors, one line is logged and the cache
seems empty as long as this process lives. A damaged file is removed, so that the next process starts with an empty one.

The journal is SQLite's rollback journal: a write-ahead log needs memory that is shared with other processes, which
fails on network file systems, and a truncated file would kill the process. Nothing waits for the disk, so after a crash
of the machine the checksums decide what is left. Any thread: each call runs in its own, and waits up to a quarter of a
second for other threads, and as long for other processes. A forked process may go on using the cache.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import xxhash

from glassfs.errors import Refused, is_lack
from glassfs.persistent import private
from glassfs.settings import settings

SCHEMA = 7
SUFFIXES = ("", "-journal")
JOURNAL = 256 << 10
PAGE = 65536
"""The largest that SQLite has: a block is read page by page."""
LARGEST_VALUE = 16 << 20
_BUSY = ("locked", "busy")
"""Words of SQLite's messages: its codes are known from Python 3.11 on."""
TAG = "CACHEDIR.TAG"
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Cache of glassfs: may be deleted.\n"
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TABLES = (
    "CREATE TABLE entries (key BLOB NOT NULL UNIQUE, checksum BLOB NOT NULL, data BLOB NOT NULL)",
    f"PRAGMA user_version = {SCHEMA}",
)
_OLDEST = "DELETE FROM entries WHERE rowid = (SELECT min(rowid) FROM entries)"

Data: TypeAlias = "bytes | bytearray | memoryview"
Result = TypeVar("Result")

log = logging.getLogger(__name__)


class PersistentCache:
    """The cache in the file ``name`` in ``folder``, of up to ``budget`` bytes.

    The folder is made with mode 0700 if missing, as are the ones on its way among the last ``made`` components. An
    error is logged at ``level``. Raises Refused if the folder is a link, belongs to another user, is open to others or
    cannot be made, or if another user could replace it.
    """

    def __init__(self, folder: str, budget: int, name: str, level: int = logging.WARNING, made: int = 1) -> None:
        folder = os.path.abspath(folder)
        self._path = os.path.join(folder, name)
        self._budget = budget
        self._level = level
        self._connection: sqlite3.Connection | None = None
        self._is_off = False
        self._lock = threading.Lock()
        try:
            _prepare(folder, name, made)
        except (OSError, Refused) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            raise Refused(f"cannot be the folder of a disk cache: {reason}", folder) from error
        _all.add(self)

    def find(self, keys: Sequence[bytes], most_bytes: int = 1 << 62) -> list[bytes | None]:
        """Return the values of these keys, in order, None for what is missing, until ``most_bytes`` are found."""
        def do(connection: sqlite3.Connection) -> list[bytes | None]:
            found: list[bytes | None] = []
            left = most_bytes
            connection.execute("BEGIN")  # the file is locked once for all
            for key in keys:
                row = connection.execute("SELECT checksum, data FROM entries WHERE key = ?", (key,)).fetchone()
                data = None if row is None else _checked(connection, key, *row)
                found.append(data)
                left -= len(data or b"")
                if left <= 0:
                    break
            connection.execute("COMMIT")
            return found

        return self._do(do) or [None] * len(keys)

    def store(self, values: Mapping[bytes, Data]) -> None:
        """Store values, if possible, replacing those of equal keys; leave out those too large."""
        rows = [
            (key, _checksum(key, value), value) for key, value in values.items()
            if len(value) <= min(self._budget, LARGEST_VALUE)
        ]

        def do(connection: sqlite3.Connection) -> None:
            # The lock for writing is taken first, so that no other process adds rows between the sum of the sizes and
            # the insertion.
            connection.execute("BEGIN IMMEDIATE")
            size = sum(len(row[2]) for row in rows)
            while _bytes_in_use(connection) + size > self._budget and connection.execute(_OLDEST).rowcount:
                pass
            connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")
            if _number(connection, "PRAGMA page_count") * PAGE > self._budget:  # it was larger last time
                connection.executescript("PRAGMA incremental_vacuum")  # execute would free a single page

        self._do(do)

    def close(self) -> None:
        """Release everything; afterwards the cache seems empty. May be called twice."""
        with self._lock:
            self._switch_off()

    def _do(self, do: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Return what ``do`` does with the file; None if that is impossible."""
        if not self._lock.acquire(timeout=settings.disk_lock):
            return None
        try:
            if self._is_off:
                return None
            if self._connection is None:
                self._connection = _opened(self._path)
            return do(self._connection)
        except Exception as error:  # a damaged file may cause any
            # That another process holds the lock, or that this one lacks memory or descriptors, passes. Any other error
            # would come again, and each time cost a reader the wait for a disk that fails.
            if not _is_busy(error) and not is_lack(error):
                self._fail(error)
            return None
        finally:
            if self._connection is not None and self._connection.in_transaction:  # other processes would wait for it
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            self._lock.release()

    def _fail(self, error: Exception) -> None:
        """Switch the cache off, and remove its file if that is damaged."""
        self._switch_off()
        is_damaged = not isinstance(error, (OSError, Refused, sqlite3.OperationalError))
        if is_damaged:
            for suffix in SUFFIXES:
                with suppress(OSError):
                    os.unlink(self._path + suffix)
        log.log(self._level, "%s: %s: %s", self._path, "removed, as it is damaged" if is_damaged else "not used", error)

    def _switch_off(self) -> None:
        self._is_off = True
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def _checked(connection: sqlite3.Connection, key: bytes, checksum: bytes, data: object) -> bytes | None:
    """Return a stored value; delete a damaged one."""
    if isinstance(data, bytes) and checksum == _checksum(key, data):
        return data
    connection.execute("DELETE FROM entries WHERE key = ?", (key,))
    return None


def _checksum(key: bytes, value: Data) -> bytes:
    checksum = xxhash.xxh3_128(b"%d %b" % (len(key), key))
    checksum.update(value)
    return checksum.digest()


def _prepare(folder: str, name: str, made: int) -> None:
    """Check the folder, make it if it is missing, and mark it as a cache, also for backup programs, which leave it out.

    Raises OSError, and Refused if it has no mark, but a file with the name of a cache, which would be replaced.
    """
    descriptor = private.opened(folder, made)
    try:
        with suppress(FileNotFoundError), open(os.open(TAG, _OLD, dir_fd=descriptor), "rb") as file:
            if _TAG.startswith(file.read(len(_TAG) + 1)):  # another process may be writing it
                return
        for other in os.listdir(descriptor):
            if other in (TAG, name):
                raise Refused(f"it is no cache of glassfs, and has {other} of another program")
        with suppress(FileExistsError), open(os.open(TAG, _NEW, 0o600, dir_fd=descriptor), "wb") as file:
            file.write(_TAG)
    finally:
        os.close(descriptor)


def _opened(path: str) -> sqlite3.Connection:
    """Open the file, which is made if necessary. Raises OSError, Refused and sqlite3.Error."""
    # SQLite opens files by their path and follows links. So nothing but a file of this user may be there, in a folder
    # that no other user can change.
    os.close(private.opened(os.path.dirname(path)))  # what it was when the cache was made may have changed
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            if not _is_own_file(os.lstat(path + suffix)):
                os.unlink(path + suffix)
    with suppress(FileExistsError):  # an existing file is not opened: closing it would release SQLite's locks on it
        os.close(os.open(path, _NEW, 0o600))
    connection = sqlite3.connect(path, settings.disk_lock, isolation_level=None, check_same_thread=False)
    try:
        for setting in (
            f"page_size = {PAGE}", "synchronous = OFF", "mmap_size = 0", "trusted_schema = OFF",
            "journal_mode = PERSIST", f"journal_size_limit = {JOURNAL}",
        ):
            connection.execute(f"PRAGMA {setting}").fetchall()
        # An older layout is dropped inside the file: removing the file would leave other processes with one that has no
        # name, in which they would go on writing.
        if _number(connection, "PRAGMA user_version") != SCHEMA:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("BEGIN IMMEDIATE")
            if _number(connection, "PRAGMA user_version") != SCHEMA:  # unless another process just made them
                for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    connection.execute(f'DROP TABLE "{name}"')
                for statement in _TABLES:
                    connection.execute(statement)
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_own_file(status: os.stat_result) -> bool:
    """Return whether it is a regular file of this user that no other user can write to, with no second name."""
    is_only = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_only and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_busy(error: Exception) -> bool:
    """Return whether another process is using the file."""
    return isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in _BUSY)


def _bytes_in_use(connection: sqlite3.Connection) -> int:
    pages = _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")
    return pages * PAGE


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


def _hold_all() -> None:
    _held.extend(cache for cache in list(_all) if cache._lock.acquire(timeout=settings.disk_lock))


def _release_all() -> None:
    while _held:
        _held.pop()._lock.release()


def _renew_all() -> None:
    _held.clear()
    for cache in list(_all):
        _inherited.append(cache._connection)
        cache._lock, cache._connection = threading.Lock(), None


_all: WeakSet[PersistentCache] = WeakSet()
_held: list[PersistentCache] = []
"""Those that no other thread uses during a fork."""
_inherited: list[Any] = []
"""Connections of the process that this one was forked from, with which closing them would interfere."""
# SQLite remembers which locks its process has, and would do so in a process that was forked while it had some.
os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_renew_all)
