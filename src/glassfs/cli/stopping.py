"""Ctrl-C, SIGTERM and a closed terminal as one exception, so that what was begun is cleared away. Main thread only."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SENTENCES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "its terminal was closed"}


class Stopped(BaseException):
    """A signal asked the program to end. ``status`` is the exit status that shells expect then."""

    def __init__(self, number: int) -> None:
        super().__init__(_SENTENCES[signal.Signals(number)])
        self.status = 128 + number


@contextmanager
def stoppable() -> Iterator[None]:
    """In here the first such signal raises Stopped; those after it are ignored, as it is already being cleared up."""
    caught = [number for number in _SENTENCES if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in caught:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
