"""A lock for each of many keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

from glassfs import work

Value = TypeVar("Value")


class KeyedLock:
    """Locks by key. A lock exists only while a thread holds it or waits for it. Any thread.

    Keys are compared while other threads change the mapping: they consist of strings, numbers and objects that are
    compared by identity.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, threading.Lock] = {}

    def once(self, key: Hashable, known: Callable[[], Value | None], make: Callable[[], Value]) -> Value:
        """Return what ``known`` returns, or what ``make`` returns if that is None.

        Of callers with equal keys one at a time is asked: the others wait, and find what it has made. Not reentrant.
        Raises Canceled.
        """
        lock = threading.Lock()
        with lock:
            # The lock of the thread that holds the key is in the mapping. A thread that waits for it tries again when
            # that one has left, so the threads that wait need not be counted.
            while (other := self._held.setdefault(key, lock)) is not lock:
                with work.holding(other):
                    pass
            try:
                found = known()
                return make() if found is None else found
            finally:
                del self._held[key]
