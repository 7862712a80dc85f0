"""A lock for each of many keys."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from glassfs import work


class KeyedLock:
    """Locks by key. A lock exists only while a thread holds it or waits for it. Any thread.

    ::

        with locks.hold(key):
            ...  # no other thread is here with an equal key
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[Hashable, _Users] = {}

    def hold(self, key: Hashable) -> _Hold:
        """Hold the lock of ``key``, waiting while another thread holds it. Not reentrant. Raises Canceled."""
        return _Hold(self, key)

    def _leave(self, key: Hashable, users: _Users) -> None:
        with self._lock:
            users.count -= 1
            if not users.count:
                del self._users[key]


class _Hold:
    """Holds the lock of one key during a ``with``."""

    __slots__ = ("_holding", "_key", "_locks", "_users")

    def __init__(self, locks: KeyedLock, key: Hashable) -> None:
        self._locks = locks
        self._key = key

    def __enter__(self) -> None:
        locks, key = self._locks, self._key
        with locks._lock:
            users = locks._users.get(key)
            if users is None:
                users = locks._users[key] = _Users()
            users.count += 1
        self._users = users
        self._holding = work.holding(users.lock)
        try:
            self._holding.__enter__()
        except BaseException:
            self._locks._leave(self._key, users)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._holding.__exit__()
        finally:
            self._locks._leave(self._key, self._users)


class _Users:
    """The lock of one key, and how many threads hold it or wait for it."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
