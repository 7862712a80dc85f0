"""The threads that answer the kernel, and which of them may wait for what.

A thread takes a request, answers it and takes the next. As long as answers come from memory, one thread gives them all,
which is fastest: none competes for the interpreter. A second thread is woken to read requests at once where an answer
is likely to take long, and within two milliseconds where it turns out so.

Users share threads and processors. Each user has a share of them (``Shares``), however many others ask: beyond it,
further requests of that user wait in a queue, without a thread, until one of them is answered or stops computing.
What has begun is never paused for others. So a request of another user competes with few that compute, and reads that
hang in one file system leave threads for ``stat`` and for other file systems. Requests that the kernel makes itself
never wait; those about the mount itself only for others of the same user.

A lack of memory costs the request that is being taken or answered, which gets an error, and no thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from glassfs import threads, work
from glassfs.errors import Unavailable
from glassfs.mount.engines.wire import READ, Opcode
from glassfs.names import RESERVED
from glassfs.settings import settings
from glassfs.work import CORES, Work

log = logging.getLogger(__name__)

UNOWNED = (
    Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INIT, Opcode.RELEASEDIR, Opcode.STATFS,
)
"""Requests that the kernel makes itself, or that wait for nothing."""
LONG_READ_BYTES = 128 << 10
"""A read of this size wakes a second thread at once."""
COMPUTING = 0.001
"""A request computes if its thread took more seconds of processor time since it began, or between two ticks."""


@dataclass(frozen=True)
class Shares:
    """How many requests may be in progress at a time, each with a thread."""

    free: int = 4
    """So many begin whatever they are."""
    idle: int = 16
    """Idle threads kept alive: one blocks in read(2), the others are parked."""
    threads: int = 800
    """Threads in all, however many users ask."""
    reserved: int = 64
    """Further threads for users without any request in progress."""
    computing: int = max(4, CORES)
    """Requests that use the processor, of all users together, unless these are more users. Each makes the others wait
    longer for the interpreter: beside 150 attackers on two cores, ``ls`` of 100 files takes 0.4 s, and 1.7 s if twelve
    may compute, which gain nothing from that."""
    user_computing: int = max(3, CORES // 2)
    """Those of one user."""
    user: int = 400
    """Requests of one user."""
    volume: int = 256
    """Reads by one user from one volume, and as many other requests about it. Many more than may compute: some may wait
    for memory that is released only by further reads, of blocks that have it."""
    own: int = 4
    """Requests of one user about the mount itself."""


class Task(Work):
    """A request: opcode, number, the node id it is about, its bytes, and how many bytes it reads.

    It is the work of the user ``owner``, for ``thread``, by its id as this process sees it; 0 if that is not known.
    """

    within = 0
    """The node whose volume counts, if not ``ident``: for look-ups in the root, the node that is looked up."""
    is_own = False
    """Whether it looks up the mount's own directory."""
    answered_at: float | None = None
    """If its thread was interrupted: the time when it was answered, or was seen to ask for the same again."""
    took = math.inf
    """The processor time of the thread that answers it, in seconds, when it began or at the last tick."""
    has_computed: bool | None = None
    """Whether it computed between the last two ticks; None before the first one."""

    def __init__(
        self, opcode: int, unique: int, ident: int, message: bytes, size: int = 0, thread: int = 0, owner: int = -1,
    ) -> None:
        self.opcode, self.unique, self.ident, self.message = opcode, unique, ident, message
        self.size, self.thread, self.owner = size, thread, owner

    @property
    def about(self) -> tuple[int, int]:
        """Equal for requests of which one may repeat the other."""
        return self.opcode, self.ident


class Worker:
    """One thread, its ``state``, and the ``task`` that it is busy with. Parked, it waits for the lock ``needed``.

    ``clock`` is the clock of its processor time.
    """

    def __init__(self) -> None:
        self.clock = -1
        self.state: Any = None
        self.task: Task | None = None
        self.needed = threading.Lock()
        self.needed.acquire()

    def is_computing(self) -> bool:
        """Return whether its task seems to use the processor."""
        task = self.task
        if task is None:
            return False
        if task.has_computed is not None:
            return task.has_computed
        return time.clock_gettime(self.clock) - task.took > COMPUTING


