"""Run workloads: all participants in turn, repeatedly, each on a fresh mount."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.counting import Results
from benchmarks.data import CONTAINERS, Dataset
from benchmarks.sides import SIDES, make_ready
from benchmarks.workloads import SMALL, Participant, Samples, Workload


class Runner:
    """Run workloads on data in ``folder``, shrunk by ``scale``."""

    def __init__(self, folder: Path, runs: int, scale: float, keeps_data: bool) -> None:
        self.folder = folder
        self.runs = runs
        self.scale = scale
        self.keeps_data = keeps_data
        self.notes: dict[str, str] = {}
        self.failures: list[str] = []

    def dataset(self, name: str, factor: float = 1.0) -> Dataset:
        """Return a container of ``data.CONTAINERS``, ``factor`` times as large as it is at this scale."""
        container = CONTAINERS[name]
        size = int(max(container.least, container.size * self.scale) * factor)
        return Dataset(container, self.folder / f"{name}-{size}", size)

    def run(self, workloads: Sequence[Workload], done: Callable[[Workload, Samples], None]) -> None:
        """Run the workloads and call ``done`` with the samples of each."""
        for number, workload in enumerate(workloads):
            dataset = self.dataset(workload.container)
            memory = int(workload.memory * min(1.0, self.scale))
            done(workload, self.measure(workload.name, dataset, workload.participants, memory, workload.part))
            following = workloads[number + 1].container if number + 1 < len(workloads) else None
            if workload.container != following:
                self.forget(dataset)

    def measure(
        self, name: str, dataset: Dataset, participants: Sequence[Participant], memory: int = SMALL, part: str = "",
    ) -> Samples:
        """Return the samples of one workload from ``runs`` rounds. Participants that are not installed are left out."""
        present = [participant for participant in participants if self._is_there(participant)]
        say(f"{name}: preparing")
        for participant in present:
            SIDES[participant.side].image(dataset)
        write_back(self.folder)  # writing to the disk would slow down the reads
        samples: dict[str, dict[str, list[float]]] = {p.label: defaultdict(list) for p in present}
        for number in range(self.runs):
            for participant in present:
                say(f"{name}: run {number + 1} of {self.runs}, {participant.label}")
                try:
                    results = self._observed(participant, dataset, memory, part)
                except (OSError, subprocess.SubprocessError) as error:
                    self.failures.append(f"{name}, {participant.label}: {error}")
                    continue
                for key, value in results.items():
                    samples[participant.label][key].append(value)
        say("")
        return samples

    def forget(self, dataset: Dataset) -> None:
        if not self.keeps_data:
            dataset.remove()

    def _is_there(self, participant: Participant) -> bool:
        reason = SIDES[participant.side].missing()
        if reason is not None:
            self.notes[participant.side] = reason
        return reason is None

    def _observed(self, participant: Participant, dataset: Dataset, memory: int, part: str) -> Results:
        """Return the results of the daemon, updated with those of the recipe."""
        with SIDES[participant.side].opened(dataset, part) as place:
            make_ready(memory)
            if place.daemon is None:
                return participant.recipe(place)
            # Reading the status causes requests, so it is read first and last, outside of what is counted.
            blocks = place.blocks_decoded()
            cpu, read = place.cpu(), place.bytes_read()
            results = participant.recipe(place)
            counted: Results = {
                "cpu": place.cpu() - cpu, "read": place.bytes_read() - read,
                "memory": place.memory(), "mount": place.mount_seconds,
            }
            if place.status:
                counted["blocks"] = place.blocks_decoded() - blocks
            return counted | results


def write_back(folder: Path) -> None:
    """Write this one file system to its disk. sync(2) would wait for all, also for one that hangs."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed", str(folder))
    finally:
        os.close(descriptor)


def say(words: str) -> None:
    """Show the progress on a line of the terminal, replacing the previous one."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()
