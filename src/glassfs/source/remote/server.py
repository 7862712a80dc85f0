"""The contract of a remote server, which lists folders and reads objects by any protocol.

Every method may be called from any thread and ends within ``timeout`` seconds, retries included. Implementations check
answers before they return them: the length of the bytes and the version of the object.

Errors: NotFound, NotAllowed; Changed if the object is not in the version asked for; DeviceFailed if the server does not
answer, or answers nonsense. No message contains a secret.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from glassfs import threads, work
from glassfs.errors import DeviceFailed, GlassfsError
from glassfs.forks import PerProcess
from glassfs.settings import settings
from glassfs.source.contract import Path
from glassfs.threads import DaemonPool

SECOND = 10**9
"""In nanoseconds."""
NO_HOST = "there is no host of this name"
MOST_NAMES = 1_000_000
"""Names that one folder may have. A name takes some 400 bytes."""

ATTEMPTS = 6
TRIES = 3
"""How many silent attempts fit into the timeout: each fails after this part of it without a byte."""
MOST_HANGING = 32

Result = TypeVar("Result")
Attempt = Callable[[], Coroutine[Any, Any, Result]]


class Retryable(DeviceFailed):
    """An attempt failed, and another one may succeed."""


class Facts(NamedTuple):
    """Size, version and time of an object as its server reports them.

    ``etag`` differs between versions of the bytes ("": unknown). ``mtime_ns`` counts from 1970, UTC (0: unknown).
    """

    size: int
    etag: str
    mtime_ns: int

    def fits(self, now: Facts) -> bool:
        """Return whether an answer with the facts ``now`` may be of this version.

        Listings may leave ETags out, or give weak ones (``W/``) where answers have strong ones. Times count then, and
        those of an answer may be in whole seconds.
        """
        if self.size != now.size or (self.etag and not now.etag):
            return False
        if self.etag and self.etag.removeprefix("W/") != now.etag.removeprefix("W/"):
            return False
        return self.has_strong_etag or now.mtime_ns in (self.mtime_ns, self.mtime_ns // SECOND * SECOND)

    @property
    def is_possible(self) -> bool:
        """Whether an object can have the size."""
        return 0 <= self.size <= 1 << 62

    @property
    def has_strong_etag(self) -> bool:
        """Whether other bytes always have another ETag."""
        return self.etag not in ("", "*") and not self.etag.startswith("W/")


class Listed(NamedTuple):
    """A name in a folder, or what follows the folder in a key if no file can have that name (``is_name``).

    ``facts`` is None for a folder. ``omitted`` says why the name is not shown.
    """

    name: str
    facts: Facts | None
    omitted: str = ""


def is_name(name: str) -> bool:
    """Return whether a file can have this name."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


NO_NAME = "object name: no file can have a name that is empty, . or .., or contains a zero byte"


class Server:
    """Objects under paths. Subclasses make single attempts, which raise GlassfsError or Retryable.

    ``name`` is the root without secrets and without a slash at the end. ``identity`` tells the server from all others;
    it contains no secret either. ``timeout`` is in seconds. ``has_lasting_versions`` if ETags are never used again.
    """

    name: str
    identity: str
    timeout: float
    has_lasting_versions = False

    def shown(self, path: Path) -> str:
        """Return the URL of an object, without secrets."""
        return "/".join((self.name, *path))

    def list(self, path: Path) -> Sequence[Listed]:
        """Return the contents of a folder in any order.

        Raises NotFound for a missing folder, or returns nothing if the server cannot tell it from an empty one.
        """
        return result_of(self._retried(path, lambda: self._list(path)), self.timeout, self.shown(path))

    def begin(self, path: Path, size: int, known: Facts | None = None) -> tuple[Facts, bytes] | None:
        """Return an object's facts and up to ``size`` of its first bytes, in one request; None if they equal ``known``.
        """
        return result_of(self._retried(path, lambda: self._begin(path, size, known)), self.timeout, self.shown(path))

    def fetch(self, path: Path, offset: int, size: int, facts: Facts) -> Future[bytes]:
        """Start to read bytes of an object in that version; all of them lie inside it.

        The result has exactly ``size`` bytes. Cancelling the future cancels the request.
        """
        return start(self._retried(path, lambda: self._read(path, offset, size, facts)))

    def close(self) -> None:
        """Close connections that do not close by themselves; later requests make new ones."""

    async def _retried(self, path: Path, attempt: Attempt[Result]) -> Result:
        return await retried(attempt, self.timeout, self.shown(path))

    async def _list(self, path: Path) -> Sequence[Listed]:
        raise NotImplementedError

    async def _begin(self, path: Path, size: int, known: Facts | None) -> tuple[Facts, bytes] | None:
        raise NotImplementedError

    async def _read(self, path: Path, offset: int, size: int, facts: Facts) -> bytes:
        raise NotImplementedError


# Requests are coroutines on an event loop with a thread of its own, one per process: they need no thread each, and can
# be canceled at any moment. The loop ends before Python does. Until 3.13 Python ends every thread that returns to it
# during finalization; ending a thread of obstore that way aborts the process (SIGABRT).


def result_of(coroutine: Coroutine[Any, Any, Result], timeout: float, shown: str) -> Result:
    """Return the result of a coroutine that ends by itself within ``timeout``, for a thread that waits."""
    future = start(coroutine)
    try:
        if work.is_done(future, timeout + settings.server_grace):
            with suppress(CancelledError):
                return future.result()
        raise DeviceFailed(f"no answer within {timeout:g} seconds", shown)
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
            raise DeviceFailed(f"no answer within {timeout:g} seconds", shown) from None
        except Retryable as failed:
            if not left or time.monotonic() + pause >= deadline:
                raise DeviceFailed(failed.reason, shown) from None
        except GlassfsError as error:
            raise error.at(shown) from None
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))
        pause *= 2
    raise AssertionError("the last attempt returns or raises")


def start(coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Run a coroutine on the loop. Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop.get())


def _make_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    thread = threads.start("requests", loop.run_forever)
    atexit.register(_end_loop, loop, thread, os.getpid())
    return loop


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    """Cancel all requests and end the loop; later requests get another one."""
    global _loop
    if process != os.getpid():  # inherited by a fork
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
        self._pool = DaemonPool(name)
        self._free = asyncio.Semaphore(most)
        self._hanging: set[Future[Any]] = set()

    async def run(self, work: Callable[[threading.Event], Result]) -> Result:
        """Return or raise what ``work`` does. Raises Unavailable without threads."""
        if len(self._hanging) >= MOST_HANGING:
            raise DeviceFailed("does not answer")
        # A thread cannot be ended from outside. So a call whose caller has stopped waiting keeps its thread, and
        # another call takes its place, up to a number of threads that a machine can bear.
        await self._free.acquire()
        abandoned, pause = threading.Event(), 0.0
        try:
            future = self._pool.submit(partial(work, abandoned))
            try:
                return await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                abandoned.set()
                self._hanging.add(future)
                future.add_done_callback(self._hanging.discard)
                # Not at once: the calls that would take its place may be about to be canceled, too.
                pause = settings.server_replace
                raise
        finally:
            asyncio.get_running_loop().call_later(pause, self._free.release)


calls: PerProcess[BlockingCalls] = PerProcess(lambda: BlockingCalls("calls", 8))
"""Those of the standard library and of botocore."""
