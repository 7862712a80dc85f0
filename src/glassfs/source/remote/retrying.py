"""Servers whose requests are coroutines on the event loop, retried until the time is up. Any thread."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any, TypeVar

from glassfs.errors import DeviceFailed, GlassfsError
from glassfs.source.contract import Path
from glassfs.source.remote import loop
from glassfs.source.remote.server import Facts, Listed, Server
from glassfs.threads import DaemonPool

ATTEMPTS = 6
FIRST_PAUSE_SECONDS = 0.1
"""Pause after the first attempt; each later one is twice as long."""
GRACE_SECONDS = 0.5
"""Time that a waiting thread gives the event loop beyond the deadline."""
MOST_HANGING = 32
REPLACE_SECONDS = 0.05
"""Time until a thread that hangs is replaced by another one."""

Result = TypeVar("Result")
Attempt = Callable[[], Coroutine[Any, Any, Result]]


class Retryable(Exception):
    """An attempt failed with ``error``, and another one may succeed."""

    def __init__(self, error: GlassfsError) -> None:
        super().__init__(error)
        self.error = error


class RetryingServer(Server):
    """Subclasses make single attempts, which raise GlassfsError or Retryable."""

    def list(self, path: Path) -> Sequence[Listed]:
        return self._result(path, partial(self._list, path))

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        return self._result(path, partial(self._begin, path, size, known))

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        return loop.start(self._retried(path, partial(self._read, path, offset, size, facts)))

    @abstractmethod
    async def _list(self, path: Path) -> Sequence[Listed]:
        """See ``list``."""

    @abstractmethod
    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        """See ``begin``."""

    @abstractmethod
    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        """See ``fetch``."""

    def _result(self, path: Path, attempt: Attempt[Result]) -> Result:
        future = loop.start(self._retried(path, attempt))
        try:
            return future.result(self.timeout + GRACE_SECONDS)
        except (FutureTimeout, CancelledError):
            future.cancel()
            raise self._timed_out(path) from None

    async def _retried(self, path: Path, attempt: Attempt[Result]) -> Result:
        deadline = time.monotonic() + self.timeout
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(ATTEMPTS)):
            try:
                return await asyncio.wait_for(attempt(), max(0.0, deadline - time.monotonic()))
            except (TimeoutError, asyncio.TimeoutError):
                raise self._timed_out(path) from None
            except Retryable as failed:
                if not left or time.monotonic() + pause >= deadline:
                    raise failed.error.at(self.shown(path)) from None
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def _timed_out(self, path: Path) -> DeviceFailed:
        return DeviceFailed(f"no answer within {self.timeout:g} seconds", self.shown(path))


class Call:
    """One call on a thread of ``BlockingCalls``. ``is_abandoned`` once its caller has stopped waiting for it."""

    def __init__(self) -> None:
        self.is_abandoned = self.is_running = False


class BlockingCalls:
    """Calls that block, each on a daemon thread, for coroutines that may stop waiting at any moment.

    Cancelling the coroutine abandons the call: its thread ends when the call returns. While too many abandoned calls
    hang, further ones are refused with DeviceFailed.
    """

    def __init__(self, name: str, most: int) -> None:
        self._pool = DaemonPool(name, most)
        self._lock = threading.Lock()
        self._hanging = 0

    async def run(self, work: Callable[[Call], Result]) -> Result:
        """Return or raise what ``work`` does. Raises Unavailable without threads."""
        if self._hanging >= MOST_HANGING:
            raise DeviceFailed("does not answer")
        call = Call()
        future = self._pool.submit(partial(self._run, work, call))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with self._lock:
                call.is_abandoned = True
                self._hanging += call.is_running
            if not future.cancel():
                # Not at once: the calls that a new thread would take may be about to be canceled, too.
                asyncio.get_running_loop().call_later(REPLACE_SECONDS, self._pool.abandon, future)
            raise

    def _run(self, work: Callable[[Call], Result], call: Call) -> Result:
        with self._lock:
            if call.is_abandoned:
                raise CancelledError
            call.is_running = True
        try:
            return work(call)
        finally:
            with self._lock:
                call.is_running = False
                self._hanging -= call.is_abandoned
