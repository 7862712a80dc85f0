"""The threads that answer the kernel, and which of them may wait for what.

A thread takes a request, answers it and takes the next. While it answers, another thread has to read requests if the
answer may take long: a second thread is woken at once where that is likely, and within two milliseconds where it turns
out so. As long as answers come from memory, one thread gives them all, which is fastest: no thread has to be woken, and
none competes for the interpreter.

Requests about one file system hang together. Reads of it use a bounded number of threads; further reads wait in a queue
without a thread. Other requests may use some more, so that ``stat`` is answered while reads hang.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from glassfs import threads
from glassfs.errors import Unavailable
from glassfs.mount.engines.wire import Opcode

log = logging.getLogger(__name__)

IDLE_THREADS = 16
"""Idle threads kept alive: one blocks in read(2), the others are parked."""
MAX_BUSY = 400
"""Threads that may be busy at a time."""
MAX_READERS = 48
"""Threads that may read from one volume at a time, once IDLE_THREADS are busy."""
MAX_OF_VOLUME = 128
LONG_READ_BYTES = 128 << 10
"""A read of this size wakes a second thread at once."""
SLOW_READ_SECONDS = 0.001
"""After a read that took longer, the next one is expected to be slow as well."""
CHECK_SECONDS = 0.001
IDLE_CHECKS = 50
"""Checks that find nothing to do, after which the supervisor sleeps until it is woken."""

State = TypeVar("State")


@dataclass(slots=True)
class Task:
    """A request: opcode, number, the node id it is about, its bytes, and how many bytes it reads."""

    opcode: int
    unique: int
    ident: int
    message: bytes
    size: int = 0
    within: int = 0
    """The node whose volume counts, if not ``ident``: for look-ups in the root, the node that is looked up."""

    @property
    def volume_ident(self) -> int:
        """The id of the node whose volume counts."""
        return self.within or self.ident


class Worker(Generic[State]):
    """One thread, its ``state``, and the ``task`` that it is busy with."""

    __slots__ = ("state", "task")

    def __init__(self, state: State) -> None:
        self.state = state
        self.task: Task | None = None


class Crew(Generic[State]):
    """Threads that ``take`` requests and ``answer`` them.

    ``take`` waits for a request and returns it, or None after the last one. Both callbacks get the worker, whose
    ``state`` was made by ``make_state`` on its thread. ``volume_of`` returns the volume of a node and must not wait.
    ``ended`` is called by each thread that got None.
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
        """Threads that wait for requests, or are about to."""
        self._taken = 0
        """Requests taken so far."""
        self._parked: list[threading.Lock] = []
        """Locks of parked threads, most recently used last."""
        self._queues: dict[tuple[str, bool], deque[Task]] = {}
        """Deferred requests by volume and whether they read: of one queue either all may begin or none."""
        self._started = 0
        """How often a thread was started, successfully or not."""
        self._short_since: int | None = None
        """During a shortage of threads, the value of ``_started`` at the last failure."""
        self._is_slow = False
        self._is_checking = True
        self._check = threading.Event()

    def start(self) -> None:
        """Start the first threads. Raises Unavailable if the system has none left."""
        self._add()
        threads.start("supervisor", self._supervise)

    @property
    def size(self) -> int:
        return len(self._workers)

    def tasks(self) -> list[Task]:
        """Return the requests that were taken and are not answered yet."""
        with self._lock:
            deferred = [task for queue in self._queues.values() for task in queue]
            return deferred + [worker.task for worker in self._workers if worker.task is not None]

    def has(self, unique: int) -> bool:
        """Return whether a request was taken and is not answered yet."""
        with self._lock:
            if any(task.unique == unique for queue in self._queues.values() for task in queue):
                return True
            return any(worker.task is not None and worker.task.unique == unique for worker in self._workers)

    def withdraw(self, unique: int) -> None:
        """Drop a deferred request whose caller no longer waits."""
        with self._lock:
            for kind, queue in list(self._queues.items()):
                self._queues[kind] = deque(task for task in queue if task.unique != unique)
                if not self._queues[kind]:
                    del self._queues[kind]

    def _add(self) -> None:
        """Have one more thread wait for requests. Raises Unavailable if the system has none left."""
        with self._lock:
            self._waiting += 1
            if self._parked:
                self._parked.pop().release()
                return
            self._started += 1
            number = self._started
        try:
            threads.start("worker", self._work, number)
        except Unavailable:
            with self._lock:
                self._waiting -= 1
            raise

    def _work(self, number: int) -> None:
        try:
            worker = Worker(self._make_state())
        except (MemoryError, OSError) as error:
            with self._lock:
                self._waiting -= 1
            self._report_shortage(error)
            return
        with self._lock:
            # A thread that was started before the last failure does not show that the shortage is over.
            if self._short_since is not None and number > self._short_since:
                self._short_since = None
            self._workers.append(worker)
        while (task := self._take(worker)) is not None:
            with self._lock:
                self._waiting -= 1
                self._taken += 1
                worker.task = task
                if len(self._workers) > IDLE_THREADS and not self._fits(task):
                    kind = self._volume_of(task.volume_ident), task.opcode == Opcode.READ
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
                self._is_slow = time.perf_counter() - begun > SLOW_READ_SECONDS
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
        """Provide for requests that come while ``task`` is answered, as no other thread waits for them."""
        is_long = task.opcode == Opcode.READ and (self._is_slow or task.size >= LONG_READ_BYTES)
        if is_long or len(self._workers) > IDLE_THREADS:
            self._relieve()
        elif not self._is_checking:
            self._check.set()

    def _relieve(self) -> None:
        try:
            self._add()
        except Unavailable as error:
            self._report_shortage(error)

    def _report_shortage(self, error: Exception) -> None:
        """Log once per shortage, and have the supervisor try again until a thread waits for requests."""
        with self._lock:
            is_known = self._short_since is not None
            self._short_since = self._started
        if not is_known:
            log.warning("requests may have to wait: %s", str(error) or "there is not enough memory")
        self._check.set()

    def _supervise(self) -> None:
        """Add a thread whenever none waits for requests and none was taken since the previous check."""
        idle_checks = 0
        while True:
            taken = self._taken
            time.sleep(CHECK_SECONDS)
            if not self._waiting:
                idle_checks = 0
                if taken == self._taken:  # else the threads are only busy
                    self._relieve()
            elif idle_checks < IDLE_CHECKS:
                idle_checks += 1
            else:
                self._is_checking = False
                if self._waiting:  # else a thread became busy just now, and did not see the flag
                    self._check.wait()
                self._check.clear()
                self._is_checking = True
                idle_checks = 0

    def _park(self) -> bool:
        """Wait until one more thread is needed; return False at once if enough threads are parked."""
        needed = threading.Lock()
        needed.acquire()
        with self._lock:
            if len(self._parked) >= IDLE_THREADS - 1:
                return False
            self._parked.append(needed)
        needed.acquire()
        return True

    def _fits(self, task: Task) -> bool:
        """Return whether ``task``, which is already counted, is within the limits. The caller holds the lock."""
        volume = self._volume_of(task.volume_ident)
        busy = [other.task for other in self._workers if other.task is not None]
        beside = Counter(other.opcode == Opcode.READ for other in busy if self._volume_of(other.volume_ident) == volume)
        if task.opcode == Opcode.READ and beside[True] > MAX_READERS:
            return False
        return len(busy) <= MAX_BUSY and beside.total() <= MAX_OF_VOLUME

    def _next(self, worker: Worker[State]) -> Task | None:
        """Return a deferred request that may begin now; without one the worker is no longer busy.

        Deferring takes the same lock, so the requests for which another one was deferred come by here after that.
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
