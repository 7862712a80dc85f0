"""The threads that answer the kernel, and which of them may wait for what.

A thread takes a request, answers it and takes the next; before it begins on one it makes sure that another is there to
take what comes meanwhile. So there are as many as wait at a time, up to a bound. What is on one file system hangs
together: reads of it take up a bounded number of threads, and those above that wait in a queue without any. Everything
else may take some more, so that whoever only wants to look is answered beside reads that hang.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from glassfs.mount.engines.wire import Opcode

log = logging.getLogger(__name__)

KEPT = 16
"""Threads that stay when there is nothing to do."""
MOST = 400
READERS = 48
"""Threads that may read from one volume at a time, once all of KEPT are busy."""
OF_ONE_VOLUME = 128

State = TypeVar("State")


@dataclass(slots=True)
class Task:
    """A request: what it asks, its number, which node it is about, and its bytes."""

    opcode: int
    unique: int
    ident: int
    message: bytes


class Worker(Generic[State]):
    """One thread, and what it works with. ``task`` is what it is busy with."""

    __slots__ = ("state", "task")

    def __init__(self, state: State) -> None:
        self.state = state
        self.task: Task | None = None


class Crew(Generic[State]):
    """``take`` waits for a request and returns it, or None at the end of all requests; ``answer`` answers it.

    Both are given the worker, whose ``state`` was made by ``make_state`` on its thread. ``volume_of`` says what a node
    hangs together with, without waiting for anything. ``ended`` is called by each thread that was given None.
    """

    def __init__(
        self, take: Callable[[Worker[State]], Task | None], answer: Callable[[Worker[State], Task], None],
        make_state: Callable[[], State], volume_of: Callable[[int], str], ended: Callable[[], None],
    ) -> None:
        self._take = take
        self._answer = answer
        self._make_state = make_state
        self._volume_of = volume_of
        self._ended = ended
        self._lock = threading.Lock()
        self._workers: list[Worker[State]] = []
        self._waiting = 0
        self._queues: dict[tuple[str, bool], deque[Task]] = {}
        """What was put off, by volume and whether it reads: of each, all fit or none does."""
        self._is_over = False

    def start(self) -> None:
        """Starts the first thread. Raises RuntimeError where the system has none left."""
        self._add()

    @property
    def size(self) -> int:
        return len(self._workers)

    def has(self, unique: int) -> bool:
        """Whether a request was taken and is not answered."""
        with self._lock:
            if any(task.unique == unique for queue in self._queues.values() for task in queue):
                return True
            return any(worker.task is not None and worker.task.unique == unique for worker in self._workers)

    def withdraw(self, unique: int) -> None:
        """Nobody waits for this request any more: it need not be begun."""
        with self._lock:
            for kind, queue in list(self._queues.items()):
                self._queues[kind] = deque(task for task in queue if task.unique != unique)
                if not self._queues[kind]:
                    del self._queues[kind]

    def _add(self) -> None:
        with self._lock:
            self._waiting += 1  # on its way
        try:
            threading.Thread(target=self._work, name="glassfs-worker", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._waiting -= 1
            raise

    def _work(self) -> None:
        worker = Worker(self._make_state())
        with self._lock:
            self._workers.append(worker)
        while (task := self._take(worker)) is not None:
            with self._lock:
                self._waiting -= 1
                worker.task = task
                is_last = not self._waiting
            if is_last and not self._may_go_on(worker, task):
                continue
            self._answer(worker, task)
            while (task := self._next(worker)) is not None:
                self._answer(worker, task)
            with self._lock:
                worker.task = None
                if self._waiting >= KEPT:
                    self._workers.remove(worker)
                    return
                self._waiting += 1
        with self._lock:
            self._is_over = True
            self._workers.remove(worker)
        self._ended()

    def _may_go_on(self, worker: Worker[State], task: Task) -> bool:
        """Whether a request may be begun, with another thread in this one's place; otherwise it is put off."""
        with self._lock:
            if len(self._workers) > KEPT and (len(self._workers) >= MOST or not self._fits(task)):
                kind = self._volume_of(task.ident), task.opcode == Opcode.READ
                self._queues.setdefault(kind, deque()).append(task)
                worker.task = None
                self._waiting += 1
                return False
        if not self._is_over:
            try:
                self._add()
            except RuntimeError as error:  # it goes on alone for this once
                log.warning("no thread can be started: %s", error)
        return True

    def _fits(self, task: Task) -> bool:
        """Whether there is room for one more like this one, which is counted already. Under the lock."""
        if len(self._workers) <= KEPT:
            return True
        volume = self._volume_of(task.ident)
        busy = Counter(
            other.task.opcode == Opcode.READ for other in self._workers
            if other.task is not None and self._volume_of(other.task.ident) == volume
        )
        if task.opcode == Opcode.READ and busy[True] > READERS:
            return False
        return busy.total() <= OF_ONE_VOLUME

    def _next(self, worker: Worker[State]) -> Task | None:
        """A request that was put off and that there is room for now; without one the worker is not busy any more.

        Under one lock with who puts off: those whom it is put off for all come by here later.
        """
        with self._lock:
            for kind, queue in self._queues.items():
                worker.task = queue[0]
                if self._fits(queue[0]):
                    if len(queue) == 1:
                        del self._queues[kind]
                    return queue.popleft()
            worker.task = None
        return None
