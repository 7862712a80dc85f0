"""Sharing the cores: no more threads make blocks at a time than there are cores. Any thread.

More threads would make nothing faster, and would keep short requests from a core. The threads that decode ahead of
readers are here as well. All caches of a process share all of it.
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


class _HeldCore(threading.local):
    held: threading.Semaphore | None = None
    """That of the process, if this thread holds a core."""


_thread = _HeldCore()
_free = PerProcess(lambda: threading.Semaphore(CORES))
_ahead = DaemonPool("ahead", CORES)


@contextmanager
def core() -> Iterator[None]:
    """Hold a core while working. A thread that holds one already takes no second one."""
    if _thread.held is not None:
        yield
        return
    _acquire()
    try:
        yield
    finally:
        _release()


@contextmanager
def released() -> Iterator[None]:
    """Let other threads work while this one, which may hold a core, waits for something."""
    if _thread.held is None:
        yield
        return
    _release()
    try:
        yield
    finally:
        _acquire()


def _acquire() -> None:
    free = _free.get()
    # A thread that gets no core in time works without one: better a bit slower than behind a block of seconds.
    _thread.held = free if free.acquire(timeout=settings.core_wait) else None


def _release() -> None:
    held, _thread.held = _thread.held, None
    if held is not None:
        held.release()


def run_ahead(task: Callable[[], object]) -> None:
    """Run ``task``, which must not wait for another task, on a thread that works ahead of readers, for this reader.

    The task may never run where no thread can be started: no reader waits for it. It should end soon, as other readers'
    tasks wait for it, and nothing stops it when its reader has gone.
    """
    with suppress(Unavailable):
        _ahead.submit(partial(work.done_for, work.derived(), task))
