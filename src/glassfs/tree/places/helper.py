"""Doing what may hang, a folder on a dead server for one, without hanging: on a thread that is left behind then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from glassfs.errors import DeviceFailed, Unavailable

PATIENCE = 10.0
"""Seconds that one folder, or some hundred rows of one container, may take."""
MOST_HANGING = 8

Result = TypeVar("Result")


class Helper:
    """A thread that does things for others, who wait for each no longer than ``patience``. Any thread.

    What still hangs is not tried again, and nothing is while there are very many that do.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._free: list[tuple[threading.Thread, queue.SimpleQueue[Any]]] = []
        self._hanging: set[Hashable] = set()

    def call(self, key: Hashable, do: Callable[[], Result]) -> Result:
        """What ``do`` gives or raises; DeviceFailed if what ``key`` stands for does not answer."""
        with self._lock:
            if key in self._hanging or len(self._hanging) >= MOST_HANGING:
                raise DeviceFailed("does not answer")
            tasks = None
            while tasks is None and self._free:
                thread, tasks = self._free.pop()
                if not thread.is_alive():  # this process was forked off without it
                    tasks = None
        if tasks is None:
            tasks = queue.SimpleQueue()
            thread = threading.Thread(target=_run, args=(tasks,), name="glassfs-helper", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise Unavailable("no thread can be started") from None
        call = _Call(do)
        tasks.put(call)
        if not call.is_done.wait(self._patience):
            with self._lock:
                self._hanging.add(key)
            call.then(lambda: self._back(key, tasks))
            raise DeviceFailed("does not answer")
        with self._lock:
            self._free.append((thread, tasks))
        if call.error is not None:
            raise call.error
        result: Result = call.result
        return result

    def close(self) -> None:
        """Ends the threads that have nothing to do; whoever calls again gets another one."""
        with self._lock:
            free, self._free = self._free, []
        for _, tasks in free:
            tasks.put(None)

    def _back(self, key: Hashable, tasks: queue.SimpleQueue[Any]) -> None:
        """What did hang has come to an end."""
        with self._lock:
            self._hanging.discard(key)
        tasks.put(None)


class _Call:
    """One thing to be done."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.is_done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._do = do
        self._lock = threading.Lock()
        self._then: Callable[[], None] | None = None

    def run(self) -> None:
        try:
            self.result = self._do()
        except BaseException as error:
            self.error = error
        with self._lock:
            self.is_done.set()
            then = self._then
        if then is not None:
            then()

    def then(self, do: Callable[[], None]) -> None:
        """Has something done when this is."""
        with self._lock:
            if not self.is_done.is_set():
                self._then = do
                return
        do()


def _run(tasks: queue.SimpleQueue[Any]) -> None:
    while (call := tasks.get()) is not None:
        call.run()
        del call  # what it refers to, such as a container, is not needed any more
