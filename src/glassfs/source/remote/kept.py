"""A value that takes a request to get: kept, and looked at again now and then without anybody having to wait.

Any thread. Whoever needs it the first time waits, and so does everybody else who comes meanwhile, for one request.
Later it is given as it is; if it is older than it should be, it is looked at again beside that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Generic, TypeVar

from glassfs.errors import DeviceFailed, GlassfsError, NotFound

Value = TypeVar("Value")
WORKERS = 4
"""Threads of a store that look at values again."""
IDLE = 5.0
"""Seconds after which one that has nothing to do ends."""
PATIENCE = 1.0
"""Seconds that whoever only looks waits for a value that nobody has looked at for long."""
LONGEST = 4000.0
"""Seconds: more than any request may take."""
NEVER = float("-inf")


class Refreshers:
    """A few threads that do what nobody waits for, as long as there is any."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads = self._idle = 0

    def do(self, task: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.append(task)
            if self._idle >= len(self._waiting):
                self._lock.notify()
            elif self._threads < WORKERS:
                self._threads += 1
                try:
                    threading.Thread(target=self._work, name="glassfs-refresh", daemon=True).start()
                except RuntimeError:  # there are none left; another one will come by here
                    self._threads -= 1

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                is_more = self._lock.wait_for(lambda: self._waiting, IDLE)
                self._idle -= 1
                if not is_more:
                    self._threads -= 1
                    return
                task = self._waiting.popleft()
            task()


class Kept(Generic[Value]):
    """What ``load`` gives, which is told what there was before. It is good for ``lifetime`` seconds.

    What is not there any more is remembered as well; whatever else goes wrong leaves what there was. Times are those of
    ``time.monotonic``.
    """

    def __init__(self, load: Callable[[Value | None], Value], lifetime: float, refreshers: Refreshers) -> None:
        self._load = load
        self._lifetime = lifetime
        self._refreshers = refreshers
        self._lock = threading.Lock()
        self._value: Value | None = None
        self._gone: NotFound | None = None
        self._begun = self._tried = NEVER
        """When what is known was asked for, and when it was tried last."""
        self._loading: Future[None] | None = None
        self._is_queued = False

    @property
    def last(self) -> Value | None:
        """What it was when it was looked at last, if it was there."""
        return self._value

    def glance(self) -> Value:
        """The value as it is known. For one that nobody has looked at for long there is a short wait."""
        now = time.monotonic()
        with self._lock:
            is_known = self._begun != NEVER
            is_due = now - self._tried >= self._lifetime and self._loading is None
            is_old = now - self._begun >= 2 * self._lifetime
            is_queued = self._is_queued
            if is_known and is_due and not is_old:
                self._is_queued = True
        if not is_known:
            return self.get(NEVER)
        if is_due and is_old:
            self._wait_a_little()
        elif is_due and not is_queued:
            self._refreshers.do(self._renew)
        return self._known()

    def get(self, since: float) -> Value:
        """The value as it was at that moment or later. Raises what loading raises."""
        while True:
            with self._lock:
                if self._begun != NEVER and self._begun >= since:
                    break
                loading, began = self._loading, self._tried
            if loading is None:
                loading = self._start()
                if loading is None:
                    continue
                began = self._tried
                self._run(loading)
            try:
                loading.result(LONGEST)
            except FutureTimeout:
                raise DeviceFailed("does not answer") from None
            except GlassfsError as error:
                if began >= since:
                    raise error.at() from None
            except _GivenUp:
                pass
        return self._known()

    def recent(self) -> Value:
        """The value, and none that is older than it should be."""
        return self.get(time.monotonic() - self._lifetime)

    def _known(self) -> Value:
        with self._lock:
            value, gone = self._value, self._gone
        if gone is not None:
            raise gone.at()
        return value  # type: ignore[return-value]  # it is known

    def _wait_a_little(self) -> None:
        loading = self._start()
        if loading is None:
            return
        try:
            threading.Thread(target=self._run, args=(loading,), name="glassfs-look", daemon=True).start()
        except RuntimeError:
            self._run(loading)
        with suppress(FutureTimeout, GlassfsError, _GivenUp):
            loading.result(PATIENCE)

    def _start(self) -> Future[None] | None:
        """What whoever loads it gets; None if somebody else is loading it."""
        with self._lock:
            if self._loading is not None:
                return None
            self._loading = Future()
            self._tried = time.monotonic()
            return self._loading

    def _renew(self) -> None:
        with self._lock:
            self._is_queued = False
        if time.monotonic() - self._tried >= self._lifetime:
            loading = self._start()
            if loading is not None:
                self._run(loading)

    def _run(self, loading: Future[None]) -> None:
        """Loads it, for all who wait."""
        began = self._tried
        try:
            value = self._load(self._value)
        except NotFound as error:
            self._end(began, None, error)
            loading.set_exception(error)
        except Exception as error:
            with self._lock:
                self._loading = None
            loading.set_exception(error)
        except BaseException:  # whoever waits has not been interrupted, and loads it himself
            with self._lock:
                self._loading = None
            loading.set_exception(_GivenUp())
            raise
        else:
            self._end(began, value, None)
            loading.set_result(None)

    def _end(self, began: float, value: Value | None, gone: NotFound | None) -> None:
        with self._lock:
            self._value, self._gone, self._begun, self._loading = value, gone, began, None


class _GivenUp(Exception):
    """Who was loading it does so no more."""
