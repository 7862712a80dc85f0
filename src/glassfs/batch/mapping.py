"""One map over an executor: a few containers a task, so many tasks at a time, and what comes of them as it comes.

How many containers a task has follows from how long they take; one that takes longer than was thought gives back what
it has not begun. Only some tasks for each worker are under way, however many containers there are, and what they bring
is bounded. When workers end, what they had is done again, one container at a time: so the one that ends them is found,
and told as a fault. One thread.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from typing import Any, NamedTuple

from glassfs.batch.contract import BatchError, Fault, Item, Outcome, Work
from glassfs.batch.workers import Workers

TARGET = 0.3
"""Seconds that a task should take."""
LONGEST = 4 * TARGET
"""After which a task begins no further container."""
MOST_ITEMS = 256
TASKS = 3
"""For each worker: one that it does, and those that wait for it."""
MOST_DATA = 64 << 20
"""Bytes that all tasks may bring together, roughly."""
LARGEST_TASK = 1 << 20
"""And a single one, before it begins with another container or part."""


class Done(NamedTuple):
    """An outcome, and what of. There are more outcomes of it unless it ``is_last``."""

    item: Item
    outcome: Outcome
    is_last: bool


class _Told(NamedTuple):
    """What a task brings: outcomes of its first items, and the items that are left."""

    outcomes: list[tuple[Item, Outcome]]
    left: list[Item]
    seconds: float


@dataclass(eq=False)
class _Task:
    items: list[Item]
    outcomes: deque[tuple[Item, Outcome]] = field(default_factory=deque)
    sent: int = 0
    """How many of the items are being worked on."""
    is_running: bool = False
    lost: int = 0
    """How often a worker has ended that had nothing but the first item."""
    is_suspect: bool = False


def here(work: Work, items: Iterator[Item]) -> Iterator[Done]:
    """The same in this process, a container after another."""
    current: Item | None = None
    rest: Any = None

    def given() -> Iterator[Item]:
        nonlocal current, rest
        for item in items:
            current = item
            yield item
            while rest is not None:
                current, rest = Item(item.found, rest), None
                yield current

    for outcome in work(given()):
        rest = outcome.rest
        if current is not None:
            yield Done(current, outcome, rest is None)


class Mapping:
    """``work`` on all items, done by ``workers``. If it ``is_ordered``, what comes of them is in their order."""

    def __init__(self, work: Work, workers: Workers, is_ordered: bool = False) -> None:
        self._work = work
        self._workers = workers
        self._is_ordered = is_ordered
        self._tasks: deque[_Task] = deque()
        self._came: SimpleQueue[tuple[_Task, Future[Any]]] = SimpleQueue()
        self._running = 0
        self._are_lost = False
        self._count = 1

    def all(self, items: Iterator[Item]) -> Iterator[Done]:
        """What comes of all items. Raises BatchError where nothing more can come."""
        while True:
            self._submit(items)
            if not self._tasks:
                return
            task, future = self._came.get()
            self._running -= 1
            self._take(task, future)
            yield from self._ready(task)

    def _submit(self, items: Iterator[Item]) -> None:
        """Has as much under way as there may be."""
        if self._are_lost:
            if self._running:
                return
            self._workers.renew()
            self._are_lost = False
        suspects = [task for task in self._tasks if task.is_suspect]
        if suspects:
            if not self._running:
                first = self._tasks[0] if self._is_ordered else suspects[0]
                self._send(first, 1 if first.is_suspect else len(first.items))
            return
        for task in islice(self._tasks, 1 if self._is_ordered else None):
            # In order, what is left of a task is gone on with when it is its turn, or it would wait in memory.
            if not task.is_running:
                self._send(task, len(task.items))
        most = self._workers.width * TASKS
        while len(self._tasks) < most and not self._are_lost:
            some = list(islice(items, self._count))
            if not some:
                return
            self._tasks.append(_Task(some))
            self._send(self._tasks[-1], len(some))

    def _send(self, task: _Task, count: int) -> None:
        task.sent, task.is_running = count, True
        most = max(1, min(LARGEST_TASK, MOST_DATA // (self._workers.width * TASKS)))
        try:
            future = self._workers.submit(_run, self._work, task.items[:count], most)
        except self._workers.lost as error:
            future = Future()
            future.set_exception(error)
        self._running += 1
        future.add_done_callback(lambda done: self._came.put((task, done)))

    def _take(self, task: _Task, future: Future[Any]) -> None:
        """What a task has brought, or why it has not."""
        task.is_running = False
        try:
            told: _Told = future.result()
        except self._workers.lost:
            self._are_lost = True
            task.lost += task.is_suspect
            task.is_suspect = True
            if task.lost >= self._workers.tries:
                self._blame(task)
            return
        except CancelledError:
            raise BatchError("the scheduler is gone, or has dropped what it was given", self._workers.name) from None
        except Exception as error:
            reason = f"a worker cannot do it: {type(error).__name__}: {error}"
            raise BatchError(reason, self._workers.name) from error
        task.outcomes += told.outcomes
        task.items[: task.sent] = told.left
        task.lost = 0
        task.is_suspect = task.is_suspect and bool(task.items)
        done = len(told.outcomes)
        if done:
            wanted = int(TARGET * done / max(told.seconds, 1e-6))
            self._count = max(1, min(MOST_ITEMS, wanted, 2 * max(done, self._count)))

    def _blame(self, task: _Task) -> None:
        """The first item ends whoever works on it, if it is not that all workers end."""
        self._workers.renew()
        self._workers.demand_alive()
        self._are_lost = False
        item = task.items.pop(0)
        task.outcomes.append((item, Outcome((Fault("", "whoever reads it is ended by the system, or crashes"),))))
        task.lost = 0
        task.is_suspect = bool(task.items)

    def _ready(self, task: _Task) -> Iterator[Done]:
        """What can be told now that this task has come back."""
        if not self._is_ordered:
            yield from _told(task)
            if not task.items:
                self._tasks.remove(task)
            return
        while self._tasks:
            first = self._tasks[0]
            yield from _told(first)
            if first.items:
                return
            self._tasks.popleft()


def _told(task: _Task) -> Iterator[Done]:
    while task.outcomes:
        item, outcome = task.outcomes.popleft()
        yield Done(item, outcome, outcome.rest is None)


def _run(work: Work, items: list[Item], most: int) -> _Told:
    """In a worker: as many of the items as there is time and room for, the first one in any case."""
    begun = time.monotonic()
    outcomes: list[tuple[Item, Outcome]] = []
    size = 0
    taken = 0

    def given() -> Iterator[Item]:
        nonlocal taken
        for item in items:
            if outcomes and (size >= most or time.monotonic() - begun > LONGEST or outcomes[-1][1].fatal):
                return
            if outcomes and outcomes[-1][1].rest is not None:
                return
            taken += 1
            yield item

    for outcome in work(given()):
        outcomes.append((items[taken - 1], outcome))
        size += len(pickle.dumps(outcome.data)) if outcome.data is not None else 0
    left = items[len(outcomes) :]
    if outcomes and outcomes[-1][1].rest is not None:
        left.insert(0, Item(outcomes[-1][0].found, outcomes[-1][1].rest))
    return _Told(outcomes, left, time.monotonic() - begun)
