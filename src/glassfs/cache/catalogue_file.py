"""The file of a catalogue: SQLite with checksums, in a folder that nobody else may write to.

The journal is SQLite's own, rolled back; no memory is shared with other processes, and nothing mapped, since that works
on no network and a file that is cut would kill the process. For one thread at a time.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import xxhash

from glassfs.cache.catalogued import MOST_FOUND, Kept, Key

FILE = "catalogue.sqlite"
SCHEMA = 1
LOCKED = 0.25
"""Seconds to wait for another process."""
PAUSE = 1.0
"""Seconds for which a file that was of no use is not tried."""
MOST_THROWN = 3
"""Files that are thrown away before there is no use in it."""
DAY = 86_400
LARGEST = 16 << 20
_COMPRESSED = 4096
_PASSING = ("locked", "busy", "readonly", "is full", "unable to open")
"""What SQLite says where the file is not to be blamed."""
_TABLES = """
CREATE TABLE kept (
    key BLOB NOT NULL, number INTEGER NOT NULL, parts INTEGER NOT NULL, rows INTEGER NOT NULL, block INTEGER NOT NULL,
    head BLOB NOT NULL, data BLOB NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (key, number)
);
CREATE INDEX kept_used ON kept (used);
"""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class CatalogueFile:
    """The file in ``folder``, of up to ``budget`` bytes. Raises nothing that is to be expected."""

    def __init__(self, folder: str, budget: int) -> None:
        self._folder = folder
        self._path = os.path.join(folder, FILE)
        self._budget = budget
        self._connection: sqlite3.Connection | None = None
        self._pause_until = 0.0
        self._thrown = 0

    def find(self, keys: Sequence[Key], number: int) -> dict[Key, Kept]:
        return self._tried(partial(_find, keys=keys, number=number)) or {}

    def put(self, found: Mapping[Key, Sequence[Kept]]) -> None:
        self._tried(partial(_put, found=found, budget=self._budget))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _tried(self, do: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """What is done with the file; None where it is of no use now. One that is damaged is thrown away."""
        if time.monotonic() < self._pause_until or self._thrown >= MOST_THROWN:
            return None
        try:
            if self._connection is None:
                self._connection = self._opened()
            return do(self._connection)
        except (OSError, sqlite3.Error) as error:
            is_passing = isinstance(error, OSError) or any(word in str(error) for word in _PASSING)
            if not is_passing:
                self._throw_away(error)
            elif self._connection is not None:
                _roll_back(self._connection)
            self._pause_until = time.monotonic() + (PAUSE if is_passing else 0)
            return None

    def _opened(self) -> sqlite3.Connection:
        """Raises OSError where the folder is not to be trusted, and what SQLite does."""
        self._demand_own_folder()
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            status = None
        if status is not None and not _is_own(status, stat.S_IFREG, 0o077):
            os.unlink(self._path)
            status = None
        if status is None:  # one that is there is not opened here: closing it would give up SQLite's locks on it
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=LOCKED, isolation_level=None)
        try:
            for setting in ("synchronous = OFF", "mmap_size = 0", "trusted_schema = OFF"):
                connection.execute(f"PRAGMA {setting}").fetchall()
            if _schema(connection) != SCHEMA:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
                connection.execute("BEGIN IMMEDIATE")
                if _schema(connection) != SCHEMA:  # unless another process was quicker
                    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        raise sqlite3.DatabaseError("is of another version")
                    for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA}")
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _demand_own_folder(self) -> None:
        """Makes the folder where it is missing. Raises OSError where anybody else could put something into it."""
        parent = os.path.dirname(self._folder)
        with suppress(FileExistsError):
            os.mkdir(parent, 0o700)
        if not _is_own(os.stat(parent), stat.S_IFDIR, 0o022):
            raise PermissionError(f"others may write to {parent}")
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        status = os.lstat(self._folder)
        if not _is_own(status, stat.S_IFDIR, 0o022):
            raise PermissionError(f"others may write to {self._folder}")
        if status.st_mode & 0o077:
            os.chmod(self._folder, 0o700)

    def _throw_away(self, error: Exception) -> None:
        log.info("the catalogue %s is thrown away: %s", self._path, error)
        self.close()
        self._thrown += 1
        for suffix in ("", "-journal"):
            with suppress(OSError):
                os.unlink(self._path + suffix)


def _find(connection: sqlite3.Connection, keys: Sequence[Key], number: int) -> dict[Key, Kept]:
    found: dict[Key, Kept] = {}
    bad, late, size, today = [], [], 0, _today()
    for key in dict.fromkeys(keys):
        row = connection.execute("SELECT * FROM kept WHERE key = ? AND number = ?", (key, number)).fetchone()
        if row is None:
            continue
        kept = _unpacked(row)
        if kept is None:
            bad.append((key,))
            continue
        found[key] = kept
        size += len(kept.data)
        if row[-1] != today:
            late.append((today, key))
        if size >= MOST_FOUND:
            break
    if bad or late:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM kept WHERE key = ?", bad)
            connection.executemany("UPDATE kept SET used = ? WHERE key = ?", late)
            connection.execute("COMMIT")
        except sqlite3.OperationalError:  # reading goes on where nothing can be written
            _roll_back(connection)
    return found


def _put(connection: sqlite3.Connection, found: Mapping[Key, Sequence[Kept]], budget: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for key, parts in found.items():
        if any(len(part.data) > LARGEST for part in parts):
            continue
        connection.execute("DELETE FROM kept WHERE key = ?", (key,))
        rows = [(key, *part[:-1], _packed(key, part), _today()) for part in parts]
        connection.executemany("INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    if _used(connection) > budget:
        some = connection.execute("SELECT count(*) FROM kept").fetchone()[0] // 16 + 1
        while _used(connection) > budget // 4 * 3:
            oldest = f"SELECT key FROM (SELECT key FROM kept ORDER BY used, rowid LIMIT {some})"
            if connection.execute(f"DELETE FROM kept WHERE key IN ({oldest})").rowcount < 1:
                break
    connection.execute("COMMIT")
    connection.execute("PRAGMA incremental_vacuum").fetchall()


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _schema(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _used(connection: sqlite3.Connection) -> int:
    """The bytes of the file that are in use."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def _is_own(status: os.stat_result, kind: int, forbidden: int) -> bool:
    """Whether something is of that kind and this user's, and gives others none of the permissions."""
    is_kind = stat.S_IFMT(status.st_mode) == kind
    return is_kind and status.st_uid == os.geteuid() and not status.st_mode & forbidden


def _today() -> int:
    return int(time.time()) // DAY


def _packed(key: Key, part: Kept) -> bytes:
    """The data of a part as they are stored: a checksum of all of it, and whether they are compressed, before them."""
    data = part.data
    stored = b"\0" + data if len(data) < _COMPRESSED else b"\1" + zlib.compress(data, 1)
    return _checksum((key, *part[:-1], stored)) + stored


def _unpacked(row: tuple[Any, ...]) -> Kept | None:
    """A part from its row; None for one that is not what was stored."""
    try:
        *told, data, _ = row
        checksum, stored = data[:8], data[8:]
        if checksum != _checksum((*told, stored)):
            return None
        raw = stored[1:]
        if stored[:1] == b"\1":
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(raw, LARGEST)
            if not unpacker.eof:
                return None
        return Kept._make((*told[1:], raw))
    except (TypeError, ValueError, struct.error, zlib.error):
        return None


def _checksum(fields: tuple[Any, ...]) -> bytes:
    key, number, parts, rows, block, head, stored = fields
    numbers = struct.pack("<6q", number, parts, rows, block, len(head), len(key))
    return xxhash.xxh64_digest(b"".join((numbers, key, head, stored)))
