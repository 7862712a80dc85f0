"""Create folders of many containers, and start programs that stop at a certain point."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter

from tests.waiting import wait_until

LINKS = 1000


def many_links(container: Path, folder: Path, count: int, suffix: str = ".kas") -> Path:
    """Create ``count`` containers in folders of LINKS; the first of each is a copy, the others are links."""
    for number in range(count):
        place = folder / f"{number // LINKS:03}"
        path = place / f"{number:06}{suffix}"
        if number % LINKS == 0:
            place.mkdir(parents=True)
            first = path
            shutil.copyfile(container, path)
        else:
            os.link(first, path)
    return folder


def sound(path: Path) -> Path:
    with KastoreWriter(path) as writer:
        writer.add("nodes/time", np.arange(20.0))
        writer.add("nodes/flags", np.arange(20, dtype="u4"))
    return path


def cut_short(path: Path) -> Path:
    """Write a container with a fault."""
    sound(path)
    path.write_bytes(path.read_bytes()[:-8])
    return path


def robot(path: Path, episodes: int = 2, task: str = "pick") -> Path:
    with KinoWriter(path, created=0) as writer:
        for number in range(episodes):
            writer.add_episode(np.full((3, 2), number), np.zeros((3, 1)), task=f"{task} {number}")
    return path


def lines_of(report: Path) -> list[dict[str, object]]:
    """Return the complete lines written so far."""
    return [json.loads(line) for line in report.read_bytes().split(b"\n")[:-1]] if report.exists() else []


def same_lines(one: Path, other: Path) -> bool:
    """Return whether two reports have the same lines, one per container."""
    found = [sorted(path.read_text().splitlines()) for path in (one, other)]
    return found[0] == found[1] and len(set(found[0])) == len(found[0])


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "glassfs", *map(str, words)]


@contextmanager
def stuck(report: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that has reported some containers and will block soon, as its output is not read."""
    program = subprocess.Popen(
        command(*words, "--report", report), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )
    try:
        wait_until(lambda: lines_of(report) or program.poll() is not None)
        assert program.poll() is None
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def most_memory(program: subprocess.Popen[bytes]) -> int:
    """Return the peak memory of a process in KiB when it has ended; its resource usage would include its parent's."""
    most = 0
    while program.poll() is None:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{program.pid}/status").read_text(encoding="utf-8")
            most = max([most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))])
        time.sleep(0.02)
    return most
