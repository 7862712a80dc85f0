"""A lock for each of many keys."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

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

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of ``key``, waiting while another thread holds it. Not reentrant. Raises Canceled."""
        with self._lock:
            users = self._users.setdefault(key, _Users())
            users.count += 1
        try:
            with work.holding(users.lock):
                yield
        finally:
            with self._lock:
                users.count -= 1
                if not users.count:
                    del self._users[key]


class _Users:
    """The lock of one key, and how many threads hold it or wait for it."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
