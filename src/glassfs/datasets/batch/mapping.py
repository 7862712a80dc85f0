"""Map work over an executor: a few containers per task, a bounded number of tasks, results as they come.

The number of containers per task follows from the time they take; a task that takes longer returns what it has not
begun. Tasks under way and the bytes of their results are bounded. If workers end, their containers are processed again,
one at a time, so that the container that ends its worker is found and reported as a fault. One thread.
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
from typing import Any, NamedTuple, TypeAlias

from glassfs.datasets.batch.contract import BatchError, Outcome, Problem, SearchHit, Work
from glassfs.datasets.batch.workers import Workers
from glassfs.settings import settings
from glassfs.sizes import PIECE

MAX_ITEMS = 256
TASKS_PER_WORKER = 3
"""Submitted tasks per worker: one runs, the others are queued."""


Done: TypeAlias = tuple[SearchHit, Outcome]
"""An item and an outcome for it; more of them follow if that has a ``rest``."""


class _TaskResult(NamedTuple):
    """The result of a task: outcomes of its first items, and the items that are left."""

    outcomes: list[Done]
    left: list[SearchHit]
    seconds: float


@dataclass(eq=False)
class _Task:
    items: list[SearchHit]
    is_suspect: bool = False
    """Whether it has a single item, with which a worker may have ended."""
    outcomes: deque[Done] = field(default_factory=deque)
    is_running: bool = False
    lost: int = 0
    """How often a worker ended since it is a suspect."""


def here(work: Work, items: Iterator[SearchHit]) -> Iterator[Done]:
    """Do the work in this process, one container after another."""
    with work() as outcome_of:
        for item in items:
            outcome = outcome_of(item)
            yield item, outcome
            while outcome.rest is not None:
                outcome = outcome_of(item._replace(rest=outcome.rest))
                yield item, outcome


class Mapping:
    """Apply ``work`` to items on ``workers``; if ``is_ordered``, results are in the order of the items."""

    def __init__(self, work: Work, workers: Workers, is_ordered: bool = False) -> None:
        self._work = work
        self._workers = workers
        self._is_ordered = is_ordered
        self._tasks: deque[_Task] = deque()
        self._came: SimpleQueue[tuple[_Task, Future[Any]]] = SimpleQueue()
        self._running = 0
        self._are_lost = False
        self._count = 1

    def all(self, items: Iterator[SearchHit]) -> Iterator[Done]:
        """Yield the outcomes of all items. Raises BatchError if the workers cannot continue."""
        while True:
            self._submit(items)
            if not self._tasks:
                return
            task, future = self._came.get()
            self._running -= 1
            self._take(task, future)
            yield from self._ready(task)

    def _submit(self, items: Iterator[SearchHit]) -> None:
        """Submit tasks up to the limit."""
        if self._are_lost:
            if self._running:
                return
            self._workers.renew()
            self._are_lost = False
        suspects = [task for task in self._tasks if task.is_suspect]
        # A worker took several containers with it when it ended. They are tried one at a time with nothing else
        # running: if a worker ends then, its container is the cause, and not one of another worker that the system
        # killed for memory.
        if suspects:
            if not self._running:
                # In order, the results of earlier tasks are needed first, whether these are suspects or not.
                self._send(self._tasks[0] if self._is_ordered else suspects[0])
            return
        # What is left of tasks, because time or space ran out, comes before new ones.
        for task in islice(self._tasks, 1 if self._is_ordered else None):
            # In ordered mode, the rest of a task waits for its turn, or its results would pile up in memory.
            if not task.is_running:
                self._send(task)
        most = self._workers.width * TASKS_PER_WORKER
        while len(self._tasks) < most and not self._are_lost:
            some = list(islice(items, self._count))
            if not some:
                return
            self._tasks.append(_Task(some))
            self._send(self._tasks[-1])

    def _send(self, task: _Task) -> None:
        task.is_running = True
        # Results of all tasks together stay within some 64 MiB.
        most = max(1, min(PIECE, 64 * PIECE // (self._workers.width * TASKS_PER_WORKER)))
        try:
            future = self._workers.submit(_run, self._work, task.items, most)
        except self._workers.lost as error:
            # The executor is broken already: treat the task like one whose worker ended.
            future = Future()
            future.set_exception(error)
        self._running += 1
        future.add_done_callback(lambda done: self._came.put((task, done)))

    def _take(self, task: _Task, future: Future[Any]) -> None:
        """Take the result of a task, or note that its worker was lost."""
        task.is_running = False
        try:
            result: _TaskResult = future.result()
        except self._workers.lost:
            self._are_lost = True
            if not task.is_suspect:  # its containers become tasks of their own, in their order
                place = self._tasks.index(task)
                for item in reversed(task.items[1:]):
                    self._tasks.insert(place + 1, _Task([item], is_suspect=True))
                task.items, task.is_suspect = task.items[:1], True
            else:
                task.lost += 1
                if task.lost >= self._workers.tries:
                    self._blame(task)
            return
        except CancelledError:
            raise BatchError("the scheduler is gone or has dropped its tasks", self._workers.name) from None
        except Exception as error:
            reason = f"a worker failed: {type(error).__name__}: {error}"
            raise BatchError(reason, self._workers.name) from error
        task.outcomes += result.outcomes
        task.items, task.lost = result.left, 0
        done = len(result.outcomes)
        if done:
            # As many containers as take the target time. It grows by a factor of two at most, as one task of quick
            # containers says little about the next ones.
            wanted = int(settings.task_target * done / max(result.seconds, 1e-6))
            self._count = max(1, min(MAX_ITEMS, wanted, 2 * max(done, self._count)))

    def _blame(self, task: _Task) -> None:
        """Report the item as one that ends its workers, if workers can run at all."""
        self._workers.renew()
        self._workers.demand_alive()
        self._are_lost = False
        problem = Problem("", "processes that read it crash or are killed by the system")
        task.outcomes.append((task.items.pop(), Outcome((problem,))))

    def _ready(self, came: _Task) -> Iterator[Done]:
        """Yield the outcomes that may be passed on now."""
        for task in list(self._tasks) if self._is_ordered else [came]:
            while task.outcomes:
                yield task.outcomes.popleft()
            if task.items:
                return
            self._tasks.remove(task)


def _run(work: Work, items: list[SearchHit], most: int) -> _TaskResult:
    """Run in a worker: as many items as time and space allow, at least one."""
    begun = time.monotonic()
    outcomes: list[Done] = []
    left = deque(items)
    size, is_over = 0, False
    with work() as outcome_of:
        while left and not is_over:
            item = left.popleft()
            outcome = outcome_of(item)
            outcomes.append((item, outcome))
            size += len(pickle.dumps(outcome.data)) if outcome.data is not None else 0
            is_over = size >= most or time.monotonic() > begun + 4 * settings.task_target or bool(outcome.fatal)
            if outcome.rest is not None:
                # The rest of a container in parts comes first, so that its parts stay in order.
                left.appendleft(item._replace(rest=outcome.rest))
                is_over = True
    return _TaskResult(outcomes, list(left), time.monotonic() - begun)
