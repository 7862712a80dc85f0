"""Ctrl-C ends a command at once, in the middle of a container that would take minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.security.bombs import write_episodes, write_holes
from tests.waiting import wait_until

AT_MOST_SECONDS = 20.0
"""Generous: a command that is not interrupted takes minutes."""
COMMANDS = {
    "verify": ["a.kdb"],
    "export": ["a.kdb", "out"],
    "cat": ["a.kdb", "episodes/0/images/cam/000009.png"],
    "episodes": ["a.kdb", "--output", "out.parquet"],
}
JOBS = [(command, jobs) for command in ("verify", "export", "episodes") for jobs in ("1", "4")]


def running(session: int) -> list[int]:
    """Return the processes of a session, except those that have ended and are waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, number = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                found.append(int(path.name))
    return found


def opened(session: int, file: Path) -> bool:
    """Whether a process of a session has the file open."""
    for number in running(session):
        with suppress(OSError):
            if any(os.path.samefile(path, file) for path in Path(f"/proc/{number}/fd").iterdir() if path.exists()):
                return True
    return False


@pytest.mark.parametrize(("command", "jobs"), [
    ("cat", ""), *(pytest.param(*words, marks=[pytest.mark.slow] * (words != ("verify", "4"))) for words in JOBS),
])
def test_ctrl_c_ends_a_command_within_a_container(command: str, jobs: str, tmp_path: Path) -> None:
    """The signal reaches worker processes as well, as from a terminal. None is left, and no file that looks whole."""
    container = tmp_path / "a.kdb"
    if command == "episodes":
        write_episodes(container, 100_000)
    else:
        write_holes(container)
    words = [sys.executable, "-m", "glassfs", command, *COMMANDS[command], *(["--jobs", jobs] if jobs else [])]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as program:
        wait_until(lambda: opened(program.pid, container) or program.poll() is not None)
        begun = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        output, errors = program.communicate()
        took = time.monotonic() - begun
        wait_until(lambda: not running(program.pid))
    lines = errors.decode().splitlines()
    assert program.returncode == 130
    assert output == b""
    assert lines[-1].startswith("glassfs: interrupted")
    assert all(line.startswith("glassfs: ") and "Traceback" not in line for line in lines)
    assert took < AT_MOST_SECONDS
    assert not (tmp_path / "out.parquet").exists()
    assert not list(tmp_path.glob("out/**/images/*/*"))