class Crew:
    """Threads that ``take`` requests and ``answer`` them.

    ``take`` waits for a request and returns it, or None after the last one. Both callbacks get the worker, whose
    ``state`` was made by ``make_state`` on its thread. ``volume_of`` returns the volume of a node and must not wait.
    ``refuse`` answers a request for which there is no memory. ``ended`` is called by each thread that got None.
    """

    def __init__(
        self, take: Callable[[Worker], Task | None], answer: Callable[[Worker, Task], None],
        make_state: Callable[[], Any], volume_of: Callable[[int], str], refuse: Callable[[Task], None],
        ended: Callable[[], None], shares: Shares = Shares(),
    ) -> None:
        self._take = take
        self._answer = answer
        self._make_state = make_state
        self._volume_of = volume_of
        self._refuse = refuse
        self._ended = ended
        self._shares = shares
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._waiting: set[Worker] = set()
        """Those that wait for requests, or are about to."""
        self._taken = 0
        """Requests taken so far."""
        self._parked: list[Worker] = []
        """The most recently used last."""
        self._queues: dict[tuple[int, str, bool], deque[Task]] = {}
        """Deferred requests by user, volume, and whether they read: of one queue either all may begin or none."""
        self._is_slow = self._is_over = False
        self._is_supervised = True
        self._check = threading.Event()
        self.computing = 0
        """Requests that computed at the last tick."""
        self.busy = threading.Event()
        """Set when requests begin, and by a tick that finds some in progress."""

    def start(self) -> None:
        """Start the first threads. Raises Unavailable if the system has none left."""
        self._add()
        threads.start("supervisor", self._supervise)

    @property
    def is_crowded(self) -> bool:
        """Whether there are more threads than are kept alive."""
        return len(self._workers) > self._shares.idle

    def tasks(self) -> list[Task]:
        """Return the requests that were taken and are not answered yet."""
        with self._lock:
            begun = [worker.task for worker in self._workers if worker.task is not None]
            return begun + [task for queue in self._queues.values() for task in queue]

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
        """Note which requests compute. Call this a few times a second while ``busy``, which is cleared before."""
        computing = 0
        with self._lock:
            for worker in self._workers:
                if (task := worker.task) is None:
                    continue
                before, task.took = task.took, time.clock_gettime(worker.clock)
                task.has_computed = task.took - before > COMPUTING
                computing += task.has_computed and not (task.opcode in UNOWNED or self._volume(task) == RESERVED)
        self.computing = computing
        if self.tasks():
            self.busy.set()

    def _add(self) -> None:
        """Have one more thread wait for requests. Raises Unavailable if the system has none left."""
        with self._lock:
            if self._parked:
                worker = self._parked.pop()
                self._waiting.add(worker)
                worker.needed.release()
                return
            worker = Worker()
            self._waiting.add(worker)
        try:
            threads.start("worker", self._work, worker)
        except Unavailable:
            with self._lock:
                self._waiting.discard(worker)
            raise

    def _work(self, worker: Worker) -> None:
        try:
            worker.clock = time.pthread_getcpuclockid(threading.get_ident())
            worker.state = self._make_state()
            with self._lock:
                self._workers.add(worker)
        except (MemoryError, OSError) as error:
            with self._lock:
                self._waiting.discard(worker)
            self._report_shortage(error)
            return
        try:
            while self._serve(worker):
                pass
        finally:
            with self._lock:
                self._workers.discard(worker)
                self._waiting.discard(worker)

    def _serve(self, worker: Worker) -> bool:
        """Take one request, answer it, and then deferred ones that may begin; return whether to go on."""
        task: Task | None = None
        try:
            if self._queues:
                task = self._deferred(worker)
            if task is None:
                task = self._take(worker)
                if task is None:
                    self._is_over = True
                    self._check.set()
                    self._ended()
                    return False
                if not self._begins(worker, task):
                    task = None
            while task is not None:
                task = self._answered(worker, task)
        except MemoryError:
            # Wherever it came from: the sets are restored by adding and discarding once more, which needs no memory,
            # and a second answer to a request is refused by the kernel.
            if task is not None:
                self._refuse(task)
            with self._lock:
                worker.task = None
                self._waiting.add(worker)
        return worker in self._waiting or self._park(worker)

    def _deferred(self, worker: Worker) -> Task | None:
        """Return a deferred request that may begin now, with another thread to wait for further ones."""
        with self._lock:
            task = self._resumable()
            if task is not None:
                worker.task = task
                self._waiting.discard(worker)
        if task is not None:
            self._relieve()
        return task

    def _begins(self, worker: Worker, task: Task) -> bool:
        """Return whether a request may begin now, with another thread to wait for the next one; or else defer it."""
        with self._lock:
            self._taken += 1
            self._waiting.discard(worker)
            worker.task = task
            # Counted from the sets, so that most requests, beside few others, cost no look at those.
            in_progress = len(self._workers) - len(self._waiting) - len(self._parked)
            if in_progress > self._shares.free and not self._fits(task):
                kind = task.owner, self._volume(task), task.opcode == READ
                if kind in self._queues:
                    self._queues[kind].append(task)
                else:
                    self._queues[kind] = deque((task,))
                worker.task = None
                self._waiting.add(worker)
                if not self._is_supervised:
                    self._check.set()
                return False
            is_alone = not self._waiting
        if not self.busy.is_set():
            self.busy.set()
        if is_alone:
            self._leave(task)
        return True

    def _answered(self, worker: Worker, task: Task) -> Task | None:
        """Answer a request. Return a deferred one to be answered next; None if this thread is to wait or to park."""
        work.begin(task)
        task.took = time.thread_time()
        # Measured for reads only: other requests are short, or wait for the same stores as reads do.
        begun = time.perf_counter()
        self._answer(worker, task)
        if task.opcode == READ:
            # After a read that took long, the next one is expected to be slow as well.
            self._is_slow = time.perf_counter() - begun > settings.slow_read
        # Deferring takes the same lock: requests for which another one was deferred come by here after that.
        with self._lock:
            worker.task = None  # no longer busy, or the next one might not fit
            worker.task = self._resumable() if self._queues else None
            if worker.task is None and not self._waiting:
                self._waiting.add(worker)
            return worker.task

    def _leave(self, task: Task) -> None:
        """Provide for requests that come while ``task`` is answered, as no other thread waits for them."""
        is_long = task.opcode == READ and (self._is_slow or task.size >= LONG_READ_BYTES)
        if is_long or self.is_crowded:
            self._relieve()
        elif not self._is_supervised:
            self._check.set()

    def _relieve(self) -> None:
        try:
            self._add()
        except (Unavailable, RuntimeError) as error:  # the latter: there is no memory for a lock
            self._report_shortage(error)

    def _report_shortage(self, error: Exception) -> None:
        """Log it, and have the supervisor try again until a thread waits for requests."""
        self._check.set()
        log.warning("requests may have to wait: %s", str(error) or "there is not enough memory")

    def _supervise(self) -> None:
        """Add a thread whenever none waits for requests and none was taken since the previous check.

        Deferred requests are looked at as well: what they wait for may have begun to wait itself. When there has been
        nothing to do for a while, it sleeps until it is woken.
        """
        idle_since = time.monotonic()
        while not self._is_over:
            taken = self._taken
            time.sleep(settings.supervision)
            try:
                if not self._waiting:
                    idle_since = time.monotonic()
                    if taken == self._taken:  # else the threads are only busy
                        self._relieve()
                elif self._queues:
                    time.sleep(settings.resumption)
                    with self._lock:
                        fits = any(self._fits(queue[0]) for queue in self._queues.values())
                    if fits:  # others have stopped computing
                        self._relieve()
                elif time.monotonic() - idle_since > settings.supervised:
                    self._is_supervised = False
                    if self._waiting and not self._queues:  # else a thread did not see the flag just now
                        self._check.wait()
                    self._check.clear()
                    self._is_supervised = True
                    idle_since = time.monotonic()
            except MemoryError:  # there is more when a request has been answered
                continue

    def _park(self, worker: Worker) -> bool:
        """Wait until one more thread is needed; return False at once if enough threads are parked."""
        with self._lock:
            # The thread that was parked last is woken first: its buffers and stack are in the processor's cache.
            if len(self._parked) >= self._shares.idle - 1:
                return False
            self._parked.append(worker)
        worker.needed.acquire()
        return True

    def _volume(self, task: Task) -> str:
        """Return the volume that counts for a request."""
        return RESERVED if task.is_own else self._volume_of(task.within or task.ident)

    def _fits(self, task: Task) -> bool:
        """Return whether ``task`` is within the share of its user beside all others. The caller holds the lock."""
        if task.opcode in UNOWNED:
            return True
        shares = self._shares
        busy = [worker for worker in self._workers if worker.task is not None and worker.task is not task]
        of_user = [worker.task for worker in busy if worker.task and worker.task.owner == task.owner]
        volume = self._volume(task)
        if volume == RESERVED:
            return sum(self._volume(other) == RESERVED for other in of_user) < shares.own
        # A user who has nothing in progress may not be held up by all others together, so there is a reserve.
        if not of_user:
            return len(self._workers) < shares.threads + shares.reserved
        if len(of_user) >= shares.user or len(self._workers) >= shares.threads:
            return False
        # Users who compute divide the processors, and the interpreter, into equal parts of at least one request.
        computing = [worker.task.owner for worker in busy if worker.task and worker.is_computing()]
        part = max(1, shares.computing // len({task.owner, *computing}))
        if computing.count(task.owner) >= min(part, shares.user_computing):
            return False
        # What hangs in one file system must leave threads for others of the same user, and reads for ``stat`` there.
        is_read = task.opcode == READ
        return sum(
            (other.opcode == READ) == is_read and self._volume(other) == volume for other in of_user
        ) < shares.volume

    def _resumable(self) -> Task | None:
        """Take a deferred request that may begin now. The caller holds the lock."""
        for kind, queue in self._queues.items():
            if self._fits(queue[0]):
                # The queue goes to the end, so that those of all users have their turn.
                del self._queues[kind]
                task = queue.popleft()
                # It counts as computing until a tick shows that it waits: beside many others its own processor time
                # tells that late, and meanwhile one after another would begin.
                task.has_computed = True
                if queue:
                    self._queues[kind] = queue
                return task
        return None
