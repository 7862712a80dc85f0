"""Ctrl-C, SIGTERM and a closed terminal as one exception, so that what was begun is cleared away. Main thread only."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SENTENCES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "its terminal was closed"}


class Stopped(BaseException):
    """A signal asked the program to end. ``status`` is the exit status that shells expect then."""

    def __init__(self, number: int) -> None:
        super().__init__(_SENTENCES[signal.Signals(number)])
        self.status = 128 + number


def leave(status: int) -> NoReturn:
    """Ends the process whatever its threads wait for. What is named in the system for worker processes is given back
    before, or the one who looks after that would tell of it.
    """
    if util := sys.modules.get("multiprocessing.util"):
        util._run_finalizers(0)
    os._exit(status)


def leave_at_once(number: int, _frame: FrameType | None) -> None:
    leave(128 + number)


@contextmanager
def stoppable() -> Iterator[None]:
    """In here the first such signal raises Stopped. Of those after it Ctrl-C ends the process at once; the others are
    ignored, as it is already being cleared up.
    """
    caught = [number for number in _SENTENCES if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in caught:
            signal.signal(other, signal.SIG_IGN if other != signal.SIGINT else leave_at_once)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
