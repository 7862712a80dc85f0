"""Memory for blocks, counted before it is used.

Whoever is about to need memory takes room for it and waits until there is some. What is *kept* can be given up for
that; what is *taken*, because it is being made or read, cannot. A request for more than there is goes alone.

A thread that is inside of making something and needs more must not wait for one that waits for it. So it goes first;
it goes at once when all who hold room are waiting as well and nothing that is kept is being read; and it waits no
longer than a while for those who do not say that they wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEFAULT_BUDGET = 256 << 20
PATIENCE = 10.0
"""Seconds without any room given back after which the first in the line goes ahead: somebody may wait for it."""
PATIENCE_INSIDE = 1.0
"""The same for those who are inside of something, who hold room themselves."""


class Ticket:
    """A place in the line. ``is_hurried`` once somebody who holds room waits for whoever has it."""

    __slots__ = ("is_hurried",)

    def __init__(self) -> None:
        self.is_hurried = False


class Room:
    """``budget`` bytes. ``free`` is asked to give up so many bytes of what is kept, and tells how many it gave up.

    ``free`` is called under the lock of the room: it must neither call the room nor wait for one who does. What a
    thread takes it gives back itself.
    """

    def __init__(self, budget: int, free: Callable[[int], int]) -> None:
        self.budget = budget
        self._free = free
        self._kept = self._taken = 0
        self._idle = 0
        """Of what is taken, what those hold who are waiting."""
        self._given_back = time.monotonic()
        self._condition = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._thread = _Thread()

    @property
    def used(self) -> int:
        """Bytes that are kept or taken."""
        with self._condition:
            return self._kept + self._taken

    @property
    def is_inside(self) -> bool:
        """Whether this thread is making something for which room was taken."""
        return self._thread.depth > 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Around work for which room was taken, and for which more may be needed."""
        self._thread.depth += 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Around waiting for what another thread makes: until then this one gives nothing back."""
        held = self._thread.held
        if not held:
            yield
            return
        with self._condition:
            self._idle += held
            self._notify()
        try:
            yield
        finally:
            with self._condition:
                self._idle -= held

    def take_now(self, size: int) -> bool:
        """Takes so many bytes if nobody has to be waited for. Whether it did."""
        with self._condition:
            if self._waiting and not self.is_inside:
                return False
            if not self._has_room(size, self._idle + self._thread.held if self.is_inside else 0):
                return False
            self._take(size)
            return True

    def take(self, size: int, ticket: Ticket | None = None) -> None:
        """Returns when there is room for so many bytes. Those who came first go first."""
        ticket = ticket or Ticket()
        with self._condition:
            ticket.is_hurried = ticket.is_hurried or self.is_inside
            self._queue(ticket)
            began, held = time.monotonic(), self._thread.held
            self._idle += held
            self._notify()
            try:
                while (left := self._patience(ticket, size, began)) > 0:
                    self._condition.wait(left)
            finally:
                self._idle -= held
                self._waiting.remove(ticket)
                self._notify()
            self._take(size)

    def hurry(self, ticket: Ticket) -> None:
        """Whoever has this ticket, or will wait with it, is waited for by this thread, which holds room."""
        with self._condition:
            if not ticket.is_hurried:
                ticket.is_hurried = True
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                    self._queue(ticket)
                self._notify()

    def settle(self, taken: int, kept: int) -> None:
        """Gives back what was taken, but for what stays."""
        with self._condition:
            if taken:
                self._taken -= taken
                self._thread.held -= taken
                self._given_back = time.monotonic()
            self._kept += kept
            self._give_up(0)
            self._notify()

    def retake(self, size: int) -> None:
        """Of what is kept, so many bytes are in use again."""
        with self._condition:
            self._kept -= size
            self._take(size)

    def drop(self, size: int) -> None:
        """So many bytes are not kept any longer."""
        self.settle(0, -size)

    def look_again(self) -> None:
        """Something that could not be given up before can be now."""
        if self._waiting or self._kept + self._taken > self.budget:
            with self._condition:
                self._give_up(0)
                self._notify()

    def _queue(self, ticket: Ticket) -> None:
        if ticket.is_hurried:
            self._waiting.appendleft(ticket)
        else:
            self._waiting.append(ticket)

    def _take(self, size: int) -> None:
        self._taken += size
        self._thread.held += size

    def _patience(self, ticket: Ticket, size: int, began: float) -> float:
        """For how long to go on waiting; 0 when it is time to take room."""
        if not ticket.is_hurried:
            if self._waiting[0] is not ticket:
                return PATIENCE
            if self._has_room(size, 0):
                return 0
            return max(0, max(began, self._given_back) + PATIENCE - time.monotonic())
        if self._has_room(size, self._idle):
            return 0
        until = min(max(began, self._given_back) + PATIENCE_INSIDE, began + PATIENCE)
        return max(0, until - time.monotonic())

    def _has_room(self, size: int, idle: int) -> bool:
        """Gives up what must be given up for that. ``idle`` bytes will not be given back before this is taken."""
        is_alone = self._taken <= idle
        if not is_alone and self._taken + size > self.budget:
            return False
        self._give_up(size)
        return self.used + size <= self.budget or (is_alone and self._kept <= 0)

    def _give_up(self, wanted: int) -> None:
        missing = self.used + wanted - self.budget
        if missing > 0:
            self._kept -= self._free(missing)

    def _notify(self) -> None:
        if self._waiting:
            self._condition.notify_all()


class _Thread(threading.local):
    depth = 0
    held = 0
    """Bytes that this thread has taken."""
