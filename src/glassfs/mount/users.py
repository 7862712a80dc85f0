"""Which user a user id belongs to: subordinate ids belong to the user who was given them (``/etc/subuid``).

User namespaces and rootless containers give an ordinary user thousands of ids. Requests under all of them are requests
of one user. Ranges from other sources than the file are not known. Any thread; nothing here raises or waits.
"""

from __future__ import annotations

import os
import pwd
from bisect import bisect_right
from collections.abc import Callable

from glassfs import threads
from glassfs.errors import Unavailable

SUBORDINATE = "/etc/subuid"
LARGEST_FILE, MOST_RANGES = 1 << 20, 10_000
"""Bytes and lines of the file that are read."""
IDS = 1 << 32


class Users:
    """The owners of user ids. ``find`` returns the id of a user by name, and raises KeyError."""

    def __init__(
        self, path: str = SUBORDINATE, find: Callable[[str], int] = lambda name: pwd.getpwnam(name).pw_uid,
    ) -> None:
        self._path = path
        self._find = find
        self._stamp: tuple[int, ...] = ()
        self._is_reading = False
        self._lowest = IDS
        self._ranges: tuple[list[int], list[int], list[int]] = ([], [], [])
        """First ids, ascending, the ids after the last ones, and owners; replaced as a whole."""

    def owner(self, uid: int) -> int:
        """Return the id of the user whom an id belongs to; the id itself if it is no subordinate one."""
        if uid < self._lowest:
            return uid
        firsts, ends, owners = self._ranges
        place = bisect_right(firsts, uid) - 1
        return owners[place] if place >= 0 and uid < ends[place] else uid

    def refresh(self) -> None:
        """Read the file again if it has changed. Call this periodically.

        It is read on a thread of its own, as finding a name may take long: accounts may be on a server.
        """
        if self._is_reading:
            return
        try:
            found = os.stat(self._path)
            stamp: tuple[int, ...] = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        except OSError:
            stamp = ()
        if stamp == self._stamp:
            return
        self._is_reading = True
        try:
            threads.start("users", self._read, stamp)
        except Unavailable:
            self._is_reading = False

    def _read(self, stamp: tuple[int, ...]) -> None:
        try:
            self._set(_lines(self._path) if stamp else [])
            self._stamp = stamp
        except OSError:  # tried again at the next call
            pass
        finally:
            self._is_reading = False

    def _set(self, lines: list[bytes]) -> None:
        """Take over ranges. Of those that overlap, the one that begins first has what both have."""
        owners: dict[bytes, int] = {}
        ranges = []
        for line in lines:
            name, _, numbers = line.strip().partition(b":")
            first, _, count = numbers.partition(b":")
            if first.isdigit() and count.isdigit() and len(numbers) < 24 and 0 < int(first) < IDS:
                if name not in owners:
                    owners[name] = self._owner_named(name, int(first))
                ranges.append((int(first), min(int(first) + int(count), IDS), owners[name]))
        firsts, ends, owned = list[int](), list[int](), list[int]()
        for first_id, end, owner in sorted(ranges):
            start = max(first_id, ends[-1]) if ends else first_id
            if start < end:
                firsts.append(start)
                ends.append(end)
                owned.append(owner)
        self._ranges = firsts, ends, owned
        self._lowest = firsts[0] if firsts else IDS

    def _owner_named(self, name: bytes, otherwise: int) -> int:
        """Return the user id that a line begins with, as a name or number."""
        try:
            return self._find(os.fsdecode(name))
        except (KeyError, ValueError, OSError):
            return int(name) if name.isdigit() and len(name) < 11 else otherwise


def _lines(path: str) -> list[bytes]:
    """Return the first lines of a file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(LARGEST_FILE).splitlines()[:MOST_RANGES]
