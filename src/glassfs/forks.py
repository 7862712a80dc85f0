"""Values for each process: a forked one has none of its parent's threads, but all of its locks. Any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")


class PerProcess(Generic[Value]):
    """One value per process: ``make`` is called on first use, and again on first use in a forked process.

    ``make`` runs under a lock; threads that need the value meanwhile wait.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._renew()
        _all_per_process.add(self)

    def get(self) -> Value:
        """Return the value of this process. Raises what ``make`` raises, and the next caller tries again."""
        if not self._values:
            with self._lock:
                if not self._values:
                    self._values.append(self._make())
        return self._values[0]

    @property
    def made(self) -> Value | None:
        """The value, or None if this process has not used it yet."""
        return self._values[0] if self._values else None

    def _renew(self) -> None:
        # Another thread may have held the lock at the fork, so it cannot be used again.
        self._lock = threading.RLock()
        self._values: list[Value] = []


_all_per_process: WeakSet[PerProcess[Any]] = WeakSet()


def _renew_all() -> None:
    for one in list(_all_per_process):
        one._renew()


os.register_at_fork(after_in_child=_renew_all)
