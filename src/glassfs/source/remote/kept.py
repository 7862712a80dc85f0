"""A value that takes a request to get: kept, and looked at again now and then without anybody having to wait.

Any thread. Whoever asks for it the first time waits, and so does everybody else who asks meanwhile, for one request.
Later it is given as it is; if it is older than it should be, it is looked at again beside that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from glassfs.errors import GlassfsError, NotFound

Value = TypeVar("Value")
WORKERS = 4
"""Threads that look at values again."""
IDLE = 5.0
"""Seconds after which one that has nothing to do ends."""


class Kept(Generic[Value]):
    """What ``load`` gives, which is told what there was before. It is good for ``lifetime`` seconds.

    What is not there any more is remembered as well; whatever else goes wrong leaves what there was.
    """

    def __init__(self, load: Callable[[Value | None], Value], lifetime: float) -> None:
        self._load = load
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._value: Value | None = None
        self._gone: NotFound | None = None
        self._until = 0.0
        self._is_known = False
        self._loading: Future[Value] | None = None

    def get(self, is_fresh: bool = False) -> Value:
        """The value; if it ``is_fresh``, none that is older than it should be. Raises what loading raises."""
        with self._lock:
            is_due = time.monotonic() >= self._until
            is_known = self._is_known and not (is_fresh and is_due)
            is_mine = self._loading is None and (is_due or not is_known)
            if is_mine:
                self._loading = Future()
            loading, value, gone = self._loading, self._value, self._gone
        if is_known:
            if is_mine:
                _refreshers.do(self._renew)
            if gone is not None:
                raise gone.at()
            return value  # type: ignore[return-value]  # it is known
        if is_mine:
            self._renew()
        assert loading is not None
        error = loading.exception()
        if isinstance(error, GlassfsError):
            raise error.at()
        return loading.result()

    @property
    def last(self) -> Value | None:
        """What it was when it was looked at last, if it was there."""
        return self._value

    def expire(self) -> None:
        """What there is is known to be wrong: whoever asks next waits for another."""
        with self._lock:
            self._is_known, self._until = False, 0.0

    def _renew(self) -> None:
        """Loads it for all who wait."""
        with self._lock:
            loading, before = self._loading, self._value
        assert loading is not None
        try:
            value = self._load(before)
        except BaseException as error:
            with self._lock:
                self._loading = None
                if isinstance(error, NotFound):
                    self._set(None, error)
                elif self._is_known:
                    self._until = time.monotonic() + self._lifetime
            loading.set_exception(error)
            return
        with self._lock:
            self._loading = None
            self._set(value, None)
        loading.set_result(value)

    def _set(self, value: Value | None, gone: NotFound | None) -> None:
        self._value, self._gone = value, gone
        self._is_known, self._until = True, time.monotonic() + self._lifetime


class _Refreshers:
    """A few threads that do what nobody waits for, as long as there is any."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads = self._idle = 0

    def do(self, task: Callable[[], object]) -> None:
        with self._condition:
            self._waiting.append(task)
            if self._idle:
                self._condition.notify()
            elif self._threads < WORKERS:
                self._threads += 1
                threading.Thread(target=self._work, name="glassfs-refresh", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._waiting:
                    self._idle += 1
                    is_needed = self._condition.wait(IDLE)
                    self._idle -= 1
                    if not is_needed and not self._waiting:
                        self._threads -= 1
                        return
                task = self._waiting.popleft()
            task()


_refreshers = _Refreshers()
