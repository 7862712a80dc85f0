"""Threads for calls that block and cannot be called back: who waits for one gives up in time, whatever it does.

A ``Crew`` has a few threads, each with a line of its own: a connection that nobody else uses. Every task ends by its
deadline, with its result or with DeviceFailed; a thread that is still at it then is left behind with its line and not
waited for. When too many are left behind, tasks are refused at once until one of them comes back. Threads that have had
nothing to do for a while close their lines and end.

Everything may be called from any thread, but only in the process that made the crew.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, Protocol, TypeVar

from glassfs.errors import DeviceFailed, Unavailable

IDLE = 30.0
MOST_LOST = 32


class Line(Protocol):
    def serves(self, near: str) -> bool:
        """Whether it has at hand what is called so."""

    def close(self) -> None:
        """Gives back what it holds, until it is used again."""


L = TypeVar("L", bound=Line)


class Task(Generic[L]):
    """Something to do on a line, best on one that serves ``near``; errors call it ``shown``."""

    def __init__(self, work: Callable[[L, Task[L]], Any], shown: str, near: str, deadline: float) -> None:
        self.future: Future[Any] = Future()
        self.work = work
        self.shown = shown
        self.near = near
        self.deadline = deadline

    @property
    def left(self) -> float:
        """The seconds until the deadline; not above 0 when nobody waits for it any more."""
        return 0.0 if self.future.done() else self.deadline - time.monotonic()


class _Worker(Generic[L]):
    """A thread. ``line`` is its own; the rest is guarded by the lock of the crew."""

    def __init__(self, lock: threading.Lock, line: L, task: Task[L]) -> None:
        self.line = line
        self.woken = threading.Condition(lock)
        self.task: Task[L] | None = task
        self.is_lost = False
        self.must_close = False


class Crew(Generic[L]):
    """Up to ``most`` threads at work on lines that ``make`` gives, which must not block."""

    def __init__(self, make: Callable[[], L], most: int, timeout: float, idle: float = IDLE) -> None:
        self._make = make
        self._most = most
        self._timeout = timeout
        self._idle_time = idle
        self._lock = threading.Lock()
        self._begun = threading.Condition(self._lock)
        self._is_watched = False
        self._tasks: OrderedDict[Task[L], None] = OrderedDict()
        """All that are not done yet. As each has the same time, the first one's deadline comes first."""
        self._queue: deque[Task[L]] = deque()
        self._workers: set[_Worker[L]] = set()
        """Those that are not lost."""
        self._idle: list[_Worker[L]] = []
        self._lost = 0

    def submit(self, work: Callable[[L, Task[L]], Any], shown: str, near: str = "") -> Future[Any]:
        """Begins a task. Raises DeviceFailed if too many have not come back, Unavailable without threads."""
        with self._lock:
            if self._lost >= MOST_LOST:
                raise DeviceFailed("does not answer", shown)
            task = Task(work, shown, near, time.monotonic() + self._timeout)
            try:
                if not self._is_watched:
                    threading.Thread(target=self._watch, name="glassfs-deadlines", daemon=True).start()
                    self._is_watched = True
                self._tasks[task] = None
                self._place(task)
            except RuntimeError:
                self._tasks.pop(task, None)
                raise Unavailable("no thread can be started", shown) from None
            self._begun.notify()
        return task.future

    def close(self) -> None:
        """Has the threads close their lines, those at work when they are done with what they do."""
        with self._lock:
            for worker in self._workers:
                worker.must_close = True
                worker.woken.notify()

    def _place(self, task: Task[L]) -> None:
        """Gives a task to a thread, or has it wait for one."""
        if self._idle:
            worker = next((one for one in self._idle if one.line.serves(task.near)), self._idle[-1])
            self._idle.remove(worker)
            worker.task = task
            worker.woken.notify()
        elif len(self._workers) < self._most:
            worker = _Worker(self._lock, self._make(), task)
            threading.Thread(target=self._serve, args=(worker, task), name="glassfs-line", daemon=True).start()
            self._workers.add(worker)
        else:
            self._queue.append(task)

    def _serve(self, worker: _Worker[L], first: Task[L]) -> None:
        task: Task[L] | None = first
        while task is not None:
            try:
                result, error = task.work(worker.line, task), None
            except BaseException as raised:  # strangers' code may raise anything
                result, error = None, raised
            with self._lock:
                is_awaited = self._tasks.pop(task, task) is None
                self._free(worker)
            # Who is told now and asks for more finds this thread free again.
            if is_awaited:
                _settle(task.future, result, error)
            del result, error, task
            if worker.must_close:
                worker.must_close = False
                worker.line.close()
            task = self._next(worker)
        worker.line.close()
        with self._lock:
            self._lost -= 1

    def _free(self, worker: _Worker[L]) -> None:
        """Has a thread take the next task, or wait for one."""
        worker.task = None
        if worker.is_lost:
            return
        if self._queue:
            worker.task = self._queue.popleft()
        else:
            self._idle.append(worker)

    def _next(self, worker: _Worker[L]) -> Task[L] | None:
        """What is to be done next, or None if the thread shall end: it counts as lost until its line is closed."""
        with self._lock:
            if worker.is_lost:
                return None
            until = time.monotonic() + self._idle_time
            while worker.task is None and not worker.must_close and (left := until - time.monotonic()) > 0:
                worker.woken.wait(left)
            if worker.task is None:
                self._idle.remove(worker)
                self._workers.remove(worker)
                self._lost += 1
            return worker.task

    def _watch(self) -> None:
        """Gives up what has passed its deadline, until there has been nothing to watch for a while."""
        while True:
            with self._lock:
                task = next(iter(self._tasks), None)
                if task is None:
                    if not self._begun.wait(self._idle_time) and not self._tasks:
                        self._is_watched = False
                        return
                    continue
                left = task.deadline - time.monotonic()
                if left > 0:
                    self._begun.wait(left)
                    continue
                self._give_up(task)
            late = DeviceFailed(f"does not answer within {self._timeout:g} seconds", task.shown)
            _settle(task.future, None, late)

    def _give_up(self, task: Task[L]) -> None:
        del self._tasks[task]
        worker = next((one for one in self._workers if one.task is task), None)
        if worker is None:
            self._queue.remove(task)
            return
        worker.is_lost = True
        self._workers.remove(worker)
        self._lost += 1
        if self._queue:
            waiting = self._queue.popleft()
            try:
                self._place(waiting)
            except RuntimeError:  # no thread: it may still get one of the others
                self._queue.appendleft(waiting)


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    """Ends a future, which may have been cancelled."""
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        future.set_running_or_notify_cancel()
