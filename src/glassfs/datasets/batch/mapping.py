"""Map work over worker processes, of this machine or of a Dask cluster, with a bounded number of tasks.

A task has a few containers, and its results are used as they come. The number of containers per task follows from the
time they take; a task that takes longer returns what it has not begun. Tasks under way and the bytes of their results
are bounded. If workers end, their containers are processed again, one at a time, so that the container that ends its
worker is found and reported as a fault. Worker processes end with their parent, however that ends. One thread.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import wait
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from glassfs.datasets.batch.found import BatchError, Outcome, Problem, SearchHit, Work
from glassfs.settings import settings
from glassfs.sizes import PIECE

MAX_ITEMS = 256
TASKS_PER_WORKER = 3
"""Submitted tasks per worker: one runs, the others are queued."""


Done: TypeAlias = tuple[SearchHit, Outcome]
"""An item and an outcome for it; more of them follow if that has a ``rest``."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers(AbstractContextManager["Workers"]):
    """An executor of ``width`` tasks at a time. ``lost`` are the exceptions of tasks whose worker ended.

    A task that has ended ``tries`` workers is at fault itself. ``name`` is the address of remote workers, whose paths
    must be absolute.
    """

    name = ""
    width: int
    lost: tuple[type[BaseException], ...]
    tries: int
    is_remote: bool

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(is_over=kind is None)

    @abstractmethod
    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        """Run a task. Raises one of ``lost`` if there are no workers, until ``renew``."""

    @abstractmethod
    def renew(self) -> None:
        """Restore the number of workers after some were lost; called when none is busy."""

    def demand_alive(self) -> None:
        """Raise BatchError if no worker can do anything."""

    @abstractmethod
    def stop(self, is_over: bool) -> None:
        """End what was started here: at once unless ``is_over``, that is, the work is complete."""


class Processes(Workers):
    """Processes of this machine, spawned instead of forked.

    After an early ``stop``, threads may be left that wait forever: the process must end with ``os._exit``.
    """

    lost = (BrokenProcessPool,)
    tries = 3
    is_remote = False

    def __init__(self, width: int) -> None:
        self.width = width
        self._before = set(multiprocessing.active_children())
        self._executor = self._started()

    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        with _signals_blocked():
            return self._executor.submit(task, *words)

    def renew(self) -> None:
        self.stop(is_over=False)
        self._executor = self._started()

    def demand_alive(self) -> None:
        try:
            # If even this fails, no container is to blame: the machine, or the installation, cannot run workers.
            self.submit(os.getpid).result()
        except self.lost:
            raise BatchError("worker processes end right after they start") from None

    def stop(self, is_over: bool) -> None:
        if is_over:
            self._executor.shutdown()
            return
        # All children that were started since: the executor has no public list of its processes.
        killed = set(multiprocessing.active_children()) - self._before
        for process in killed:
            process.kill()
        for process in killed:
            process.join(settings.worker_end)
        # A thread of the executor waits forever if a killed worker wrote half of a result. Usually it does not, and
        # the shutdown releases its locks within a moment.
        end = partial(self._executor.shutdown, wait=True, cancel_futures=True)
        ending = threading.Thread(target=end, name="end of workers", daemon=True)
        ending.start()
        ending.join(settings.executor_end)

    def _started(self) -> Executor:
        # A forked process would have the locks of threads that it does not have.
        context = multiprocessing.get_context("spawn")
        with _signals_blocked():
            return ProcessPoolExecutor(self.width, context, initializer=_begin_worker)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C and a closed terminal: the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """End this process when its parent ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        # The sentinel becomes readable when the parent ends, also by SIGKILL, which nothing else would tell a worker.
        threading.Thread(target=_end_with, args=(parent.sentinel,), name="parent", daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Cluster(Workers):
    """The workers of the Dask scheduler at ``address``. Raises BatchError if it cannot be used."""

    tries = 1  # the scheduler itself has tried several workers
    is_remote = True

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise BatchError("--scheduler needs Dask: install glassfs[dask]") from None
        self.name = address
        self.lost = (distributed.KilledWorker,)
        # Their messages are for the cluster's administrator; the user gets one sentence.
        logging.disable(logging.CRITICAL)
        try:
            made: Any = distributed.Client
            self._client = made(address, timeout=settings.scheduler_longest, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise BatchError(f"the scheduler does not answer: {_first_line(error)}", address) from None
        try:
            self._client.wait_for_workers(1, timeout=settings.scheduler_longest)
            self._executor = self._client.get_executor(pure=False)
            self.width = max(1, sum(self._client.nthreads().values()))
        except BaseException as error:
            self._client.close(timeout=1)
            if not isinstance(error, OSError):
                raise
            seconds = settings.scheduler_longest
            raise BatchError(f"the scheduler had no workers for {seconds:g} seconds", address) from None

    def submit(self, task: Callable[..., Any], *words: Any) -> Future[Any]:
        try:
            future: Future[Any] = self._executor.submit(task, *words)
        except Exception as error:
            raise BatchError(f"the scheduler is gone: {_first_line(error)}", self.name) from None
        return future

    def renew(self) -> None:
        self.width = max(1, sum(self._client.nthreads().values()))

    def stop(self, is_over: bool) -> None:
        with suppress(Exception):
            self._executor.shutdown(wait=False)
        with suppress(Exception):
            self._client.close(timeout=settings.scheduler_longest if is_over else 2)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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
