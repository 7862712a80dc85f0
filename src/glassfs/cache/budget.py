"""The memory budget: bytes are reserved before they are allocated.

Those of one owner (``glassfs.work``) wait in FIFO order, owners for equal numbers of bytes, so that many large requests
of one user do not delay a small one of another. *Cached* bytes are evicted to make memory free; *reserved* bytes, which
are being allocated or read, are not. A request larger than the whole budget is granted when nothing else is reserved.

A thread that makes one thing and needs memory for another (nested) must not wait for a thread that waits for it. Nested
requests therefore go first: at once when all threads that hold memory wait as well and no cached bytes are in use,
else after ``settings.nested_memory`` at the latest, as threads may wait without saying so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from glassfs import work
from glassfs.settings import settings

DEFAULT_BUDGET = 256 << 20


@dataclass(slots=True, eq=False)
class Ticket:
    """A position in the queue. ``is_hurried`` once a thread that holds memory waits for the owner of the ticket."""

    is_hurried: bool = False
    owner: int = -1
    begin: int = 0
    end: int = 0
    """What its owner got before and with it, in bytes: lesser ends go first (start-time fair queuing)."""


class MemoryBudget:
    """``limit`` bytes. ``evict`` evicts at least so many cached bytes if it can, and returns how many it evicted. Asked
    for more than ``limit``, it also evicts what it would otherwise keep for seconds because it is in use.

    ``evict`` is called under the lock of the budget: it must neither call the budget nor wait for a thread that does.
    A thread releases what it reserved itself.
    """

    def __init__(self, limit: int, evict: Callable[[int], int]) -> None:
        self.limit = limit
        self._evict = evict
        self._cached = self._reserved = 0
        self._idle = 0
        """Bytes reserved by threads that are waiting."""
        self._released = time.monotonic()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Notified when a request may be granted."""
        self._queue: deque[Ticket] = deque()
        self._begun = 0
        """The greatest ``begin`` of a granted request, where those of owners begin that have none in the queue."""
        self._thread = _Held()

    @property
    def used(self) -> int:
        """Bytes that are cached or reserved."""
        with self._lock:
            return self._cached + self._reserved

    @property
    def is_nested(self) -> bool:
        """Whether this thread is inside of ``nested``."""
        return self._thread.depth > 0

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Mark work that uses reserved memory and that may reserve more."""
        self._thread.depth += 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for another thread, during which this one releases nothing."""
        held = self._thread.held
        if not held:
            yield
            return
        with self._lock:
            self._idle += held
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._idle -= held

    def reserve_now(self, size: int) -> bool:
        """Reserve so many bytes if that needs no wait; return whether it did."""
        with self._lock:
            if self._queue and not self.is_nested:
                return False
            if not self._is_free(size, self._idle + self._thread.held if self.is_nested else 0):
                return False
            self._reserve(size)
            return True

    def reserve(self, size: int, ticket: Ticket | None = None) -> None:
        """Reserve so many bytes, waiting in line until they are free. Raises Canceled."""
        ticket = ticket or Ticket()
        with self._lock:
            ticket.is_hurried = ticket.is_hurried or self.is_nested
            doing = work.current()
            ticket.owner = -1 if doing is None else doing.owner
            # Fair by bytes: an owner with many large requests in the queue comes later with each of them.
            ends = (other.end for other in self._queue if other.owner == ticket.owner)
            ticket.begin = max(ends, default=self._begun)
            ticket.end = ticket.begin + size
            self._enqueue(ticket)
            began, held = time.monotonic(), self._thread.held
            self._idle += held
            self._changed.notify_all()
            try:
                work.patiently(lambda seconds: self._is_granted(ticket, size, began, seconds))
            finally:
                self._idle -= held
                self._queue.remove(ticket)
                self._changed.notify_all()
            self._begun = max(self._begun, ticket.begin)
            self._reserve(size)

    def _is_granted(self, ticket: Ticket, size: int, began: float, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether the request is to be granted. The caller holds the lock."""
        until = time.monotonic() + seconds
        while (left := self._seconds_left(ticket, size, began)) > 0:
            longest = until - time.monotonic()
            if longest <= 0:
                return False
            self._changed.wait(min(left, longest))
        return True

    def hurry(self, ticket: Ticket) -> None:
        """Grant the request of this ticket, also a later one, first: this thread holds memory and waits for it."""
        with self._lock:
            if not ticket.is_hurried:
                ticket.is_hurried = True
                if ticket in self._queue:
                    self._queue.remove(ticket)
                    self._enqueue(ticket)
                self._changed.notify_all()

    def release(self, reserved: int, cached: int = 0) -> None:
        """Release reserved bytes, of which ``cached`` stay in the cache."""
        with self._lock:
            if reserved:
                self._reserved -= reserved
                self._thread.held -= reserved
                self._released = time.monotonic()
            self._cached += cached
            self._make_free(0)
            self._changed.notify_all()

    def reserve_cached(self, size: int) -> None:
        """Turn cached bytes into reserved ones: they are in use again."""
        with self._lock:
            self._cached -= size
            self._reserve(size)

    def drop_cached(self, size: int) -> None:
        """Count so many bytes as no longer cached."""
        self.release(0, -size)

    def recheck(self) -> None:
        """Try again to evict: cached bytes that were in use no longer are."""
        if self._queue or self._cached + self._reserved > self.limit:
            with self._lock:
                self._make_free(0)
                self._changed.notify_all()

    def shrink(self, limit: int) -> bool:
        """Evict cached bytes beyond ``limit``; return whether some were evicted."""
        with self._lock:
            freed = self._evict(self._cached - limit) if self._cached > limit else 0
            self._cached -= freed
        return freed > 0

    def _enqueue(self, ticket: Ticket) -> None:
        later = (at for at, other in enumerate(self._queue) if not other.is_hurried and other.end > ticket.end)
        self._queue.insert(0 if ticket.is_hurried else next(later, len(self._queue)), ticket)

    def _reserve(self, size: int) -> None:
        self._reserved += size
        self._thread.held += size

    def _seconds_left(self, ticket: Ticket, size: int, began: float) -> float:
        """Return how long to go on waiting; 0 when the request is to be granted."""
        if not ticket.is_hurried:
            if self._queue[0] is not ticket:
                return settings.memory
            if self._is_free(size, 0):
                return 0
            until = max(began, self._released) + settings.memory
        elif self._is_free(size, self._idle):
            return 0
        else:
            until = min(max(began, self._released) + settings.nested_memory, began + settings.memory)
        return min(settings.eviction_retry, max(0, until - time.monotonic()))

    def _is_free(self, size: int, idle: int) -> bool:
        """Evict what is needed for that. ``idle`` bytes will not be released before this request is granted."""
        # If all that is reserved belongs to threads that wait, nothing will be released before: then a request that is
        # larger than the budget, or than what is left of it, has to be granted all the same.
        is_alone = self._reserved <= idle
        if not is_alone and self._reserved + size > self.limit:
            return False
        self._make_free(size)
        if is_alone and self.used + size > self.limit:
            self._cached -= self._evict(2 * self.limit)  # no other thread will release anything
        return self.used + size <= self.limit or (is_alone and self._cached <= 0)

    def _make_free(self, wanted: int) -> None:
        # Only as much as is missing: cached blocks are what later reads are fast by.
        missing = self._cached + self._reserved + wanted - self.limit
        if missing > 0:
            self._cached -= self._evict(missing)


class _Held(threading.local):
    depth = 0
    held = 0
    """Bytes that this thread has reserved."""
