"""A mount whose daemon may hang, starve or be stopped, and that is gone all the same when the test ends.

``tests.mount.mounts.Mount`` asks the daemon for its status and waits for it; here nothing waits for a daemon without
a limit, and the end is by force if need be.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.mount.mounts import COMMAND, environment, is_mounted
from tests.security.users import Child
from tests.waiting import wait_until

MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8
_LIBC = ctypes.CDLL(None, use_errno=True)


class Daemon:
    """``glassfs mount -f`` of ``sources`` at ``path``; ``before`` are words in front of the command.

    ``cpu`` and ``started`` are what it took to answer for the first time: processor seconds, and seconds.
    """

    def __init__(
        self, sources: Sequence[Path], path: Path, *, options: Sequence[str] = (), before: Sequence[str] = (),
        variables: dict[str, str] | None = None, cwd: Path | None = None, patience: float = 60.0,
        generation: str | None = None, log: Path | None = None,
    ) -> None:
        self.path = path
        self.log = log or Path(f"{path}.log")
        words = [word for option in options for word in ("-o", option)]
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [*before, *COMMAND, "mount", "-f", *words, "--log-file", self.log, *sources, path],
            env=environment(generation) | (variables or {}), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="surrogateescape", cwd=cwd,
        )
        self.pid = self.process.pid
        try:
            wait_until(lambda: is_mounted(path) or self.process.poll() is not None, patience)
            assert is_mounted(path), f"not mounted: {self._last_words()}"
            Child(os.stat, path).result(patience)
        except BaseException:
            self.end()
            raise
        self.started = time.monotonic() - begin
        self.cpu = self.cpu_seconds()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def status(self) -> dict[str, Any]:
        found = json.loads((self.path / ".glassfs/status.json").read_bytes())
        assert isinstance(found, dict)
        return found

    def cpu_seconds(self) -> float:
        """Processor time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes; VmHWM is the most there ever was."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def end(self) -> None:
        """Takes the mount away, gently at first, and ends the daemon."""
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

    def _last_words(self) -> str:
        if self.process.poll() is None:
            return "the command neither mounts nor ends"
        assert self.process.stderr is not None
        return self.process.stderr.read().strip()


def force_away(path: Path) -> None:
    """Unmounts whatever its daemon does: requests that wait are answered with an error first."""
    while is_mounted(path):
        _LIBC.umount2(os.fsencode(path), MNT_FORCE | UMOUNT_NOFOLLOW)
        if _LIBC.umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW) != 0:
            return


def run_within(seconds: float, *words: str | Path) -> str | None:
    """What a command writes, or None if it does not end in time; it is killed then, and not waited for."""
    process = subprocess.Popen(
        list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="surrogateescape",
    )
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return None
