"""A value that takes a request to get, refreshed in the background so that readers seldom wait. Any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from glassfs import work
from glassfs.errors import GlassfsError, NotFound, Unavailable
from glassfs.settings import settings
from glassfs.threads import DaemonPool

Value = TypeVar("Value")

MOST_REFRESHING = 4
"""Values of one ``Loads`` that are refreshed at once; more are not begun before one of these ends."""
NEVER = float("-inf")


class Loads:
    """The threads that load the values of one store."""

    def __init__(self) -> None:
        self.pool = DaemonPool("loads")
        self.refreshing = threading.Semaphore(MOST_REFRESHING)


class CachedValue(Generic[Value]):
    """What ``load``, called with the previous value or None, returns; valid for ``ttl_seconds``.

    That the value is NotFound is remembered as well. After any other error the previous value stays. Loading ends after
    the server's timeout.
    """

    def __init__(self, load: Callable[[Value | None], Value], ttl_seconds: float, loads: Loads) -> None:
        self._load = load
        self._ttl_seconds = ttl_seconds
        self._loads = loads
        self._lock = threading.Lock()
        self._missing: NotFound | None = None
        self._loading: Future[None] | None = None
        self._asked_at = NEVER
        """When loading was last begun."""
        self._known_at = NEVER
        """When the loading that gave the present value was begun."""
        self.last: Value | None = None
        """The value that was loaded last, or None."""

    def peek(self) -> Value:
        """Return the value at once if it is known, and refresh it in the background if it is too old.

        If it is twice too old, wait settings.listing_news for the refreshed one. Raises what ``load`` raises.
        """
        now = time.monotonic()
        if self._known_at == NEVER:
            return self.newer_than(0.0)
        # Old facts at once are better than new ones late: the value is refreshed for the next caller. Only one that is
        # much too old is worth a short wait.
        is_due = self._loading is None and now - self._asked_at >= self._ttl_seconds
        if is_due and self._loads.refreshing.acquire(blocking=False):
            try:
                loading, _ = self._started()
            except Unavailable:  # no thread: a later call tries again
                self._loads.refreshing.release()
                return self._known()
            loading.add_done_callback(lambda _: self._loads.refreshing.release())
            if now - self._known_at >= 2 * self._ttl_seconds:
                with suppress(FutureTimeout, GlassfsError):
                    loading.result(settings.listing_news)
        return self._known()

    def newer_than(self, since: float) -> Value:
        """Return the value as of that moment of ``time.monotonic`` or later. Raises what ``load`` raises."""
        # A loading that was begun before that moment may report what was true before it; then another follows.
        while self._known_at < since:
            loading, asked_at = self._started()
            try:
                work.is_done(loading)
                loading.result()
            except GlassfsError as error:
                if asked_at >= since:
                    raise error.at() from None
        return self._known()

    def fresh(self) -> Value:
        """Return the value, not older than its TTL. Raises what ``load`` raises."""
        return self.newer_than(max(0.0, time.monotonic() - self._ttl_seconds))

    def _known(self) -> Value:
        with self._lock:
            value, missing = self.last, self._missing
        if missing is not None:
            raise missing.at()
        return value  # type: ignore[return-value]  # it is known

    def _started(self) -> tuple[Future[None], float]:
        """Return the loading under way, or begin one; and when it was begun. Raises Unavailable without threads."""
        with self._lock:
            if self._loading is None:
                self._asked_at = time.monotonic()
                self._loading = self._loads.pool.submit(partial(self._run, self._asked_at))
            return self._loading, self._asked_at

    def _run(self, asked_at: float) -> None:
        value, missing = None, None
        try:
            value = self._load(self.last)
        except NotFound as error:
            missing = error
        except BaseException:
            with self._lock:
                self._loading = None
            raise
        with self._lock:
            self.last, self._missing, self._known_at, self._loading = value, missing, asked_at, None
