"""Turn Ctrl-C, SIGTERM and a closed terminal into one exception, so that cleanup runs. Main thread only."""

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
    """A signal asked the program to end. ``status`` is the exit status that shells expect."""

    def __init__(self, number: int, can_resume: bool = False) -> None:
        super().__init__(_SENTENCES[signal.Signals(number)] + "; continue with --resume" * can_resume)
        self.status = 128 + number


def leave(status: int) -> NoReturn:
    """End the process whatever its threads wait for.

    Shared objects named in the system for worker processes are released first; otherwise Python's resource tracker
    would print a warning.
    """
    if util := sys.modules.get("multiprocessing.util"):
        util._run_finalizers(0)
    os._exit(status)


@contextmanager
def stoppable(can_resume: bool = False) -> Iterator[None]:
    """Raise Stopped for the first such signal. After it, another Ctrl-C ends the process at once; the other signals are
    ignored during cleanup.
    """
    caught = [number for number in _SENTENCES if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in caught:
            end = signal.SIG_IGN if other != signal.SIGINT else lambda again, _frame: leave(128 + again)
            signal.signal(other, end)
        raise Stopped(number, can_resume)

    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
