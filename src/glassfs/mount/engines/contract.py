"""What a mount needs of a FUSE library, and nothing of which one it is.

``serve`` keeps the thread that calls it; everything else may be called from any thread. Engines answer the kernel from
``Operations`` and turn what that raises into errno values by ``Failures``.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from glassfs.mount import system
from glassfs.mount.errors import MountError
from glassfs.mount.operations import Operations, Stale

LONGEST_READ = 1 << 20
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Those that end a mount."""


@dataclass(frozen=True)
class MountPoint:
    """Where to mount, and under which options: those of fuse(8), with a value or with True."""

    path: str
    options: dict[str, str | bool] = field(default_factory=dict)

    def words(self, **more: str | bool) -> list[bytes]:
        """The options and some more, as a command line has them."""
        words = []
        for name, value in {**self.options, **more}.items():
            words += [b"-o", os.fsencode(name if value is True else f"{name}={value}")]
        return words

    def device(self) -> str:
        """What is mounted there now, "" for nothing."""
        mounted = system.mount_at(self.path)
        return mounted.device if mounted is not None else ""

    def unmount_left(self, device: str) -> None:
        """Unmounts what is still mounted there of ours: libfuse leaves a mount whose connection was aborted."""
        if device and self.device() == device:
            with suppress(MountError):
                system.unmount(self.path, lazy=True)


class Engine(ABC):
    """A FUSE library, for one mount."""

    version: tuple[int, int]
    """Of the library, such as (3, 14)."""
    takes_notice = True
    """Whether the kernel forgets what ``invalidate`` says. Where it does not, timeouts have to be short."""

    @property
    def generation(self) -> int:
        return self.version[0]

    @abstractmethod
    def serve(self, operations: Operations, place: MountPoint, started: Callable[[], None]) -> None:
        """Mounts and serves until the file system is unmounted or the process is told to end by a signal.

        ``started`` is called when the kernel has begun to ask, and must not wait for an answer of the mount. Raises
        MountError where mounting fails.
        """

    @abstractmethod
    def invalidate(self, stale: Stale) -> None:
        """Has the kernel forget. Not to be called under a lock, nor while answering it."""

    @abstractmethod
    def tick(self) -> None:
        """To be called a few times a second while it serves."""

    def requests(self) -> dict[str, int]:
        """How many requests of each kind have been answered, as far as that is known."""
        return {}
