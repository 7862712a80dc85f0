"""The threads that decode ahead of readers: as many as cores, for all caches of a process. Any thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from glassfs import work
from glassfs.errors import Unavailable
from glassfs.threads import DaemonPool

CORES = max(2, os.cpu_count() or 1)
LEAST_AHEAD = 128 << 10
"""Bytes of a block that is worth handing over to another thread: for smaller ones that takes longer."""
_pool = DaemonPool("ahead", CORES)


def run_ahead(task: Callable[[], object]) -> Future[object] | None:
    """Run ``task``, which must not wait for another task, on a thread that works ahead of readers, for this reader.

    It does not run where no thread can be started: no reader waits for it. It should end soon, as other readers' tasks
    wait for it, and nothing stops it when its reader has gone.
    """
    try:
        return _pool.submit(partial(work.done_for, work.derived(), task))
    except Unavailable:
        return None
