"""Memory for blocks, counted before it is used.

Whoever is about to need memory takes room for it and waits until there is some. What is *kept* can be given up for
that; what is *taken*, because it is being made or read, cannot. A thread that is inside of making something gets more
without waiting, or two that need more would wait for each other; and a request for more than there is goes alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEFAULT_BUDGET = 256 << 20


class Room:
    """``budget`` bytes. ``free`` is asked to give up so many bytes of what is kept, and tells how many it gave up.

    ``free`` is called under the lock of the room: it must neither call the room nor wait for one who does.
    """

    def __init__(self, budget: int, free: Callable[[int], int]) -> None:
        self.budget = budget
        self._free = free
        self._kept = self._taken = 0
        self._condition = threading.Condition()
        self._waiting: deque[object] = deque()
        self._thread = _Thread()

    @property
    def used(self) -> int:
        """Bytes that are kept or taken."""
        return self._kept + self._taken

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Around work for which room was taken: what this thread takes meanwhile, it gets at once."""
        self._thread.depth += 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    def take(self, size: int) -> None:
        """Returns when there is room for so many bytes. Those who came first go first."""
        ticket = object()
        with self._condition:
            self._waiting.append(ticket)
            try:
                if not self._thread.depth:
                    self._condition.wait_for(lambda: self._waiting[0] is ticket and self._has_room(size))
                self._taken += size
            finally:
                self._waiting.remove(ticket)
                if self._waiting:
                    self._condition.notify_all()

    def settle(self, taken: int, kept: int) -> None:
        """Gives back what was taken, but for what stays."""
        with self._condition:
            self._taken -= taken
            self._kept += kept
            self._give_up(0)
            if self._waiting:
                self._condition.notify_all()

    def retake(self, size: int) -> None:
        """Of what is kept, so many bytes are in use again."""
        with self._condition:
            self._kept -= size
            self._taken += size

    def drop(self, size: int) -> None:
        """So many bytes are not kept any longer."""
        self.settle(0, -size)

    def look_again(self) -> None:
        """Something that could not be given up before can be now."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def _has_room(self, size: int) -> bool:
        self._give_up(size)
        return self._taken == 0 or self.used + size <= self.budget

    def _give_up(self, wanted: int) -> None:
        missing = self.used + wanted - self.budget
        if missing > 0:
            self._kept -= self._free(missing)


class _Thread(threading.local):
    depth = 0
