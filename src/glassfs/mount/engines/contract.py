"""The contract of engines: what a mount needs of a FUSE library.

``serve`` blocks its thread; all else may be called from any thread. Engines answer the kernel from ``Operations`` and
map its exceptions to errno values by ``Failures``.
"""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from glassfs.mount import system
from glassfs.mount.errors import MountError
from glassfs.mount.operations import Operations, Stale

LONGEST_READ = 1 << 20
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a mount."""


@dataclass(frozen=True)
class MountPoint:
    """Where to mount, and the options of fuse(8), each with a value or True."""

    path: str
    options: dict[str, str | bool] = field(default_factory=dict)

    def words(self, **more: str | bool) -> list[bytes]:
        """Return the options and ``more`` as words of a command line."""
        words = []
        for name, value in {**self.options, **more}.items():
            words += [b"-o", os.fsencode(name if value is True else f"{name}={value}")]
        return words

    def device(self) -> str:
        """Return the device that is mounted there now, or "" for none."""
        mounted = system.mount_at(self.path)
        return mounted.device if mounted is not None else ""

    def unmount_leftover(self, device: str) -> None:
        """Unmount our mount if it is still there: libfuse leaves one whose connection was aborted."""
        if device and self.device() == device:
            with suppress(MountError):
                system.unmount(self.path, lazy=True)


class Engine(ABC):
    """A FUSE library, for one mount."""

    version: tuple[int, int]
    """The library's version, such as (3, 14)."""
    busy: threading.Event
    """Set when requests come. Whoever calls ``tick`` clears it before."""
    can_invalidate = True
    """Whether ``invalidate`` works. If not, timeouts have to be short."""

    @property
    def generation(self) -> int:
        return self.version[0]

    @abstractmethod
    def serve(self, operations: Operations, mountpoint: MountPoint, started: Callable[[], None]) -> None:
        """Mount and serve until the file system is unmounted or a signal ends the process.

        ``started`` is called when the first request has come, and must not wait for an answer of the mount. Raises
        MountError if mounting fails.
        """

    @abstractmethod
    def invalidate(self, stale: Stale) -> bool:
        """Have the kernel forget ``stale``, now or with one of the next calls, and what replaced versions left behind.

        Returns whether something is left for the next call. Call this a few times a second while requests come, also
        with nothing. Never call it under a lock or while answering a request.
        """

    @abstractmethod
    def tick(self) -> None:
        """Do periodic work. Call this a few times a second while ``busy``, which it sets again if it has more to do."""

    def requests(self) -> dict[str, int]:
        """Return the number of answered requests by kind, as far as it is known."""
        return {}
