"""What a mount needs of a FUSE library, and nothing of which one it is.

``serve`` keeps the thread that calls it; everything else may be called from any thread. Engines answer the kernel from
``Operations`` and turn what that raises into errno values by ``Failures``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from glassfs.mount.operations import Operations, Stale

LONGEST_READ = 1 << 20


@dataclass(frozen=True)
class MountPoint:
    """Where to mount, and under which options: those of fuse(8), with a value or with True."""

    path: str
    options: dict[str, str | bool] = field(default_factory=dict)


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
