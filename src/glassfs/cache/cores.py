"""Sharing the cores: no more threads make blocks at a time than there are cores. Any thread.

More threads would make nothing faster, and would keep short requests from a core. Work in many short steps outside of
the interpreter has one core: threads that hand over the interpreter at each step take longer than one after another.
The threads that decode ahead of readers are here as well. All caches of a process share all of it.
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
from glassfs.settings import settings
from glassfs.threads import DaemonPool

CORES = max(2, os.cpu_count() or 1)
LEAST_AHEAD = 128 << 10
"""Bytes of a block that is worth handing over to another thread: for smaller ones that takes longer."""


class CoreLimiter:
    """Lets ``count`` threads work at a time. A thread that holds a core already, of any limiter, takes no second one.

    The wait for a core is short: a large block that is decoded ahead must not hold up readers of other blocks.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold a core while working."""
        if _thread.limiter is not None:
            yield
            return
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Take a core for this thread, which has none, if one becomes free soon."""
        # A thread that gets no core in time works without one: better a bit slower than behind a block of seconds.
        _thread.limiter = self if self._free.acquire(timeout=settings.core_wait) else None

    def release(self) -> None:
        if _thread.limiter is self:
            _thread.limiter = None
            self._free.release()


class _HeldCore(threading.local):
    limiter: CoreLimiter | None = None
    """The one of which this thread holds a core."""


_thread = _HeldCore()
_cores = PerProcess(lambda: CoreLimiter(CORES))
_ahead = DaemonPool("ahead", CORES)


def cores() -> CoreLimiter:
    """Return the limiter of this process."""
    return _cores.get()


@contextmanager
def released() -> Iterator[None]:
    """Let other threads work while this one, which may hold a core, waits for something."""
    limiter = _thread.limiter
    if limiter is None:
        yield
        return
    limiter.release()
    try:
        yield
    finally:
        limiter.acquire()


def run_ahead(task: Callable[[], object]) -> None:
    """Run ``task``, which must not wait for another task, on a thread that works ahead of readers, for this reader.

    The task may never run where no thread can be started: no reader waits for it. It should end soon, as other readers'
    tasks wait for it, and nothing stops it when its reader has gone.
    """
    with suppress(Unavailable):
        _ahead.submit(partial(work.done_for, work.derived(), task))
