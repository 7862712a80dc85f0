"""The event loop of all requests to servers, on a thread of its own: one per process. Any thread.

Requests on a loop need no thread each and can be cancelled at any moment.

The loop ends before Python does. Until 3.13 Python ends every thread that returns to it during finalization; ending a
thread of obstore that way aborts the process (SIGABRT).
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from glassfs import threads
from glassfs.forks import PerProcess, generation

RELEASE_SECONDS = 0.05
"""Time that obstore's threads get to release the last answers."""
JOIN_SECONDS = 2.0

Result = TypeVar("Result")


def start(work: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Run a coroutine on the loop. Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(work, _current.get())


def _make() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    thread = threads.start("requests", loop.run_forever)
    atexit.register(_end, loop, thread, generation())
    return loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, made_in: int) -> None:
    """Cancel all requests and end the loop; later requests get another one."""
    global _current
    if made_in != generation():
        return
    _current = PerProcess(_make)

    async def stop() -> None:
        for task in asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
            task.cancel()
        loop.call_later(0, loop.stop)

    asyncio.run_coroutine_threadsafe(stop(), loop)
    thread.join(JOIN_SECONDS)
    time.sleep(RELEASE_SECONDS)


_current: PerProcess[asyncio.AbstractEventLoop] = PerProcess(_make)
