"""The event loop of all requests to servers, on a thread of its own.

As requests run in one loop they can be given up at any moment, and a hundred of them need no thread. It is made when it
is first needed, and anew in a process that was forked off.

It ends before Python does. Until 3.13 Python ends every thread that comes back to it once it is ending; one of
obstore's that still has to let go of an answer cannot be ended so, and takes the process with it (SIGABRT).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

LEAVING = 0.05
"""Seconds in which obstore's threads let go of the last answers."""
PATIENCE = 2.0

Result = TypeVar("Result")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_process = 0


def start(work: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Begins some work. Cancelling it ends it where it waits."""
    return asyncio.run_coroutine_threadsafe(work, _running())


def _running() -> asyncio.AbstractEventLoop:
    global _loop, _process
    with _lock:
        if _loop is None or _process != os.getpid():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="glassfs-requests", daemon=True)
            thread.start()
            atexit.register(_end, loop, thread, os.getpid())
            _loop, _process = loop, os.getpid()
        return _loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    """Gives up what is under way. Whoever asks for something after that gets another loop."""
    global _loop
    if process != os.getpid():
        return
    with _lock:
        if _loop is loop:
            _loop = None

    async def stop() -> None:
        for task in asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
            task.cancel()
        loop.call_later(0, loop.stop)

    asyncio.run_coroutine_threadsafe(stop(), loop)
    thread.join(PATIENCE)
    time.sleep(LEAVING)


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)
