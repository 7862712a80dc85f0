"""Very many small containers: ``glassfs verify`` with one process and with two, in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from writers.kastore import KastoreWriter

CONTAINERS = 100_000
A_FOLDER = 1000
JOBS = (1, 2)
LEAST_RATIO = 1.6
MOST_MEMORY = 200 << 20


@dataclass(frozen=True)
class Batch:
    """Seconds of each run by number of processes, and the coordinating process's peak memory in bytes."""

    containers: int
    seconds: Mapping[int, Sequence[float]]
    memory: int

    @property
    def ratio(self) -> float:
        """Return the speed-up of two processes: the median over paired runs."""
        return median(one / two for one, two in zip(*(self.seconds[jobs] for jobs in JOBS), strict=True))

    @property
    def is_fine(self) -> bool:
        return self.ratio >= LEAST_RATIO and self.memory <= MOST_MEMORY


def measure(folder: Path, runs: int, scale: float, say: Callable[[str], None]) -> Batch:
    """Verify CONTAINERS stores in folders of a thousand, which are hard links to one file."""
    count = max(A_FOLDER, int(CONTAINERS * scale))
    data = folder / "batch"
    say(f"batch: writing {count:,} containers")
    write(data, count)
    seconds: dict[int, list[float]] = {jobs: [] for jobs in JOBS}
    memory = 0
    for run in range(runs + 1):
        for jobs in JOBS:
            say(f"batch: run {run} of {runs}, --jobs {jobs}")
            took, peak = verified(data, jobs, folder / "report.jsonl", count)
            memory = max(memory, peak)
            if run:  # run 0 only reads everything into memory
                seconds[jobs].append(took)
    shutil.rmtree(data)
    say("")
    return Batch(count, seconds, memory)


def write(data: Path, count: int) -> None:
    shutil.rmtree(data, ignore_errors=True)
    for first in range(0, count, A_FOLDER):
        place = data / f"{first // A_FOLDER:03}"
        place.mkdir(parents=True)
        store = place / f"{first:06}.kas"
        with KastoreWriter(store) as writer:
            writer.add("nodes/time", np.arange(20.0))
            writer.add("nodes/flags", np.arange(20, dtype="u4"))
            writer.add("edges/parent", np.arange(30, dtype="i4"))
        for number in range(first + 1, min(first + A_FOLDER, count)):
            os.link(store, place / f"{number:06}.kas")


def verified(data: Path, jobs: int, report: Path, count: int) -> tuple[float, int]:
    """Return seconds and peak memory in bytes."""
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "glassfs", "verify", "--jobs", str(jobs), "--report", str(report), str(data)]
    begun = time.perf_counter()
    program = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    peak = 0
    while program.poll() is None:
        peak = max(peak, resident(program.pid))
        time.sleep(0.05)
    took = time.perf_counter() - begun
    with report.open("rb") as lines:
        written = sum(1 for _ in lines)
    if program.returncode or written != count:
        raise RuntimeError(f"verify --jobs {jobs} ended with {program.returncode} and {written} lines of {count}")
    return took, peak


def resident(pid: int) -> int:
    """Return the peak memory of a process in bytes, without its children."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def text(batch: Batch) -> str:
    each = ", ".join(f"--jobs {jobs} {median(batch.seconds[jobs]):.1f} s" for jobs in JOBS)
    verdict = "met" if batch.is_fine else "MISSED"
    return (
        f"verify of {batch.containers:,} containers: {each}; {batch.ratio:.2f} × (at least {LEAST_RATIO}), "
        f"at most {batch.memory >> 20} MiB (of {MOST_MEMORY >> 20}): {verdict}"
    )
