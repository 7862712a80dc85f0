"""Sharing the cores: no more threads make blocks at a time than there are cores. Any thread.

More threads would make nothing faster, and would keep short requests from a core. The threads that decode ahead of
readers are here as well. All caches of a process share both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from glassfs import work
from glassfs.errors import Unavailable
from glassfs.forks import PerProcess
from glassfs.threads import DaemonPool

CORES = max(2, os.cpu_count() or 1)
LONGEST_WAIT_SECONDS = 0.05
"""How long a thread waits for a core before it works without one."""


class CoreLimiter:
    """Lets ``count`` threads work at a time. A thread that holds a core already takes no second one.

    The wait for a core is short: a large block that is decoded ahead must not hold up readers of other blocks.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._thread = _Thread()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold a core while working."""
        if self._thread.has_core:
            yield
            return
        self._acquire()
        try:
            with work.sharing(self):
                yield
        finally:
            self._release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let other threads work while this one waits for something."""
        if not self._thread.has_core:
            yield
            return
        self._release()
        try:
            yield
        finally:
            self._acquire()

    def _acquire(self) -> None:
        has_core = self._free.acquire(blocking=False)
        if not has_core:
            with work.awaiting(self):
                has_core = self._free.acquire(timeout=LONGEST_WAIT_SECONDS)
        self._thread.has_core = has_core

    def _release(self) -> None:
        if self._thread.has_core:
            self._thread.has_core = False
            self._free.release()


class _Thread(threading.local):
    has_core = False


_limiter = PerProcess(lambda: CoreLimiter(CORES))
_ahead = DaemonPool("ahead", CORES)


def cores() -> CoreLimiter:
    """Return the limiter of this process."""
    return _limiter.get()


def run_ahead(task: Callable[[], object]) -> None:
    """Run ``task``, which must not wait for another task, on a thread that works ahead of readers, for this reader.

    The task may never run where no thread can be started: no reader waits for it. It should end soon, as other readers'
    tasks wait for it, and nothing stops it when its reader has gone.
    """
    with suppress(Unavailable):
        _ahead.submit(partial(work.done_for, work.derived(), task))
