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
        self._locks: dict[Hashable, tuple[threading.Lock, list[int]]] = {}
        """The lock of each key, with the numbers of the threads that hold it or wait for it."""

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of ``key``, waiting while another thread holds it. Not reentrant. Raises Canceled."""
        thread = threading.get_ident()
        with self._lock:
            lock, users = self._locks.setdefault(key, (threading.Lock(), []))
            users.append(thread)
        try:
            with work.holding(lock):
                yield
        finally:
            with self._lock:
                users.remove(thread)
                if not users:
                    del self._locks[key]
