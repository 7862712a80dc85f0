"""Calls that may hang, such as listing a folder on a dead server, with a timeout. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from glassfs import work
from glassfs.errors import DeviceFailed, GlassfsError
from glassfs.threads import DaemonPool

Result = TypeVar("Result")


class TimedCalls:
    """Runs calls on other threads and waits up to ``timeout_seconds`` for each.

    A call that still hangs is not tried again, nor are others of a volume on which several hang: on a dead disk all
    would. The more calls hang, the shorter the timeout.
    """

    most, most_of_volume = 32, 4
    """Calls that may hang at a time before further ones fail at once: in all, and of one volume."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._pool = DaemonPool("timed-calls")
        self._hanging: dict[Hashable, str | None] = {}
        """The keys of hanging calls, and the volume if that is to blame."""

    def call(
        self, key: Hashable, volume: str, do: Callable[[], Result], probe: Callable[[], object] | None = None,
    ) -> Result:
        """Return or raise what ``do`` does. Raises DeviceFailed if it times out, or if a call with this key hangs.

        A call that times out, or whose caller is stopped, is canceled. Calls that may take long for reasons other than
        their volume pass a ``probe`` that should return at once, and shows whether the volume is to blame.
        """
        with self._lock:
            hanging = self._hanging
            # Threads that hang cannot be ended, so their number is bounded, in all and of one volume.
            is_too_much = len(hanging) >= self.most or list(hanging.values()).count(volume) >= self.most_of_volume
            if key in hanging or is_too_much:
                raise DeviceFailed("does not answer")
            timeout_seconds = self.timeout_seconds / (1 + len(hanging))
        called = work.derived()
        future = self._pool.submit(partial(work.done_for, called, do))
        try:
            if work.is_done(future, timeout_seconds):
                return future.result()
            # Not when the caller is stopped: that says nothing about the call, and others may want to make it.
            with self._lock:
                self._hanging[key] = None if probe else volume
            future.add_done_callback(lambda _: self._hanging.pop(key, None))
        finally:
            if not future.done():
                called.cancel()
                self._pool.abandon(future)
            del future  # its exception refers to this frame
        # The call may be slow for a reason of its own. If the probe of its volume hangs, too, that is noted as well.
        if probe is not None:
            with suppress(GlassfsError):
                self.call((key, "probe"), volume, probe)
        raise DeviceFailed("does not answer")
