"""The SQLite index of a persistent cache: small values, and the blocks with their sizes and times of last use.

A block is added before its file is written and removed after its file is unlinked: so the files never take more than
the index says, whichever process is killed when, except for blocks that are evicted while another process writes them.
After a restart of the machine, or with a new index, the files are counted once, before the first block is added. Values
have checksums.

The journal is SQLite's rollback journal. No memory is shared with other processes and nothing is mapped: that fails on
network file systems, and a truncated file would kill the process. For one thread at a time, several processes. Raises
OSError and sqlite3.Error; ``is_passing`` recognizes errors that say nothing about the file.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TypeAlias

import xxhash

from glassfs.persistent.files import NAME, UNIT, Files, is_own_file

SUFFIXES = ("", "-journal")
SCHEMA = 2
LOCK_TIMEOUT_SECONDS = 0.25
"""How long to wait for another process."""
JOURNAL = 64 << 10
LARGEST_VALUE = 16 << 20
COMPRESSED_FROM = 4096
DAY_SECONDS = 86_400
_CHECKSUM = 16
_BOOT = "/proc/sys/kernel/random/boot_id"
_PASSING = ("locked", "busy", "readonly", "is full", "unable to open", "disk I/O error")
_TABLES = """
CREATE TABLE blocks (name BLOB PRIMARY KEY, size INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX blocks_used ON blocks (used);
CREATE TABLE parts (
    key BLOB NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (key, number)
);
CREATE INDEX parts_used ON parts (used);
CREATE TABLE totals (bytes INTEGER NOT NULL, boot TEXT NOT NULL);
INSERT INTO totals VALUES (0, 'none');
"""
_WITH_OTHERS = """
WITH wanted AS (SELECT rowid AS at FROM parts WHERE key = :key AND number = 0)
SELECT key, data, used FROM parts, wanted
WHERE parts.rowid BETWEEN at - at % :count AND at - at % :count + :count - 1 AND number = 0
    AND (parts.rowid = at OR length(data) <= :small) AND typeof(data) = 'blob'
"""

Values: TypeAlias = Mapping[bytes, Sequence[bytes]]
"""The parts of values, by key."""


class Index:
    """The index at ``path``, for blocks, values and itself of up to ``budget`` bytes, values ``values_budget``."""

    def __init__(self, path: str, files: Files, budget: int, values_budget: int) -> None:
        self._path = path
        self._files = files
        self._budget = budget
        self._values_budget = values_budget
        self._is_counted = False
        self._file = _own_file(path)
        self._connection = sqlite3.connect(
            path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False,
        )
        try:
            for setting in (
                "synchronous = OFF", "mmap_size = 0", "trusted_schema = OFF", "journal_mode = PERSIST",
                f"journal_size_limit = {JOURNAL}",
            ):
                self._connection.execute(f"PRAGMA {setting}").fetchall()
            if self._number("PRAGMA user_version") != SCHEMA:
                self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
                self._make()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    # Values

    def find(self, keys: Sequence[bytes], number: int, most_bytes: int) -> dict[bytes, bytes]:
        """Return part ``number`` of the values of these keys, in order, until ``most_bytes`` are found."""
        return self._undamaged(number, self._rows(dict.fromkeys(keys), number), most_bytes)

    def find_with_others(self, key: bytes, count: int) -> dict[bytes, bytes]:
        """Return the first parts of up to ``count`` values that were stored in a row, among them the one of this key;
        nothing if it is not stored. They are returned as they are stored, see ``part_of``. Of others only small ones.

        Finding one by one takes longer, as most of that is locking the file. Rows begin at multiples of ``count``, so
        that no part is in two of them.
        """
        wanted = {"key": key, "count": count, "small": COMPRESSED_FROM}
        rows, today = self._connection.execute(_WITH_OTHERS, wanted).fetchall(), _today()
        self._note([(today, key) for key, _, used in rows if used != today], [])
        return {key: stored for key, stored, _ in rows}

    def _rows(self, keys: Iterable[bytes], number: int) -> Iterator[tuple[Any, ...]]:
        for key in keys:
            row = self._row("SELECT key, data, used FROM parts WHERE key = ? AND number = ?", key, number)
            if row is not None:
                yield row

    def _undamaged(self, number: int, rows: Iterable[tuple[Any, ...]], most_bytes: int) -> dict[bytes, bytes]:
        """Return the data of these rows by key, until there are ``most_bytes``. Note their use, and delete damaged
        ones.
        """
        found: dict[bytes, bytes] = {}
        damaged, unused, today, size = [], [], _today(), 0
        for key, stored, used in rows:
            data = part_of(key, number, stored)
            if data is None:
                damaged.append((key,))
                continue
            found[key] = data
            size += len(data)
            if used != today:
                unused.append((today, key))
            if size >= most_bytes:
                break
        self._note(unused, damaged)
        return found

    def _note(self, used: Sequence[tuple[int, bytes]], damaged: Sequence[tuple[bytes]]) -> None:
        """Note the days on which values were used, and delete damaged ones."""
        if used or damaged:
            with suppress(sqlite3.OperationalError), self._transaction():  # a read-only disk can still be read
                self._connection.executemany("DELETE FROM parts WHERE key = ?", damaged)
                self._connection.executemany("UPDATE parts SET used = ? WHERE key = ?", used)

    def store(self, values: Values) -> None:
        """Store values with all their parts, replacing those of equal keys; leave out values with large parts."""
        rows = [
            (key, number, _packed(key, number, part), _today())
            for key, parts in values.items() if all(len(part) <= LARGEST_VALUE for part in parts)
            for number, part in enumerate(parts)
        ]
        known = "SELECT 1 FROM parts WHERE key = ? AND number = ? AND data = ?"
        if all(self._row(known, *row[:3]) for row in rows):
            return
        with self._transaction():
            self._connection.executemany("DELETE FROM parts WHERE key = ?", {(row[0],) for row in rows})
            self._connection.executemany("INSERT INTO parts VALUES (?, ?, ?, ?)", rows)
            self._evict_values()
        self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def _evict_values(self) -> None:
        if self._bytes_in_use() <= self._values_budget:
            return
        some = self._number("SELECT count(*) FROM parts") // 16 + 1
        oldest = f"SELECT key FROM (SELECT key FROM parts ORDER BY used, rowid LIMIT {some})"
        while self._bytes_in_use() > self._values_budget // 4 * 3:
            if self._connection.execute(f"DELETE FROM parts WHERE key IN ({oldest})").rowcount < 1:
                break

    def _bytes_in_use(self) -> int:
        pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
        return pages * self._number("PRAGMA page_size")

    # Blocks

    def create(self, name: bytes, size: int, now: int) -> BinaryIO:
        """Count a block and evict others for it; return its empty file."""
        with self._transaction():
            if not self._is_counted:
                self._count()
            self._files.unlink(name)
            self._forget(name)
            self._connection.execute("INSERT INTO blocks VALUES (?, ?, ?)", (name, size, now))
            self._add(size)
            self._evict(name, now)
            return self._files.create(name)

    def forget(self, name: bytes) -> None:
        """Remove a block."""
        with self._transaction():
            self._files.unlink(name)
            self._forget(name)

    def _make(self) -> None:
        """Make the tables, unless another process just did."""
        with self._transaction():
            if self._number("PRAGMA user_version") == SCHEMA:
                return
            if self._number("SELECT count(*) FROM sqlite_master"):
                raise sqlite3.DatabaseError("is of another version")
            for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _count(self) -> None:
        """Count the files, if the index may not know all of them."""
        size = self._number("SELECT coalesce(sum(size), 0) FROM blocks")
        boot = _boot()
        if self._row("SELECT * FROM totals") != (size, boot):
            self._connection.execute("DELETE FROM blocks")
            self._connection.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", self._found())
            size = self._number("SELECT coalesce(sum(size), 0) FROM blocks")
            self._connection.execute("UPDATE totals SET bytes = ?, boot = ?", (size, boot))
        self._is_counted = True

    def _found(self) -> Iterator[tuple[bytes, int, int]]:
        for block in self._files.all():
            if block[1] > self._budget + UNIT:  # no block of this cache, and its size might overflow sums
                self._files.unlink(block[0])
            else:
                yield block

    def _evict(self, new: bytes, now: int) -> None:
        """Remove least recently used blocks other than ``new`` until the budget holds."""
        budget = self._budget - self._number("PRAGMA page_count") * self._number("PRAGMA page_size") - JOURNAL
        while self._number("SELECT bytes FROM totals") > budget:
            row = self._row("SELECT name, used FROM blocks WHERE name <> ? ORDER BY used LIMIT 1", new)
            if row is None:
                break
            if not isinstance(row[0], bytes) or len(row[0]) != NAME:
                raise sqlite3.DatabaseError("has a name in it that no block has")
            used = self._files.used(row[0])
            if used is not None and row[1] < used <= now:  # readers only touch the file
                self._connection.execute("UPDATE blocks SET used = ? WHERE name = ?", (used, row[0]))
                continue
            self._files.unlink(row[0])
            self._forget(row[0])

    def _forget(self, name: bytes) -> None:
        row = self._row("SELECT size FROM blocks WHERE name = ?", name)
        if row is not None:
            self._connection.execute("DELETE FROM blocks WHERE name = ?", (name,))
            self._add(-int(row[0]))

    def _add(self, size: int) -> None:
        self._connection.execute("UPDATE totals SET bytes = bytes + ?", (size,))

    def _row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self._connection.execute(statement, values).fetchone()
        return found

    def _number(self, statement: str) -> int:
        found = self._row(statement)
        if found is None or not isinstance(found[0], int):
            raise sqlite3.DatabaseError("has no totals")
        return found[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Exclude other writers. An exception rolls all changes back."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if _identity(os.stat(self._path)) != self._file:  # other processes use the file that is there now
                raise FileNotFoundError(f"{self._path} was replaced")
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._is_counted = False
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")


def is_passing(error: Exception) -> bool:
    """Return whether the index may be undamaged despite this error."""
    return isinstance(error, (OSError, MemoryError)) or any(word in str(error) for word in _PASSING)


def is_busy(error: Exception) -> bool:
    """Return whether another process is using the index."""
    return isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in _PASSING[:2])


def part_of(key: bytes, number: int, stored: object) -> bytes | None:
    """Return the data of a part, given it as it is stored; None if it is damaged."""
    if not isinstance(stored, bytes) or stored != _checked(key, number, stored[_CHECKSUM:]):
        return None
    data = stored[_CHECKSUM + 1 :]
    try:
        return zlib.decompressobj().decompress(data, LARGEST_VALUE) if stored[_CHECKSUM] else data
    except zlib.error:
        return None


def throw_away(path: str) -> None:
    for suffix in SUFFIXES:
        with suppress(OSError):
            os.unlink(path + suffix)


def _own_file(path: str) -> tuple[int, int]:
    """Make the file if necessary, replacing one that another user may have made; return device and inode number."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            if not is_own_file(os.lstat(path + suffix)):
                os.unlink(path + suffix)
    with suppress(FileExistsError):  # an existing file is not opened: closing it would release SQLite's locks on it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return _identity(os.lstat(path))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _boot() -> str:
    """Return the id of this boot: after a crash of the machine, what had not reached the disk is lost."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


def _today() -> int:
    return int(time.time()) // DAY_SECONDS


def _packed(key: bytes, number: int, data: bytes) -> bytes:
    """Return a part as it is stored: a checksum, whether the data are compressed, and the data."""
    is_compressed = len(data) >= COMPRESSED_FROM
    return _checked(key, number, bytes((is_compressed,)) + (zlib.compress(data, 1) if is_compressed else data))


def _checked(key: bytes, number: int, data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(struct.pack("<QQ", len(key), number) + key + data) + data
