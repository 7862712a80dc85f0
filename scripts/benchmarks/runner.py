"""Runs workloads: all participants in turn, again and again, each on a fresh mount."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.data import CONTAINERS, Dataset
from benchmarks.sides import SIDES, make_ready
from benchmarks.tasks import Results
from benchmarks.workloads import SMALL, Participant, Samples, Workload


class Runner:
    """Keeps its data in ``folder``; ``scale`` shrinks them."""

    def __init__(self, folder: Path, runs: int, scale: float, keeps_data: bool) -> None:
        self.folder = folder
        self.runs = runs
        self.scale = scale
        self.keeps_data = keeps_data
        self.notes: dict[str, str] = {}
        self.failures: list[str] = []

    def dataset(self, name: str, factor: float = 1.0) -> Dataset:
        """A container of ``data.CONTAINERS``, ``factor`` times as large as it is at this scale."""
        container = CONTAINERS[name]
        size = int(max(container.least, container.size * self.scale) * factor)
        return Dataset(container, self.folder / f"{name}-{size}", size)

    def run(self, workloads: Sequence[Workload], done: Callable[[Workload, Samples], None]) -> None:
        """Runs the workloads and tells ``done`` the samples of each."""
        for number, workload in enumerate(workloads):
            dataset = self.dataset(workload.container)
            done(workload, self.measure(workload.name, dataset, workload.participants, workload.memory))
            following = workloads[number + 1].container if number + 1 < len(workloads) else None
            if workload.container != following:
                self.forget(dataset)

    def measure(
        self, name: str, dataset: Dataset, participants: Sequence[Participant], memory: int = SMALL,
    ) -> Samples:
        """The samples of one workload from ``runs`` rounds. Participants that are not installed are left out."""
        present = [participant for participant in participants if self._is_there(participant)]
        say(f"{name}: preparing")
        for participant in present:
            SIDES[participant.side].image(dataset)
        _settle(self.folder)
        samples: dict[str, dict[str, list[float]]] = {p.label: defaultdict(list) for p in present}
        for number in range(self.runs):
            for participant in present:
                say(f"{name}: run {number + 1} of {self.runs}, {participant.label}")
                try:
                    results = _observed(participant, dataset, memory)
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


def say(words: str) -> None:
    """Where the benchmark is, on a line of the terminal that is written again and again."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()


def _settle(folder: Path) -> None:
    """What was written must not be on its way to the disk while others read. sync(2) would wait for all mounts."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _observed(participant: Participant, dataset: Dataset, memory: int) -> Results:
    """The results of the recipe and those of the daemon. What the recipe itself tells wins."""
    with SIDES[participant.side].opened(dataset) as place:
        make_ready(memory)
        if place.daemon is None:
            return participant.recipe(place)
        # Its status comes from glassfs itself, so it is asked first and last, outside of what is counted.
        blocks = place.blocks_decoded() if participant.side == "glassfs" else 0
        cpu, read = place.cpu(), place.bytes_read()
        results = participant.recipe(place)
        counted: Results = {
            "cpu": place.cpu() - cpu, "read": place.bytes_read() - read,
            "memory": place.memory(), "mount": place.mount_seconds,
        }
        if participant.side == "glassfs":
            counted["blocks"] = place.blocks_decoded() - blocks
        return counted | results
