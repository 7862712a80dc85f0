"""A mount whose daemon may hang, starve or be stopped, and which is gone when the test ends.

``tests.mount.mounts.Mount`` waits for the daemon's own status. Here every wait has a deadline, and the mount is removed
by force if necessary.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.mount.mounts import COMMAND, Served, is_mounted
from tests.security.users import Child
from tests.waiting import SECONDS, wait_until

MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8
_LIBC = ctypes.CDLL(None, use_errno=True)


class Daemon(Served):
    """``glassfs mount -f`` of ``sources`` at ``path``; ``before`` are words in front of the command."""

    def __init__(
        self, sources: Sequence[Path], path: Path, *, options: Sequence[str] = (), before: Sequence[str] = (),
        patience: float = SECONDS, log: Path | None = None,
    ) -> None:
        self.path = path
        self.log = log or Path(f"{path}.log")
        words = [word for option in options for word in ("-o", option)]
        self.process = subprocess.Popen(
            [*before, *COMMAND, "mount", "-f", *words, "--log-file", self.log, *sources, path],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="surrogateescape",
        )
        self.pid = self.process.pid
        try:
            wait_until(lambda: is_mounted(path) or self.process.poll() is not None, patience, "the mount")
            assert is_mounted(path), f"not mounted: {self.process.communicate()[1]}"
            Child(os.stat, path).result(patience)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def end(self) -> None:
        """Unmount, by force if the daemon does not end within 5 seconds, and reap the daemon."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
        force_away(self.path)
        if self.process.poll() is None:
            self.process.kill()
        try:
            self.process.communicate(timeout=20.0)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"daemon {self.pid} cannot be ended") from error


def force_away(path: Path) -> None:
    """Unmount without the daemon's help. Pending requests fail first."""
    while is_mounted(path):
        _LIBC.umount2(os.fsencode(path), MNT_FORCE | UMOUNT_NOFOLLOW)
        if _LIBC.umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW) != 0:
            return
