"""Requests to servers as coroutines on an event loop, retried until the time is up. Any thread.

The loop has a thread of its own, one per process: requests need no thread each, and can be canceled at any moment. It
ends before Python does. Until 3.13 Python ends every thread that returns to it during finalization; ending a thread of
obstore that way aborts the process (SIGABRT).
"""

from __future__ import annotations

import asyncio
import atexit
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from glassfs import threads, work
from glassfs.errors import DeviceFailed, GlassfsError
from glassfs.forks import PerProcess, generation
from glassfs.settings import settings
from glassfs.threads import DaemonPool

ATTEMPTS = 6
SILENCE_PARTS = 3
"""An attempt fails after this part of the timeout without a byte, so that there is time for another one."""
MOST_HANGING = 32

Result = TypeVar("Result")
Attempt = Callable[[], Coroutine[Any, Any, Result]]


class Retryable(Exception):
    """An attempt failed with ``error``, and another one may succeed."""

    def __init__(self, error: GlassfsError) -> None:
        super().__init__(error)
        self.error = error


def result_of(coroutine: Coroutine[Any, Any, Result], timeout: float, shown: str) -> Result:
    """Return the result of a coroutine that ends by itself within ``timeout``, for a thread that waits."""
    future = start(coroutine)
    try:
        if work.is_done(future, timeout + settings.server_grace):
            return future.result()
        raise _timed_out(timeout, shown)
    except CancelledError:
        raise _timed_out(timeout, shown) from None
    finally:
        future.cancel()


async def retried(attempt: Attempt[Result], timeout: float, shown: str) -> Result:
    """Return the result of the first attempt that succeeds; errors call the object ``shown``."""
    deadline = time.monotonic() + timeout
    pause = settings.server_first_pause
    for left in reversed(range(ATTEMPTS)):
        # The deadline is for all attempts together: a reader waits for the bytes, not for one of them.
        try:
            return await asyncio.wait_for(attempt(), max(0.0, deadline - time.monotonic()))
        except (TimeoutError, asyncio.TimeoutError):
            raise _timed_out(timeout, shown) from None
        except Retryable as failed:
            if not left or time.monotonic() + pause >= deadline:
                raise failed.error.at(shown) from None
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))
        pause *= 2
    raise AssertionError("the last attempt returns or raises")


def _timed_out(timeout: float, shown: str) -> DeviceFailed:
    return DeviceFailed(f"no answer within {timeout:g} seconds", shown)


def start(coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Run a coroutine on the loop. Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop.get())


def _make_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    thread = threads.start("requests", loop.run_forever)
    atexit.register(_end_loop, loop, thread, generation())
    return loop


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, made_in: int) -> None:
    """Cancel all requests and end the loop; later requests get another one."""
    global _loop
    if made_in != generation():
        return
    _loop = PerProcess(_make_loop)

    async def stop() -> None:
        for task in asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
            task.cancel()
        loop.call_later(0, loop.stop)

    asyncio.run_coroutine_threadsafe(stop(), loop)
    thread.join(settings.server_join)
    time.sleep(settings.server_release)


_loop: PerProcess[asyncio.AbstractEventLoop] = PerProcess(_make_loop)


class BlockingCalls:
    """Calls that block, each on a daemon thread, for coroutines that may stop waiting at any moment.

    Cancelling the coroutine sets the event that the call gets: its thread ends when the call returns. While too many
    such calls hang, further ones are refused with DeviceFailed.
    """

    def __init__(self, name: str, most: int) -> None:
        self._pool = DaemonPool(name, most)
        self._hanging: set[Future[Any]] = set()

    async def run(self, work: Callable[[threading.Event], Result]) -> Result:
        """Return or raise what ``work`` does. Raises Unavailable without threads."""
        if len(self._hanging) >= MOST_HANGING:
            raise DeviceFailed("does not answer")
        # A thread cannot be ended from outside. So a call whose caller has stopped waiting keeps its thread, and
        # another thread takes its place, up to a number of threads that a machine can bear.
        abandoned = threading.Event()
        future = self._pool.submit(partial(work, abandoned))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            abandoned.set()
            if not future.cancel():
                self._hanging.add(future)
                future.add_done_callback(self._hanging.discard)
                # Not at once: the calls that a new thread would take may be about to be canceled, too.
                asyncio.get_running_loop().call_later(settings.server_replace, self._pool.abandon, future)
            raise


calls: PerProcess[BlockingCalls] = PerProcess(lambda: BlockingCalls("calls", 8))
"""Those of the standard library and of botocore."""
