"""Work has an owner, a budget and an end.

The thread that takes a request begins a ``Work``. What may take long calls ``check`` again and again, at each read of a
source, each block that is made and each batch of rows; what waits for another thread or a server waits ``patiently``.
Both raise ``Canceled`` soon after the work was canceled. Formats and views read through sources and caches that check.

Work is stopped or goes on; it is never paused, so no lock, memory or half-made block waits for the sake of another
user. A thread without a work is never stopped here. Any thread; all but ``Work.cancel`` concern the calling one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from glassfs.errors import Unavailable
from glassfs.settings import settings
from glassfs.threads import DaemonPool

CORES = max(2, os.cpu_count() or 1)
LEAST_AHEAD = 128 << 10
"""Bytes of a block that is worth handing over to another thread: for smaller ones that takes longer."""
_ahead = DaemonPool("ahead", CORES)

Result = TypeVar("Result")


class Canceled(BaseException):
    """No caller waits for the result any more. Not an Exception, so that nothing takes it for damage of a file."""


class OverBudget(Canceled):
    """The work took more than its budget."""


@dataclass(slots=True)
class Budget:
    """``size`` bytes that are left, and the processor time of the thread, in seconds, at which it is used up."""

    size: int
    until: float


class Work:
    """What a thread does for ``owner``, a user id, or -1 if no user asked."""

    # Defaults of the class: each request makes a work, and most never change them.
    is_canceled = False
    is_shielded = False
    budget: Budget | None = None

    def __init__(self, owner: int = -1) -> None:
        self.owner = owner

    def cancel(self) -> None:
        """Have the thread that does the work stop soon."""
        self.is_canceled = True


class _Current(threading.local):
    work: Work | None = None


_thread = _Current()


def current() -> Work | None:
    """Return the work of this thread."""
    return _thread.work


def begin(work: Work | None) -> None:
    """Have this thread do that work from now on."""
    _thread.work = work


def derived() -> Work:
    """Return a work for another thread on behalf of this one's: of the same owner.

    The caller cancels it, if it may be long.
    """
    work = _thread.work
    return Work(-1 if work is None else work.owner)


def done_for(work: Work, do: Callable[[], Result]) -> Result:
    """Return what ``do`` returns, called as part of that work."""
    before, _thread.work = _thread.work, work
    try:
        return do()
    finally:
        _thread.work = before


def run_ahead(task: Callable[[], object]) -> Future[object] | None:
    """Run ``task``, which must not wait for another task, on a thread that works ahead of readers, for this reader.

    It does not run where no thread can be started: no reader waits for it. It should end soon, as other readers' tasks
    wait for it, and nothing stops it when its reader has gone.
    """
    try:
        return _ahead.submit(partial(done_for, derived(), task))
    except Unavailable:
        return None


def check(size: int = 0) -> None:
    """Raise Canceled if the work was canceled; OverBudget, too, after counting ``size`` bytes read or decoded."""
    work = _thread.work
    if work is None:
        return
    budget = work.budget
    if budget is not None:
        budget.size -= size
        if (budget.size < 0 or time.thread_time() > budget.until) and not work.is_shielded:
            raise OverBudget
    _stop(work)


def _stop(work: Work) -> None:
    """Raise Canceled for canceled work, unless it is shielded."""
    if work.is_canceled and not work.is_shielded:
        raise Canceled


def limited(size: int, seconds: float, do: Callable[[], Result]) -> Result:
    """Return what ``do`` returns. Raises OverBudget after so many bytes or seconds of processor time.

    Inside of another budget, that one holds.
    """
    work = _thread.work or Work()
    outer = work.budget
    work.budget = outer or Budget(size, time.thread_time() + seconds)
    try:
        return done_for(work, do)
    finally:
        work.budget = outer


@contextmanager
def shielded() -> Iterator[None]:
    """Let what others wait for as well go on to a point where they can continue it. Keep it short."""
    work = _thread.work or Work()
    before, work.is_shielded = work.is_shielded, True
    try:
        yield
    finally:
        work.is_shielded = before


def patiently(wait_for: Callable[[float], bool], seconds: float = threading.TIMEOUT_MAX) -> bool:
    """Wait up to ``seconds`` until ``wait_for``, which waits for so many, returns True; return whether it did.

    Raises Canceled.
    """
    work = _thread.work
    if work is None:
        return wait_for(seconds)
    until = time.monotonic() + seconds
    # In short waits, as nothing could wake a thread that waits for any lock, socket or condition when its work is
    # canceled.
    while True:
        _stop(work)
        left = until - time.monotonic()
        if wait_for(max(0.0, min(settings.cancel_check, left))):
            return True
        if left <= settings.cancel_check:
            return False


def is_done(future: Future[Any], seconds: float = threading.TIMEOUT_MAX) -> bool:
    """Wait up to ``seconds`` for a future; return whether it is done. Raises Canceled."""
    return future.done() or patiently(lambda left: bool(wait((future,), left).done), seconds)


@contextmanager
def holding(lock: threading.Lock | threading.RLock | threading.Condition) -> Iterator[None]:
    """Hold a lock that others may hold for long. Raises Canceled."""
    if not lock.acquire(False):
        patiently(lambda seconds: lock.acquire(timeout=seconds))
    try:
        yield
    finally:
        lock.release()
