"""Work has an owner, a budget and an end.

The thread that takes a request begins a ``Work``: an engine for a request of the kernel, ``TimedCalls`` for a
call with a timeout. What may take long calls ``check`` again and again, at each read of a source, each block that is
made and each batch of rows; what waits for another thread or a server waits ``patiently``. Both raise ``Canceled`` soon
after the work was canceled. Formats and views need not know of this: they read through sources and caches that check.

Work that takes too much of what others need pauses at its checks. Others may wait for what it holds meanwhile, such as
a lock, memory or a block that it makes: so the work says what it holds (``sharing``), those that wait say for what
(``awaiting``), and while they wait it pauses no more than they would.

A thread without a work is never stopped here: Python raises KeyboardInterrupt where the library is used. Every function
may be called from any thread; all but ``Work.cancel`` concern the calling one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

CHECK_SECONDS = 0.2
"""A thread that waits looks so often whether its work was canceled. No pause is longer."""
LEAST_PAUSE_SECONDS = 0.001
"""Shorter pauses are added up, as beginning one takes time, too."""
UNTIMED_CHECKS = 4
"""Checks before processor time counts in a budget: most work needs fewer, and asking for the time takes longer."""

Result = TypeVar("Result")


class Canceled(BaseException):
    """No caller waits for the result any more. Not an Exception, so that nothing takes it for damage of a file."""


class OverBudget(Canceled):
    """The work took more than its budget."""


class Work:
    """What a thread does for ``owner``, a user id, or -1 if no user asked."""

    # Defaults of the class: each request makes a work, and most never change them.
    is_canceled = False
    holds: tuple[object, ...] = ()
    """What others may wait for until this work goes on."""
    awaits: object = None
    """What its thread waits for."""
    is_waiting = False
    """Whether its thread waits for another one, and so takes no processor time."""
    steps = 0
    """How often it was checked."""
    slowdown = 0.0
    """For how long it pauses at each check, for the sake of others, as a multiple of the time that it computed."""
    computed: float | None = None
    """The processor time of its thread at the last such check, in seconds."""
    is_shielded = False
    budget: _Budget | None = None

    def __init__(self, owner: int = -1) -> None:
        self.owner = owner

    def cancel(self) -> None:
        """Have the thread that does the work stop soon."""
        self.is_canceled = True


class _Budget:
    """What is left of some bytes, and of processor time in seconds after ``UNTIMED_CHECKS``."""

    __slots__ = ("checks", "seconds", "size", "until")

    def __init__(self, size: int, seconds: float) -> None:
        self.size = size
        self.seconds = seconds
        self.checks = 0
        self.until: float | None = None

    def spend(self, size: int, is_shielded: bool) -> None:
        self.size -= size
        self.checks += 1
        is_over = self.size < 0
        if self.checks > UNTIMED_CHECKS:
            now = time.thread_time()
            if self.until is None:
                self.until = now + self.seconds
            is_over = is_over or now > self.until
        if is_over and not is_shielded:
            raise OverBudget


class _Thread(threading.local):
    work: Work | None = None


class Lock(Protocol):
    """A lock of ``threading``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


_thread = _Thread()
_waiting: set[Work] = set()
"""All work that waits for something."""
_pauses: set[threading.Event] = set()
"""Those of the pauses of now. Set when another work begins to wait."""


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
    made = Work(owner=-1 if work is None else work.owner)
    made.slowdown = 0.0 if work is None else work.slowdown
    return made


def done_for(work: Work, do: Callable[[], Result]) -> Result:
    """Return what ``do`` returns, called as part of that work."""
    before, _thread.work = _thread.work, work
    try:
        return do()
    finally:
        _thread.work = before


def check(size: int = 0) -> None:
    """Raise Canceled if the work was canceled; OverBudget, too, after counting ``size`` bytes read or decoded."""
    work = _thread.work
    if work is not None:
        work.steps += 1
        if work.is_canceled:
            _stop(work)
        if work.budget is not None:
            work.budget.spend(size, work.is_shielded)
        if work.slowdown and not work.is_shielded:
            _pause(work)


def _stop(work: Work) -> None:
    """Raise Canceled for canceled work, unless it is shielded."""
    if not work.is_shielded:
        raise Canceled


