"""One at a time for each of many things. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Turns:
    """A lock for each key, which is there as long as somebody wants it: nobody waits for what others do elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Around what only one thread at a time may do with what ``key`` stands for."""
        with self._lock:
            lock, wanted = self._locks.get(key) or (threading.Lock(), 0)
            self._locks[key] = lock, wanted + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, wanted = self._locks.pop(key)
                if wanted > 1:
                    self._locks[key] = lock, wanted - 1
