"""Real mounts for tests, made by the command line in a subprocess.

``Mount.end`` always unmounts, and fails if the daemon stays or its log has a traceback.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.glassfs_command import glassfs as in_process
from tests.waiting import wait_until

PATIENCE = 60.0
"""Seconds to wait for short operations on a busy machine."""
COMMAND = (sys.executable, "-m", "glassfs")
WITHOUT_PROCESS = {"umount", "status", "verify", "info", "man", "completion"}
"""Commands of which ``glassfs`` starts no process."""
UMOUNT_NOFOLLOW = 8
_LIBC = ctypes.CDLL(None)


def require() -> None:
    """Skip the test if nothing can be mounted here, or fail it if GLASSFS_REQUIRE_FUSE=1."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        if os.environ.get("GLASSFS_REQUIRE_FUSE") == "1":
            pytest.fail(f"/dev/fuse: {error.strerror}, and GLASSFS_REQUIRE_FUSE=1")
        pytest.skip(f"/dev/fuse: {error.strerror}")


@contextmanager
def working_in(folder: Path | None) -> Iterator[None]:
    """Make a folder the working directory until the end of the block, if one is given."""
    before = os.open(".", os.O_RDONLY)
    try:
        if folder is not None:
            os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def glassfs(
    *arguments: str | Path, before: Sequence[str] = (), cwd: Path | None = None, starts_none: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, after the words ``before``, such as those of unshare.

    A command that needs no process of its own runs in this one, which saves its start. So does one that ``starts_none``
    as it is refused before.
    """
    words = [str(argument) for argument in arguments]
    if starts_none or (words and words[0] in WITHOUT_PROCESS and not (before or "--jobs" in words)):
        with working_in(cwd):
            done = in_process(*words)
        output, errors = (text.decode(errors="surrogateescape") for text in (done.output, done.raw_errors))
        return subprocess.CompletedProcess(words, done.status, output, errors)
    return subprocess.run(
        [*before, *COMMAND, *words], capture_output=True, text=True, errors="surrogateescape",
        timeout=2 * PATIENCE, check=False, cwd=cwd,
    )


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a file for reading, and close it at the end of the block."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def mountinfo(path: Path) -> list[list[str]]:
    """Return the lines of mountinfo for the mounts at ``path``, split at spaces."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    place = str(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    return [line.split(" ") for line in text.splitlines() if line.split(" ")[4] == place]


def is_mounted(path: Path) -> bool:
    return bool(mountinfo(path))


def is_running(pid: int) -> bool:
    """Return whether the process runs; zombies do not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def processes_with(word: str | Path) -> int:
    """Return the number of processes that have ``word`` among their arguments."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += str(word).encode() in (process / "cmdline").read_bytes()
    return found


def bytes_below(folder: Path) -> dict[str, bytes]:
    """Return all files by path, but those behind links, and those of the mount itself, whose status changes."""
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    found = {str(file.relative_to(folder)): file for file in files if not file.is_symlink()}
    return {path: file.read_bytes() for path, file in found.items() if not path.startswith(".glassfs/")}


class Served:
    """A mount at ``path`` by the process ``pid``, as this process, the system and the file ``log`` show it."""

    path: Path
    log: Path
    pid: int
    _is_loaded = False

    def status(self) -> dict[str, Any]:
        found = json.loads((self.path / ".glassfs/status.json").read_bytes())
        assert isinstance(found, dict)
        return found

    def log_lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    def resident(self, field: str = "RssAnon") -> int:
        """Return the daemon's anonymous memory, or another field of /proc/PID/status, in bytes; VmHWM is the peak.

        Waits until all code is loaded.
        """
        if not self._is_loaded:
            wait_until(lambda: self.status()["all_code_loaded"])
            self._is_loaded = True
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def open_files(self) -> list[str]:
        """Return the targets of the daemon's descriptors."""
        found = []
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with suppress(FileNotFoundError):  # closed in the meantime
                found.append(os.readlink(f"/proc/{self.pid}/fd/{name}"))
        return found

    def deleted_files(self) -> int:
        """Return the number of deleted files that the daemon has open."""
        return sum("(deleted)" in path for path in self.open_files())

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


class Mount(Served):
    """A mount at ``path``, made by ``glassfs mount``, or by ``glassfs mount -f`` if ``foreground``.

    ``said`` is what the command wrote to stderr, ``pid`` the daemon.
    """

    def __init__(
        self, sources: Sequence[Path | str], path: Path, log: Path, options: Sequence[str] = (),
        foreground: bool = False,
    ) -> None:
        self.sources, self.path, self.log = sources, path, log
        self.process: subprocess.Popen[str] | None = None
        self.said = ""
        words = ["mount", *(["-f"] if foreground else []), *(word for option in options for word in ("-o", option))]
        words += ["--log-file", str(log), *map(str, sources), str(path)]
        if foreground:
            self.process = subprocess.Popen(
                [*COMMAND, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            try:
                wait_until(lambda: is_mounted(path) or self.process.poll() is not None)  # type: ignore[union-attr]
            except AssertionError:
                self.process.kill()
            assert is_mounted(path), self.process.communicate()[1]
        else:
            done = subprocess.run(
                [*COMMAND, *words], text=True, capture_output=True, timeout=2 * PATIENCE,
                check=False,
            )
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            self.said = done.stderr
        try:
            self.pid: int = self.status()["pid"]
        except BaseException:
            self._unmount()
            raise

    def unmount(self, *options: str) -> None:
        done = glassfs("umount", *options, self.path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr

    def end(self) -> None:
        """Unmount if still mounted, and check that nothing is left."""
        problems = [] if self._unmount() else ["only a lazy unmount took the mount away"]
        try:
            wait_until(lambda: not is_running(self.pid))
        except AssertionError:
            problems.append("the daemon is still running")
            os.kill(self.pid, 9)
        if self.process is not None:
            self.process.communicate(timeout=PATIENCE)
        lines = self.log_lines()
        if any("Traceback" in line for line in lines):
            problems.append("there is a traceback in the log:\n" + "\n".join(lines))
        assert not problems, "; ".join(problems)

    def _unmount(self) -> bool:
        """Unmount, and return whether a plain unmount was enough."""
        was_gentle = True
        # The system call saves the tests of root the start of a command, for each mount that they make.
        if is_mounted(self.path) and _LIBC.umount2(os.fsencode(self.path), UMOUNT_NOFOLLOW) != 0:
            done = glassfs("umount", self.path)
            was_gentle = done.returncode == 0
        while is_mounted(self.path):
            glassfs("umount", "--lazy", self.path)
            if is_mounted(self.path):
                subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
        return was_gentle
