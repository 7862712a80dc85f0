"""Who asked, and whether he still waits: what the system says of the threads that made requests. Linux.

The kernel does not notify a daemon that a process which read ahead has died, and reports of other requests only that a
signal came, which may be ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from glassfs.work import Work

_KILLED = 1 << 8
"""SIGKILL in a mask of pending signals; fatal signals of other numbers become one, too."""
_ENDED = (b"Z", b"X")


@dataclass(slots=True, eq=False)
class Asked(Work):
    """Work for ``thread``, by its id as this process sees it; 0 if that is not known."""

    thread: int = field(default=0, kw_only=True)


AnyAsked = TypeVar("AnyAsked", bound=Asked)


class Requesters:
    """Looks up which threads still wait. To be used by one thread."""

    def __init__(self) -> None:
        # Only if /proc shows the processes of our own namespace do its numbers mean the same.
        self._is_known = False
        with suppress(OSError):
            self._is_known = os.readlink("/proc/self") == str(os.getpid())
        self._has_found = False
        """Whether a thread was ever found: before that, one that is missing may be of another namespace."""

    def gone(self, asked: Iterable[AnyAsked]) -> list[AnyAsked]:
        """Return the work whose thread has ended or been killed."""
        if not self._is_known:
            return []
        waiting = [one for one in asked if one.thread]
        states = {thread: _is_waiting(thread) for thread in {one.thread for one in waiting}}
        self._has_found = self._has_found or any(state is not None for state in states.values())
        return [one for one in waiting if not states[one.thread]] if self._has_found else []


def _is_waiting(thread: int) -> bool | None:
    """Return whether a thread is alive and not about to die; None if it is not there."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except (FileNotFoundError, ProcessLookupError):
        return True if _exists(thread) else None
    except OSError:  # no descriptor left: nothing is known
        return True
    pending = int(lines.get(b"SigPnd", b"0"), 16) | int(lines.get(b"ShdPnd", b"0"), 16)
    return lines.get(b"State", b"").strip()[:1] not in _ENDED and not pending & _KILLED


def _exists(thread: int) -> bool:
    """Return whether there is such a thread, of any user: /proc may hide those of others (``hidepid``)."""
    try:
        os.kill(thread, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
