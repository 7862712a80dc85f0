"""The event loop of all requests to servers, on a thread of its own.

As requests run in one loop they can be given up at any moment, and a hundred of them need no thread. It is made when it
is first needed, and anew in a process that was forked off.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

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
            _loop = asyncio.new_event_loop()
            _process = os.getpid()
            threading.Thread(target=_loop.run_forever, name="glassfs-requests", daemon=True).start()
        return _loop


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)
