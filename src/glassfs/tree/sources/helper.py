"""Doing what may hang, a folder on a dead server for one, without hanging: on a thread that is left behind then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar

from glassfs.errors import DeviceFailed, GlassfsError, Unavailable

PATIENCE = 10.0
"""Seconds that one folder, or some hundred rows of one container, may take."""
MOST_HANGING, MOST_OF_VOLUME = 32, 4
"""Things that may hang at a time before nothing more is tried: of all, and of what lies on one disk."""

Result = TypeVar("Result")


class Helper:
    """A thread that does things for others, who wait for each no longer than ``patience``. Any thread.

    What still hangs is not tried again, nor is more of a volume of which several things do: on a dead disk all would.
    The more of them there are, the shorter is what others are waited for.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._free: list[tuple[threading.Thread, queue.SimpleQueue[Any]]] = []
        self._hanging: dict[Hashable, str | None] = {}
        """And their volumes, where it is these that do not answer."""

    def call(
        self, key: Hashable, volume: str, do: Callable[[], Result], probe: Callable[[], object] | None = None,
    ) -> Result:
        """What ``do`` gives or raises; DeviceFailed if what ``key`` stands for, which lies there, does not answer.

        What may take long for another reason than its volume has a ``probe``, which should answer at once: it tells
        whether the volume does.
        """
        with self._lock:
            hanging = self._hanging
            is_too_much = len(hanging) >= MOST_HANGING or list(hanging.values()).count(volume) >= MOST_OF_VOLUME
            if key in hanging or is_too_much:
                raise DeviceFailed("does not answer")
            patience = self._patience / (1 + len(hanging))
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
        if not call.is_done.wait(patience):
            with self._lock:
                self._hanging[key] = None if probe else volume
            call.then(lambda: self._back(key, tasks))
            if probe is not None:
                with suppress(GlassfsError):
                    self.call((key, "probe"), volume, probe)
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
            self._hanging.pop(key, None)
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
