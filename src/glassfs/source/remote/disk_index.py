"""The index of a disk cache: which blocks there are, how large and when last used, and facts of objects. SQLite.

A block is in here before its file is there, and leaves after it: so the files never take more than the index says,
whoever was killed when. Files that the index cannot know of (it is new, or the machine went down) are counted once,
before the first block is added. What the folder says is asked of ``Files``; nothing here decides what is believed.

For one thread at a time, several processes. Raises OSError and sqlite3.Error; ``is_passing`` tells those for which the
file is not to be blamed.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import xxhash

from glassfs.source.remote.disk_files import NAME, UNIT, Files, is_own_file
from glassfs.source.remote.server import Facts

FILE = "index.sqlite"
SUFFIXES = ("", "-journal")
SCHEMA = 1
LOCKED = 0.25
"""Seconds to wait for another process."""
JOURNAL = 64 << 10
A_FACT = 512
"""What is taken for the facts of an object, at least; they may have an eighth of the budget."""
LONGEST_ETAG = 1024
DAY = 86_400
_BOOT = "/proc/sys/kernel/random/boot_id"
_PASSING = ("locked", "busy", "readonly", "is full", "unable to open", "disk I/O error")
_TABLES = """
CREATE TABLE blocks (name BLOB PRIMARY KEY, size INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX blocks_used ON blocks (used);
CREATE TABLE facts (key BLOB PRIMARY KEY, told BLOB NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX facts_used ON facts (used);
CREATE TABLE totals (bytes INTEGER NOT NULL, facts INTEGER NOT NULL, boot TEXT NOT NULL);
INSERT INTO totals VALUES (0, 0, 'none');
"""


class Reserved(NamedTuple):
    """Whether there is room for a block, and whether some had been counted that were never finished."""

    has_room: bool
    were_missing: bool


class Index:
    """The index in ``folder``, for blocks and facts of up to ``budget`` bytes together."""

    def __init__(self, folder: str, files: Files, budget: int) -> None:
        self._path = os.path.join(folder, FILE)
        self._files = files
        self._budget = budget
        self._most_facts = max(16, budget // 8 // A_FACT)
        self._is_counted = False
        self._file = _own_file(self._path)
        self._connection = sqlite3.connect(
            self._path, timeout=LOCKED, isolation_level=None, check_same_thread=False,
        )
        try:
            for setting in (
                "synchronous = OFF", "mmap_size = 0", "trusted_schema = OFF", "journal_mode = PERSIST",
                f"journal_size_limit = {JOURNAL}",
            ):
                self._connection.execute(f"PRAGMA {setting}").fetchall()
            self._make()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    def reserve(self, name: bytes, size: int, now: int, written: Collection[bytes]) -> Reserved:
        """Counts a block that is about to be written, and makes room for it.

        ``written`` are those that this process is writing, with this one: what they take cannot be given up.
        """
        with self._transaction():
            if not self._is_counted:
                self._count()
            self._files.unlink(name)  # or there would be two of them for a moment
            self._forget(name)
            self._connection.execute("INSERT INTO blocks VALUES (?, ?, ?)", (name, size, now))
            self._add(size)
            was_missing = self._evict(written, now)
            if len(written) > 1 and self._number("SELECT bytes FROM totals") > self._room():
                self._forget(name)
                return Reserved(False, was_missing)
            return Reserved(True, was_missing)

    def finish(self, name: bytes, rename: Callable[[], None]) -> bool:
        """Has the file put into its place; not if it was given up meanwhile, as nobody would count it."""
        with self._transaction():
            if self._row("SELECT 1 FROM blocks WHERE name = ?", name) is None:
                return False
            rename()
            return True

    def forget(self, name: bytes) -> None:
        """Removes a block."""
        with self._transaction():
            self._files.unlink(name)
            self._forget(name)

    def facts(self, key: bytes) -> Facts | None:
        row = self._row("SELECT told, used FROM facts WHERE key = ?", key)
        found = None if row is None else _unpacked(key, row[0])
        today = int(time.time()) // DAY
        if found is not None and row is not None and row[1] != today:
            with suppress(sqlite3.OperationalError), self._transaction():  # reading goes on where nothing is written
                self._connection.execute("UPDATE facts SET used = ? WHERE key = ?", (today, key))
        return found

    def note_facts(self, key: bytes, facts: Facts) -> None:
        told = _packed(key, facts)
        row = self._row("SELECT told FROM facts WHERE key = ?", key)
        if told is None or (row is not None and row[0] == told):
            return
        with self._transaction():
            count = self._number("SELECT facts FROM totals")
            if self._row("SELECT 1 FROM facts WHERE key = ?", key) is None:
                count += 1
            self._connection.execute(
                "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (key, told, int(time.time()) // DAY),
            )
            if count > self._most_facts:
                count -= self._connection.execute(
                    "DELETE FROM facts WHERE key IN (SELECT key FROM facts WHERE key != ? ORDER BY used LIMIT ?)",
                    (key, count - self._most_facts + self._most_facts // 16),
                ).rowcount
            self._connection.execute("UPDATE totals SET facts = ?", (count,))

    def _make(self) -> None:
        """Makes the tables where there are none."""
        with self._transaction():
            if self._number("PRAGMA user_version") == SCHEMA:
                return
            if self._number("SELECT count(*) FROM sqlite_master"):
                raise sqlite3.DatabaseError("is of another version")
            for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _count(self) -> None:
        """Counts the files, where what is in here may not be all that there is."""
        boot = _boot()
        told = self._row("SELECT * FROM totals")
        size = self._number("SELECT coalesce(sum(size), 0) FROM blocks")
        facts = self._number("SELECT count(*) FROM facts")
        if told != (size, facts, boot):
            add = "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)"
            self._connection.execute("DELETE FROM blocks")
            self._connection.executemany(add, self._found())
            size = self._number("SELECT coalesce(sum(size), 0) FROM blocks")
            self._connection.execute("UPDATE totals SET bytes = ?, facts = ?, boot = ?", (size, facts, boot))
        self._is_counted = True

    def _found(self) -> Iterator[tuple[bytes, int, int]]:
        for block in self._files.all():
            if block[1] > self._budget + UNIT:  # never one of these, and sums are of 64 bits
                self._files.unlink(block[0])
            else:
                yield block

    def _room(self) -> int:
        return self._budget - self._number("PRAGMA page_count") * self._number("PRAGMA page_size") - JOURNAL

    def _evict(self, written: Collection[bytes], now: int) -> bool:
        """Removes what was used least recently until the budget is kept; whether any of it was not there."""
        was_missing = False
        oldest = "SELECT name, used FROM blocks ORDER BY used LIMIT ?"
        room = self._room()
        while self._number("SELECT bytes FROM totals") > room:
            rows = self._connection.execute(oldest, (len(written) + 1,)).fetchall()
            row = next((row for row in rows if row[0] not in written), None)
            if row is None:
                break
            if not isinstance(row[0], bytes) or len(row[0]) != NAME:
                raise sqlite3.DatabaseError("has a name in it that no block has")
            used = self._files.used(row[0])
            if used is not None and row[1] < used <= now:  # readers only touch the file
                self._connection.execute("UPDATE blocks SET used = ? WHERE name = ?", (used, row[0]))
                continue
            was_missing |= used is None
            self._files.unlink(row[0])
            self._forget(row[0])
        return was_missing

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
        """Whoever wants to change anything waits meanwhile. Nothing is changed where an exception comes out."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if _identity(os.stat(self._path)) != self._file:  # others go by the one that is there now
                raise FileNotFoundError(f"{self._path} was replaced")
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._is_counted = False
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")


def is_passing(error: Exception) -> bool:
    """Whether the index may be right all the same."""
    return isinstance(error, (OSError, MemoryError)) or any(word in str(error) for word in _PASSING)


def is_busy(error: Exception) -> bool:
    """Whether another process has it just now."""
    return isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in _PASSING[:2])


def throw_away(folder: str) -> None:
    for suffix in SUFFIXES:
        with suppress(OSError):
            os.unlink(os.path.join(folder, FILE + suffix))


def _own_file(path: str) -> tuple[int, int]:
    """Makes the file if need be, in place of one that somebody else may have had his hands on; which one it is."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            if not is_own_file(os.lstat(path + suffix)):
                os.unlink(path + suffix)
    with suppress(FileExistsError):  # one that is there is not opened: closing it would give up SQLite's locks on it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return _identity(os.lstat(path))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _boot() -> str:
    """Which start of the machine this is: with it, everything may be lost that had not reached the disk."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


def _packed(key: bytes, facts: Facts) -> bytes | None:
    etag = facts.etag.encode("utf-8", "surrogatepass")
    if len(etag) > LONGEST_ETAG:
        return None
    try:
        told = struct.pack("<qq", facts.size, facts.mtime_ns) + etag
    except struct.error:
        return None
    return xxhash.xxh3_128_digest(key + told) + told


def _unpacked(key: bytes, stored: bytes) -> Facts | None:
    """None for what is not as it was stored."""
    if not isinstance(stored, bytes) or len(stored) < 32 or stored[:16] != xxhash.xxh3_128_digest(key + stored[16:]):
        return None
    size, mtime_ns = struct.unpack_from("<qq", stored, 16)
    return Facts(size, stored[32:].decode("utf-8", "surrogatepass"), mtime_ns)