def _pause(work: Work) -> None:
    """Pause for as long as the work should since it paused last, or until another one waits that should pause less."""
    computed = time.thread_time()
    if work.computed is None:
        work.computed = computed
        return
    slowdown = _slowdown(work)
    seconds = min(CHECK_SECONDS, slowdown * (computed - work.computed))
    if seconds < LEAST_PAUSE_SECONDS:
        return
    until = time.monotonic() + seconds
    is_awaited = threading.Event()
    _pauses.add(is_awaited)
    try:
        while (left := until - time.monotonic()) > 0:
            is_awaited.clear()  # before the next look, or one that begins to wait now would be missed
            if _slowdown(work) < slowdown:
                break
            is_awaited.wait(left)
    finally:
        _pauses.discard(is_awaited)
    work.computed = time.thread_time()


def _slowdown(work: Work) -> float:
    """Return the slowdown of a work, or the least of those that wait for it, also by way of others."""
    waiting = tuple(_waiting)
    if not any(other.slowdown < work.slowdown for other in waiting):
        return work.slowdown
    waiting_for: dict[object, list[Work]] = {}
    for other in waiting:
        waiting_for.setdefault(other.awaits, []).append(other)
    found = [work]
    for one in found:
        for thing in one.holds:
            found += [other for other in waiting_for.pop(thing, ()) if other is not work]
    return min(one.slowdown for one in found)


def limited(size: int, seconds: float, do: Callable[[], Result]) -> Result:
    """Return what ``do`` returns. Raises OverBudget after so many bytes or seconds of processor time.

    Inside of another budget, that one holds.
    """
    before = _thread.work
    work = _thread.work = before or Work()
    outer = work.budget
    work.budget = outer or _Budget(size, seconds)
    try:
        return do()
    finally:
        work.budget = outer
        _thread.work = before


@contextmanager
def shielded() -> Iterator[None]:
    """Let what others wait for as well go on to a point where they can continue it. Keep it short."""
    work = _thread.work
    if work is None or work.is_shielded:
        yield
        return
    work.is_shielded = True
    try:
        yield
    finally:
        work.is_shielded = False


class sharing:  # noqa: N801  # used like a function
    """Note that others may wait for these things until this thread goes on. A context manager."""

    __slots__ = ("_things", "_work")

    def __init__(self, *things: object) -> None:
        self._things = things
        self._work = _thread.work

    def __enter__(self) -> None:
        if self._work is not None:
            self._work.holds += self._things

    def __exit__(self, *_: object) -> None:
        if self._work is not None:
            _remove(self._work, self._things)


def _remove(work: Work, things: tuple[object, ...]) -> None:
    """Note that others no longer wait for these things that the work holds."""
    if work.holds == things:  # mostly
        work.holds = ()
        return
    left = list(work.holds)
    for thing in things:
        left.remove(thing)
    work.holds = tuple(left)


@contextmanager
def awaiting(thing: object) -> Iterator[None]:
    """Note that this thread waits for that, so that work which holds it does not pause for others."""
    work = _thread.work or Work()
    before, work.awaits, work.is_waiting = (work.awaits, work.is_waiting), thing, True
    _waiting.add(work)
    for pause in tuple(_pauses):
        pause.set()
    try:
        yield
    finally:
        work.awaits, work.is_waiting = before
        if not work.is_waiting:
            _waiting.discard(work)


def patiently(
    wait_for: Callable[[float], bool], seconds: float = threading.TIMEOUT_MAX, thing: object = None,
) -> bool:
    """Wait up to ``seconds`` until ``wait_for``, which waits for so many, returns True; return whether it did.

    ``thing`` is what others hold meanwhile, if they do (``sharing``). Raises Canceled.
    """
    with awaiting(thing):
        work = _thread.work
        if work is None:
            return wait_for(seconds)
        until = time.monotonic() + seconds
        while True:
            if work.is_canceled:  # not ``check``: a pause would delay those that wait for this one
                _stop(work)
            left = until - time.monotonic()
            if wait_for(max(0.0, min(CHECK_SECONDS, left))):
                return True
            if left <= CHECK_SECONDS:
                return False


def is_done(future: Future[Any], seconds: float = threading.TIMEOUT_MAX) -> bool:
    """Wait up to ``seconds`` for a future; return whether it is done. Raises Canceled."""
    return future.done() or patiently(lambda left: bool(wait((future,), left).done), seconds, future)


class holding:  # noqa: N801  # used like a function
    """Hold a lock that others may hold for long. A context manager. Raises Canceled."""

    __slots__ = ("_lock", "_work")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._work = _thread.work

    def __enter__(self) -> None:
        lock = self._lock
        if not lock.acquire(False):
            patiently(lambda seconds: lock.acquire(timeout=seconds), thing=lock)
        if self._work is not None:
            self._work.holds += (lock,)

    def __exit__(self, *_: object) -> None:
        try:
            if self._work is not None:
                _remove(self._work, (self._lock,))
        finally:
            self._lock.release()
