"""The threads that answer the kernel, and which of them may wait for what.

A thread takes a request, answers it and takes the next. While it answers, another thread has to read requests if the
answer may take long: a second thread is woken at once where that is likely, and within two milliseconds where it turns
out so. As long as answers come from memory, one thread gives them all, which is fastest: no thread has to be woken, and
none competes for the interpreter.

Requests about one file system hang together. Reads of it use a bounded number of threads; further reads wait in a queue
without a thread. Other requests may use some more, so that ``stat`` is answered while reads hang.

Users share threads and processors. Up to IDLE_THREADS requests of a user begin in any case; beyond, further ones wait
while MAX_COMPUTING of that user compute. While several users ask, each gets at most half of the threads, and what one
has taken before does not count against another; a user without any request in progress is answered at once, by threads
that are reserved for that. Where the interpreter or the processors do not suffice,
users that compute share them equally, however many requests each has, and all together take no more than there is: so a
request of another user competes with few.
Requests that the kernel makes itself never wait; those about the mount itself only for others of the same user.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

from glassfs import threads, work
from glassfs.cache.budget import MemoryBudget
from glassfs.errors import Unavailable
from glassfs.mount.engines.wire import READ, Opcode
from glassfs.mount.requesters import Asked
from glassfs.names import RESERVED

log = logging.getLogger(__name__)

IDLE_THREADS = 16
"""Idle threads kept alive: one blocks in read(2), the others are parked."""
MAX_BUSY = 400
"""Threads that may be busy at a time."""
MAX_READERS = 48
"""Threads that may read from one volume at a time, once IDLE_THREADS are busy."""
MAX_OF_VOLUME = 128
MAX_IN_LINE = 256
"""Reads of one volume that wait for memory at a time. They count in no other limit of the volume, as the memory is
released by further reads, of the blocks that have it.
"""
MOST_THREADS, RESERVED_THREADS = 2 * MAX_BUSY, 64
"""Threads in all, however many users ask, and further ones for users without any request in progress."""
MAX_COMPUTING = 8
"""Requests of one user that may use the processor at a time, once IDLE_THREADS are busy."""
MAX_OWN = 4
"""Requests of one user about the mount itself that are answered at a time, once IDLE_THREADS are busy."""
UNOWNED = (
    Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INIT, Opcode.DESTROY, Opcode.RELEASE, Opcode.RELEASEDIR, Opcode.STATFS,
)
"""Requests that the kernel makes itself, or that wait for nothing."""
LONG_READ_BYTES = 128 << 10
"""A read of this size wakes a second thread at once."""
SLOW_READ_SECONDS = 0.001
"""After a read that took longer, the next one is expected to be slow as well."""
CHECK_SECONDS = 0.001
CORES = os.cpu_count() or 1
INTERPRETER, SATURATED = 1.5, 0.8
"""Processors that threads use which wait for the interpreter, and the part of all that is nearly all."""
RESUME_SECONDS = 0.02
SHARED_TICKS = 10
"""After requests of several users the threads stay shared for so many ticks."""
IDLE_CHECKS = 50
"""Checks that find nothing to do, after which the supervisor sleeps until it is woken."""

State = TypeVar("State")


class Task(Asked):
    """A request: opcode, number, the node id it is about, its bytes, and how many bytes it reads.

    It is the work of the user ``owner``.
    """

    within = 0
    """The node whose volume counts, if not ``ident``: for look-ups in the root, the node that is looked up."""
    is_own = False
    """Whether it looks up the mount's own directory."""
    known_steps = -1
    is_idle = False
    """Whether it made no step between the last two ticks, and so seems to hang in a read."""

    def __init__(
        self, opcode: int, unique: int, ident: int, message: bytes, size: int = 0, thread: int = 0, owner: int = -1,
    ) -> None:
        self.opcode, self.unique, self.ident, self.message = opcode, unique, ident, message
        self.size, self.thread, self.owner = size, thread, owner

    @property
    def is_computing(self) -> bool:
        """Whether it seems to use the processor."""
        return not (self.is_waiting or self.is_idle)


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
        self._queues: dict[tuple[str, bool, int], deque[Task]] = {}
        """Deferred requests by volume, whether they read, and user: of one queue either all may begin or none."""
        self._handed: deque[Task] = deque()
        """Deferred requests that the next thread begins."""
        self._started = 0
        """How often a thread was started, successfully or not."""
        self._short_since: int | None = None
        """During a shortage of threads, the value of ``_started`` at the last failure."""
        self._is_slow = False
        self._owners: set[int] = set()
        """Users that asked since the previous tick."""
        self._shared_ticks = 0
        """For how many ticks several users will be taken to ask."""
        self._measured = (time.monotonic(), time.process_time())
        self._slowdowns: dict[int, float] = {}
        """How much requests of a user pause for others (``Work.slowdown``)."""
        self.computing = 0
        """Requests that computed at the last tick."""
        self._is_checking = True
        self._check = threading.Event()

    def start(self) -> None:
        """Start the first threads. Raises Unavailable if the system has none left."""
        self._add()
        threads.start("supervisor", self._supervise)

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def is_shared(self) -> bool:
        """Whether several users ask."""
        return self._shared_ticks > 0

    def tasks(self) -> list[Task]:
        """Return the requests that were taken and are not answered yet."""
        with self._lock:
            return [*self._begun(), *(task for queue in self._queues.values() for task in queue)]

    def cancel(self, tasks: Collection[Task]) -> None:
        """Stop requests whose callers no longer wait; deferred ones are never begun."""
        for task in tasks:
            task.cancel()
        with self._lock:
            for kind, queue in list(self._queues.items()):
                self._queues[kind] = deque(task for task in queue if not task.is_canceled)
                if not self._queues[kind]:
                    del self._queues[kind]

    def tick(self) -> None:
        """Note whether several users ask, and which requests compute. Call this a few times a second."""
        with self._lock:
            begun = [task for task in self._begun() if not (task.opcode in UNOWNED or self._is_own(task))]
        for task in begun:
            task.is_idle = task.steps == task.known_steps
            task.known_steps = task.steps
        computing = Counter(task.owner for task in begun if task.is_computing)
        self.computing = computing.total()
        self._shared_ticks = SHARED_TICKS if len(self._owners | set(computing)) > 1 else max(0, self._shared_ticks - 1)
        self._owners = set()
        processors = self._scarce_processors()
        self._slowdowns = {}
        if self.is_shared and processors:
            # A request that waits for what another user's computes has that computed on its behalf.
            holders = {thing: task.owner for task in begun for thing in task.holds}
            computing.update(
                task.owner for task in begun if task.is_waiting and holders.get(task.awaits, task.owner) != task.owner
            )
            for owner, count in computing.items():
                self._slowdowns[owner] = max(0.0, len(computing) * count / processors - 1.0)
        for task in begun:
            task.slowdown = self._slowdowns.get(task.owner, 0.0)

    def _scarce_processors(self) -> int:
        """Return how many processors there are for threads that had to wait for one since the previous call; 0 if none.

        Threads that wait for the interpreter share one: together they use little more than that.
        """
        before, self._measured = self._measured, (time.monotonic(), time.process_time())
        elapsed, used = self._measured[0] - before[0], self._measured[1] - before[1]
        if used <= INTERPRETER * elapsed:
            return 1
        return CORES if used >= SATURATED * CORES * elapsed else 0

    def _resume(self) -> None:
        """Begin deferred requests that fit now, as others began to wait."""
        with self._lock:
            while (task := self._resumable()) is not None:
                self._handed.append(task)
            handed = len(self._handed)  # also those for which no thread could be started before
        for _ in range(handed):
            self._relieve()

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
        while (task := (self._handed and self._handed_over()) or self._take(worker)) is not None:
            with self._lock:
                self._waiting -= 1
                self._taken += 1
                worker.task = task
                if task.owner not in self._owners and task.opcode not in UNOWNED:
                    self._owners.add(task.owner)
                if self._slowdowns:
                    task.slowdown = self._slowdowns.get(task.owner, 0.0)
                if len(self._workers) > IDLE_THREADS and not self._fits(task):
                    kind = self._volume(task), task.opcode == READ, task.owner
                    self._queues.setdefault(kind, deque()).append(task)
                    worker.task = None
                    self._waiting += 1
                    if not self._is_checking:
                        self._check.set()
                    continue
                is_alone = not self._waiting
            if is_alone:
                self._leave(task)
            is_needed = False
            while task is not None:
                work.begin(task)
                if task.opcode == READ:
                    begun = time.perf_counter()
                    self._answer(worker, task)
                    self._is_slow = time.perf_counter() - begun > SLOW_READ_SECONDS
                else:
                    self._answer(worker, task)
                # Deferring takes the same lock: requests for which another one was deferred come by here after that.
                with self._lock:
                    worker.task = None  # no longer busy, or the next one might not fit
                    task = worker.task = self._resumable() if self._queues else None
                    if task is None and not self._waiting:
                        self._waiting, is_needed = 1, True
            if not is_needed and not self._park():
                break
        else:
            self._ended()
        with self._lock:
            self._workers.remove(worker)

    def _leave(self, task: Task) -> None:
        """Provide for requests that come while ``task`` is answered, as no other thread waits for them."""
        is_long = task.opcode == READ and (self._is_slow or task.size >= LONG_READ_BYTES)
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
        """Add a thread whenever none waits for requests and none was taken since the previous check.

        Deferred requests are looked at as well: what they wait for may have begun to wait itself.
        """
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
            elif self._queues or self._handed:
                time.sleep(RESUME_SECONDS)
                self._resume()
            else:
                self._is_checking = False
                if self._waiting and not (self._queues or self._handed):  # else a thread did not see the flag just now
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

    def _begun(self) -> Iterator[Task]:
        """Yield the requests that threads answer, or are about to. The caller holds the lock."""
        for worker in self._workers:
            if worker.task is not None:
                yield worker.task
        yield from self._handed

    def _volume(self, task: Task) -> str:
        """Return the volume that counts for a request."""
        return RESERVED if task.is_own else self._volume_of(task.within or task.ident)

    def _is_own(self, task: Task) -> bool:
        """Return whether a request is about the mount itself."""
        return self._volume(task) == RESERVED

    def _fits(self, task: Task) -> bool:
        """Return whether ``task`` is within the limits beside all others. The caller holds the lock."""
        if task.opcode in UNOWNED:
            return True
        volume, is_read = self._volume(task), task.opcode == READ
        others = [other for other in self._begun() if other is not task]
        of_user = [other for other in others if other.owner == task.owner]
        if volume == RESERVED:
            return sum(map(self._is_own, of_user)) < MAX_OWN
        if not of_user:
            return len(self._workers) < MOST_THREADS + RESERVED_THREADS
        counted = of_user if self.is_shared else others
        beside = [other for other in counted if self._volume(other) == volume]
        makers = {thing: other for other in others for thing in other.holds}
        in_line = sum(isinstance(makers.get(one.awaits, one).awaits, MemoryBudget) for one in beside)
        reading = sum(other.opcode == READ for other in beside) - in_line
        part = 2 if self.is_shared else 1
        if sum(other.is_computing for other in of_user) >= MAX_COMPUTING or len(self._workers) >= MOST_THREADS:
            return False
        if is_read and (reading >= MAX_READERS // part or in_line >= MAX_IN_LINE // part):
            return False
        return len(counted) < MAX_BUSY // part and len(beside) - in_line < MAX_OF_VOLUME // part

    def _resumable(self) -> Task | None:
        """Take a deferred request that may begin now. The caller holds the lock."""
        for kind, queue in self._queues.items():
            if self._fits(queue[0]):
                if len(queue) == 1:
                    del self._queues[kind]
                return queue.popleft()
        return None

    def _handed_over(self) -> Task | None:
        with self._lock:
            return self._handed.popleft() if self._handed else None
