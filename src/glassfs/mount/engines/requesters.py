"""Who asked, and whether he still waits: what the system says of the threads that made requests. Linux.

The kernel does not notify a daemon that a process which read ahead has died, and reports of other requests only that a
signal came, which may be ignored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from contextlib import suppress

from glassfs.mount.engines.crew import Task
from glassfs.settings import settings

_KILLED = 1 << 8
"""SIGKILL in a mask of pending signals; fatal signals of other numbers become one, too."""
_ENDED = (b"Z", b"X")


class Requesters:
    """Looks up which threads still wait. To be used by one thread."""

    def __init__(self) -> None:
        # The kernel gives numbers of our own namespace, 0 for a thread outside; /proc may show another one.
        self._is_known = False
        with suppress(OSError):
            self._is_known = os.readlink("/proc/self") == str(os.getpid())
        self._seen: Set[Task] = frozenset()
        """The work that was in progress at the previous look."""

    def gone(self, asked: Sequence[Task]) -> list[Task]:
        """Return the work in progress whose thread has ended or been killed, of that which was at the last call, too.

        Most work does not take so long, and needs no look at its thread.
        """
        before, self._seen = self._seen, set(asked)
        # A thread that has ended between two looks is not mistaken for another one with its number: numbers are given
        # out again only after all others.
        waiting = [one for one in asked if one.thread and one in before and not one.is_canceled]
        if not (waiting and self._is_known):
            return []
        states = {thread: _is_waiting(thread) for thread in {one.thread for one in waiting}}
        return [one for one in waiting if not states[one.thread]]


def left(asked: Sequence[Task], now: float) -> list[Task]:
    """Return the work of interrupted threads whose results are no longer wanted, of all in the order of its beginning.

    A thread that asks for the same again finds what was done for it until then: locks, blocks, parsed containers. So
    its first request goes on as long as it is repeated; the repetitions, which only wait for the first one, do not.
    ``now`` is on the same clock as ``answered_at``, in seconds.
    """
    repeated = {(one.thread, one.about) for one in asked if one.answered_at is None}
    kept: set[tuple[int, object]] = set()
    left = []
    for one in asked:
        if one.answered_at is None or one.is_canceled:
            continue
        kind = one.thread, one.about
        if kind in repeated:
            one.answered_at = now
        if kind in kept or now >= one.answered_at + settings.repetition:
            left.append(one)
        kept.add(kind)
    return left


def _is_waiting(thread: int) -> bool:
    """Return whether a thread is alive and not about to die."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except (FileNotFoundError, ProcessLookupError):
        try:  # /proc may hide threads of other users (``hidepid``)
            os.kill(thread, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True
    except OSError:  # no descriptor left: nothing is known
        return True
    pending = int(lines.get(b"SigPnd", b"0"), 16) | int(lines.get(b"ShdPnd", b"0"), 16)
    return lines.get(b"State", b"").strip()[:1] not in _ENDED and not pending & _KILLED
