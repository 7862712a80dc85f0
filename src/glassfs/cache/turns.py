"""Whose turn it is to work: no more threads make blocks at a time than there are cores.

More would make nothing faster, and would keep those from a core who have a question of a few microseconds. The threads
that work ahead of readers are here as well, for all caches of this process together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

WORKERS = max(2, os.cpu_count() or 1)
LONGEST_DELAY = 0.05
"""Seconds that a thread waits at most for its turn to make a block."""


class Turns:
    """A turn for each thread that may work at the same time; one that has a turn already takes no second.

    Nobody waits for long: a large block that is made ahead must not hold up those who want other blocks.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._thread = _Thread()

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self._thread.has_turn:
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give_up()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """The other way round: others may work while this thread waits for something."""
        if not self._thread.has_turn:
            yield
            return
        self._give_up()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        self._thread.has_turn = self._free.acquire(timeout=LONGEST_DELAY)

    def _give_up(self) -> None:
        if self._thread.has_turn:
            self._thread.has_turn = False
            self._free.release()


class _Thread(threading.local):
    has_turn = False


class Workers:
    """The threads that work ahead, and the turns of all who make blocks."""

    def __init__(self) -> None:
        self.turns = Turns(WORKERS)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, task: Callable[[], object]) -> None:
        """Runs ``task``, which must not wait for another task, soon or, where there can be no thread, perhaps never."""
        with self._lock:
            # Made on first use: a thread must not be there when the daemon forks.
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, "glassfs-ahead")
        with suppress(RuntimeError):  # no thread can be started: nobody waits for what is done ahead
            self._pool.submit(task)


_workers = Workers()


def workers() -> Workers:
    """Those of this process."""
    return _workers


def _renew() -> None:
    """A process that was forked off has none of the threads."""
    global _workers
    _workers = Workers()


os.register_at_fork(after_in_child=_renew)
