"""Daemon threads, and a pool of them for calls that may hang. Any thread.

Daemon threads never delay the end of the process, however long their tasks take.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from glassfs.errors import Unavailable
from glassfs.forks import PerProcess

IDLE_SECONDS = 5.0

Result = TypeVar("Result")


def start(name: str, run: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start a daemon thread called ``glassfs-NAME``. Raises Unavailable if the system refuses another thread."""
    try:
        thread = threading.Thread(target=run, args=arguments, name=f"glassfs-{name}", daemon=True)
        thread.start()
    except (RuntimeError, MemoryError):  # the former also if there is no memory for a lock
        raise Unavailable("no thread can be started") from None
    return thread


class DaemonPool:
    """Up to ``most`` daemon threads that run tasks in order; None: as many as there are tasks.

    Threads start on demand and end after ``IDLE_SECONDS`` without a task. A forked process starts threads of its own;
    it does not run its parent's tasks.
    """

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._state: PerProcess[_State] = PerProcess(_State)

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Queue a task and return its future. Raises Unavailable if no thread runs and none can be started."""
        state = self._state.get()
        future: Future[Result] = Future()
        with state.changed:
            state.tasks.append((future, task))
            if state.idle >= len(state.tasks):
                state.changed.notify()
            elif self._most is None or state.threads < self._most:
                try:
                    self._start(state)
                except Unavailable:
                    if not state.threads or self._most is None:
                        state.tasks.pop()
                        raise
        return future

    def _start(self, state: _State) -> None:
        """Start one more thread. The caller holds the lock."""
        start(self._name, self._run, state)
        state.threads += 1

    def _run(self, state: _State) -> None:
        """Run tasks until there is none for a while."""
        while (next_task := self._next(state)) is not None:
            future, task = next_task
            if future.set_running_or_notify_cancel():
                _settle(future, task)
            del future, task, next_task  # what the task refers to must not stay alive while the thread idles

    def _next(self, state: _State) -> tuple[Future[Any], Callable[[], Any]] | None:
        with state.changed:
            if not state.tasks:
                state.idle += 1
                state.changed.wait_for(lambda: state.tasks, IDLE_SECONDS)
                state.idle -= 1
            if not state.tasks:
                state.threads -= 1
                return None
            return state.tasks.popleft()


class _State:
    """What the threads of one process share, under the lock of ``changed``."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.threads = self.idle = 0


def _settle(future: Future[Result], task: Callable[[], Result]) -> None:
    try:
        result = task()
    except BaseException as error:  # the caller gets it, whatever it is
        future.set_exception(error)
        del future, task  # the exception refers to this frame
    else:
        future.set_result(result)
