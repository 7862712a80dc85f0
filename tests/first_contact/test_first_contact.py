"""The first ten minutes of seven users, from an empty folder and with a fresh home, in the words that they type.

A session is a shell transcript: ``$`` begins a command, ``>`` continues it, ``[1]`` is an exit status other than 0, and
the other lines are what it prints on both streams. ``…`` stands for any text in a line, alone on a line for any number
of lines. ``(needs NAME)`` skips the next command where neither a program nor a module has that name. All commands of a
session run in one shell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from glassfs.source import mountinfo
from tests.conftest import ROOT
from tests.mount.mounts import require
from tests.remote.ports import LOCALHOST
from tests.remote.servers import CREDENTIALS, moto, running, speaks_http
from tests.system.test_mount_command import SETUP
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
SESSIONS = Path(__file__).parent
TIMEOUT_SECONDS = 300
LINKED = ("scripts", "docs", "src")
"""What sessions use of a checkout. They do not write to it."""


class Step(NamedTuple):
    """A command, the lines that it is expected to print, and its exit status."""

    line: int
    command: str
    expected: tuple[str, ...]
    status: int
    needs: str


def steps_of(text: str) -> Iterator[Step]:
    """Yield the commands of a session."""
    lines = list(enumerate(text.splitlines(), 1))
    needs = ""
    while lines:
        number, line = lines.pop(0)
        if found := re.fullmatch(r"\(needs (\S+)\)", line):
            needs = found[1]
        elif line.startswith("$ "):
            command, expected, status = line[2:], [], 0
            while lines and lines[0][1].startswith(">"):
                command += f"\n{lines.pop(0)[1][2:]}"
            while lines and lines[0][1] and not lines[0][1].startswith(("$ ", "(needs ")):
                expected.append(lines.pop(0)[1])
            if expected and (found := re.fullmatch(r"\[(\d+)\]", expected[-1])):
                status = int(found[1])
                expected.pop()
            yield Step(number, command, tuple(expected), status, needs)
            needs = ""
        else:
            assert not line or line.startswith("#"), f"line {number} is neither a command nor what one prints: {line}"


def is_missing(name: str, path: str) -> bool:
    return bool(name) and shutil.which(name, path=path) is None and find_spec(name) is None


def is_as(expected: tuple[str, ...], printed: str) -> bool:
    """Return whether a text is what a session expects."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, f"{printed.rstrip()}\n" if printed.strip() else "") is not None


def printed_by(
    steps: list[Step], folder: Path, environment: dict[str, str], prologue: str,
) -> Iterator[tuple[str, int]]:
    """Run commands in one shell, and yield what each of them prints, and its exit status."""
    mark = f"-- {uuid4().hex}"
    script = folder.with_name("script")
    words = [f"{step.command}\nprintf '\\n%s %s\\n' '{mark}' \"$?\"\n" for step in steps]
    script.write_text(prologue + "".join(words))
    starting = ["unshare", "--mount", "--propagation", "private"] if prologue else []
    done = subprocess.run(
        [*starting, "bash", str(script)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS, check=False, errors="replace",
    )
    parts = re.split(rf"\n{mark} (\d+)\n", done.stdout)
    assert len(parts) == 2 * len(steps) + 1, done.stdout
    yield from zip(parts[::2], map(int, parts[1::2]), strict=False)


@pytest.mark.parametrize("user", sorted(path.stem for path in SESSIONS.glob("*.session")))
def test_first_ten_minutes(user: str, public_folder: Path) -> None:
    require()
    folder, home, is_root = public_folder / "work", public_folder / "home", user == "administrator"
    if is_root and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("an administrator is root and has unshare(1)")
    folder.mkdir()
    home.mkdir()
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    environment = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", "PYTHON": sys.executable}
    steps = list(steps_of((SESSIONS / f"{user}.session").read_text(encoding="utf-8")))
    with ExitStack() as stack:
        if any("$WEB" in step.command for step in steps):
            (folder / "web").mkdir()
            words = [sys.executable, "-m", "http.server", "--bind", LOCALHOST, "--directory", str(folder / "web")]
            port = stack.enter_context(running(lambda port: [*words, str(port)], speaks_http, public_folder))
            environment["WEB"] = f"{LOCALHOST}:{port}"
        if any("s3://" in step.command for step in steps):
            environment |= CREDENTIALS | {"AWS_ENDPOINT_URL": stack.enter_context(moto(public_folder))}
        stack.callback(clean, public_folder)
        missing = {step.needs for step in steps if is_missing(step.needs, path)}
        chosen = [step for step in steps if step.needs not in missing]
        prologue = SETUP + "set +e\n" if is_root else ""
        wrong = [
            f"{user}, line {step.line}: $ {step.command}\n{printed.rstrip()}\n[{status}]"
            for step, (printed, status) in zip(chosen, printed_by(chosen, folder, environment, prologue), strict=True)
            if status != step.status or not is_as(step.expected, printed)
        ]
        assert not wrong, "\n\n".join(wrong)
        assert not mounts_below(public_folder), "mounts are left"
        wait_until(lambda: not processes_of(home))
    if missing:
        warnings.warn(f"{user}: not installed, and so not tried: {', '.join(sorted(missing))}", stacklevel=1)


def processes_of(home: Path) -> list[str]:
    """Return the processes whose home is this folder: those that a session has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"HOME=%s" % os.fsencode(home) in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def mounts_below(folder: Path) -> list[str]:
    return [mount.path for mount in mountinfo.mounts() if mount.path.startswith(f"{folder}/")]


def clean(folder: Path) -> None:
    """Unmount what a session that failed has left."""
    for mounted in mounts_below(folder):
        with suppress(OSError):
            subprocess.run(["umount", "-l", mounted], check=False)
