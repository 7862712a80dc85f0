"""Wait for a condition in tests. The one place with a deadline; it is generous, as only a failing test reaches it.

A machine may stand still for minutes, as virtual machines do while they are moved. Of such a pause only
``STEP_SECONDS`` count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from glassfs import work

SECONDS = 120.0
PAUSE_SECONDS = 0.005
STEP_SECONDS = 1.0

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], seconds: float = SECONDS, what: str = "the condition") -> Value:
    """Poll ``condition`` until its value is true and return that value.

    Raises AssertionError, naming ``what``, if it is still false after ``seconds``.
    """
    waited, before = 0.0, time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        waited, before = waited + min(now - before, STEP_SECONDS), now
        if waited > seconds:
            raise AssertionError(f"{what} did not become true within {seconds:g} seconds")
        time.sleep(PAUSE_SECONDS)
    return value


def wait_for(event: threading.Event, seconds: float = SECONDS, what: str = "the event") -> None:
    """Block until ``event`` is set. Raises AssertionError, naming ``what``, after ``seconds``."""
    left = seconds
    while not event.wait(min(left, STEP_SECONDS)):
        left -= STEP_SECONDS
        if left <= 0:
            raise AssertionError(f"{what} was not set within {seconds:g} seconds")


_waiting: set[int] = set()
_patiently = work.patiently


def _noted(*words: Any, **more: Any) -> bool:
    _waiting.add(threading.get_ident())
    try:
        return _patiently(*words, **more)
    finally:
        _waiting.discard(threading.get_ident())


# Looking at the frames of other threads would need sys._current_frames(), in which Python 3.11 deadlocks with itself if
# the garbage collector runs there and finds a threading.local.
work.patiently = _noted


def is_waiting(thread: threading.Thread) -> bool:
    """Return whether a thread waits for another one or for a server, by ``work.patiently``."""
    return thread.ident in _waiting
