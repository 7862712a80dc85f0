"""The threads that answer the kernel, and which of them may wait for what.

A thread takes a request, answers it and takes the next. Another one is there to take what comes meanwhile, if the
answer may take long: at once where that is likely, and within two milliseconds where it turns out so. As long as
answers come from memory, one thread gives them all, which is the fastest: it need not be woken, and shares the
interpreter with nobody.

What is on one file system hangs together: reads of it take up a bounded number of threads, and those above that wait in
a queue without any. Everything else may take some more, so that whoever only wants to look is answered beside reads
that hang.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from glassfs.mount.engines.wire import Opcode

log = logging.getLogger(__name__)

KEPT = 16
"""Threads that stay when there is nothing to do: one waits for requests, the others to be needed."""
MOST = 400
"""Threads that may be busy at a time."""
READERS = 48
"""Threads that may read from one volume at a time, once all of KEPT are busy."""
OF_ONE_VOLUME = 128
LONG_READ = 128 << 10
"""Bytes; a read of so many is worth a thread beside it."""
SLOW = 0.001
"""Seconds; after a read that took longer the next one is expected to."""
LOOK = 0.001
PATIENCE = 50
"""Looks without anything to do after which nobody looks any more until something comes."""

State = TypeVar("State")


@dataclass(slots=True)
class Task:
    """A request: what it asks, its number, which node it is about, its bytes, and how many it asks for."""

    opcode: int
    unique: int
    ident: int
    message: bytes
    size: int = 0
    within: int = 0
    """The node whose volume counts, if that is not the one that it is about: what is looked up in the root."""

    @property
    def place(self) -> int:
        return self.within or self.ident


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
        """Threads that wait for requests, or are on their way to do so."""
        self._taken = 0
        """How many requests were taken so far."""
        self._parked: list[threading.Lock] = []
        """What threads that are not needed just now wait for, the one that was needed last at the end."""
        self._queues: dict[tuple[str, bool], deque[Task]] = {}
        """What was put off, by volume and whether it reads: of each, all fit or none does."""
        self._is_slow = self._is_short = False
        self._is_looking = True
        self._look = threading.Event()

    def start(self) -> None:
        """Starts the first threads. Raises RuntimeError where the system has none left."""
        self._add()
        threading.Thread(target=self._look_out, name="glassfs-lookout", daemon=True).start()

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
        """One more thread to wait for requests. Raises RuntimeError where the system has none left."""
        with self._lock:
            self._waiting += 1
            if self._parked:
                self._parked.pop().release()
                return
        try:
            threading.Thread(target=self._work, name="glassfs-worker", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._waiting -= 1
            raise

    def _work(self) -> None:
        try:
            worker = Worker(self._make_state())
        except (MemoryError, OSError) as error:
            with self._lock:
                self._waiting -= 1
            self._lack(error)
            return
        self._is_short = False
        with self._lock:
            self._workers.append(worker)
        while (task := self._take(worker)) is not None:
            with self._lock:
                self._waiting -= 1
                self._taken += 1
                worker.task = task
                if len(self._workers) > KEPT and not self._fits(task):
                    kind = self._volume_of(task.place), task.opcode == Opcode.READ
                    self._queues.setdefault(kind, deque()).append(task)
                    worker.task = None
                    self._waiting += 1
                    continue
                is_alone = not self._waiting
            if is_alone:
                self._leave(task)
            begun = time.perf_counter()
            self._answer(worker, task)
            if task.opcode == Opcode.READ:
                self._is_slow = time.perf_counter() - begun > SLOW
            while (task := self._next(worker)) is not None:
                self._answer(worker, task)
            with self._lock:
                is_needed = not self._waiting
                if is_needed:
                    self._waiting = 1
            if not is_needed and not self._park():
                break
        else:
            self._ended()
        with self._lock:
            self._workers.remove(worker)

    def _leave(self, task: Task) -> None:
        """Nobody waits for requests while this one is answered: somebody has to, now or if it takes long."""
        is_long = task.opcode == Opcode.READ and (self._is_slow or task.size >= LONG_READ)
        if is_long or len(self._workers) > KEPT:
            self._relieve()
        elif not self._is_looking:
            self._look.set()

    def _relieve(self) -> None:
        try:
            self._add()
        except RuntimeError as error:
            self._lack(error)

    def _lack(self, error: Exception) -> None:
        """Whoever wanted another thread goes on alone; it is tried again for as long as nobody waits for requests."""
        if not self._is_short:
            log.warning("no thread can be started: %s", str(error) or "there is not enough memory")
        self._is_short = True
        self._look.set()

    def _look_out(self) -> None:
        """Sees to it that somebody waits for requests, for as long as there are any."""
        quiet = 0
        while True:
            taken = self._taken
            time.sleep(LOOK)
            if not self._waiting:
                quiet = 0
                if taken == self._taken:  # otherwise somebody is only busy
                    self._relieve()
            elif quiet < PATIENCE:
                quiet += 1
            else:
                self._is_looking = False
                if self._waiting:  # otherwise somebody began just before that, and does not know
                    self._look.wait()
                self._look.clear()
                self._is_looking = True
                quiet = 0

    def _park(self) -> bool:
        """Waits until one more thread is needed; False if there are enough that do."""
        needed = threading.Lock()
        needed.acquire()
        with self._lock:
            if len(self._parked) >= KEPT - 1:
                return False
            self._parked.append(needed)
        needed.acquire()
        return True

    def _fits(self, task: Task) -> bool:
        """Whether there is room for one more like this one, which is counted already. Under the lock."""
        volume = self._volume_of(task.place)
        busy = [other.task for other in self._workers if other.task is not None]
        beside = Counter(other.opcode == Opcode.READ for other in busy if self._volume_of(other.place) == volume)
        if task.opcode == Opcode.READ and beside[True] > READERS:
            return False
        return len(busy) <= MOST and beside.total() <= OF_ONE_VOLUME

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
