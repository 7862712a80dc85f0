"""Measure the processor time of glassfs for one operation, in process and without the kernel (``kernel``).

Each run of each work is a process of its own. If another checkout is given, both are measured in turn, so that what
else the machine does disturbs them alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import glassfs
from benchmarks.contents import Sample, dataset_names, samples
from benchmarks.data import Dataset
from benchmarks.runner import Runner, write_back

RUNS = 7
SAMPLES_EACH = 4  # for a container
EVERY = 10
HERE, BEFORE = "now", "before"
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Operation:
    """What is measured: a function of ``kernel`` on a container of ``data``; ``most`` is the goal in microseconds.

    ``asked`` returns its argument. Sections and rows are known to the catalogue if ``is_known``.
    """

    title: str
    work: str
    container: str
    asked: Callable[[Dataset], Any]
    most: float
    is_known: bool = False


def _names(dataset: Dataset) -> list[str]:
    return dataset_names(dataset.size)


def _folders(dataset: Dataset) -> list[str]:
    return sorted({name.partition("/")[0] for name in _names(dataset)})


def _samples(dataset: Dataset) -> list[Sample]:
    return samples(_names(dataset), SAMPLES_EACH * dataset.size)


def _episodes(dataset: Dataset) -> list[int]:
    return list(range(0, dataset.size, EVERY))


OPERATIONS = (
    Operation("container opened and its episodes listed", "open_containers", "takes", _names, 150),
    Operation("sample, first touch", "read_samples", "takes", _samples, 170),
    Operation("sample, sections in the catalogue", "read_samples", "takes", _samples, 120, is_known=True),
    Operation("entry of find", "find", "takes", _folders, 5),
    Operation("episode.json", "read_episodes", "episodes", _episodes, 45),
    Operation("sample of the library, first", "load_samples", "takes", _samples, 350),
    Operation("sample of the library, in the catalogue", "load_samples", "takes", _samples, 200, is_known=True),
)


@dataclass
class Measured:
    """The microseconds of each run by side: of the thread that works, and of all others together."""

    operation: Operation
    times: dict[str, list[float]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The median over runs of the present time in relation to the previous."""
        before = self.times.get(BEFORE)
        return median(now / one for now, one in zip(self.times[HERE], before, strict=True)) if before else None

    @property
    def is_fine(self) -> bool:
        return median(self.times[HERE]) <= self.operation.most


def measure_all(
    runner: Runner, against: Path | None, wanted: Callable[[str], bool], say: Callable[[str], None],
    done: Callable[[Measured], None],
) -> None:
    """Measure the operations whose work is wanted, and call ``done`` with each result."""
    sides = {HERE: Path(glassfs.__file__).parents[1]}
    if against is not None:
        sides = {BEFORE: against.resolve() / "src", **sides}
    for operation in OPERATIONS:
        if wanted(operation.work):
            done(_measured(runner, operation, sides, say))


def profile(runner: Runner, wanted: Callable[[str], bool]) -> None:
    """Write a profile of each wanted operation to stderr, by function."""
    for operation in OPERATIONS:
        if wanted(operation.work):
            print(f"\n{operation.title}", file=sys.stderr, flush=True)
            dataset = runner.dataset(operation.container)
            with tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as caches:
                source = Path(glassfs.__file__).parents[1]
                if operation.is_known:
                    _run(operation, dataset, source, caches)
                _run(operation, dataset, source, caches, "profile")


def text(measured: Measured) -> str:
    """Return one row of the table."""
    now, before = measured.times[HERE], measured.times.get(BEFORE)
    compared = f"{median(before):8.1f} →" if before else ""
    ratio = f"{measured.ratio:5.2f} ×" if measured.ratio is not None else ""
    verdict = "met" if measured.is_fine else "MISSED"
    return (
        f"{measured.operation.title:<42}{compared}{median(now):8.1f} µs {ratio}  (≤ {measured.operation.most:.0f}: "
        f"{verdict})  {min(now):.1f} to {max(now):.1f}, other threads {median(measured.others[HERE]):.1f}"
    )


def as_json(measured: Measured) -> Mapping[str, Any]:
    return {
        "title": measured.operation.title, "goal": measured.operation.most, "microseconds": measured.times,
        "other threads": measured.others,
    }


def _measured(
    runner: Runner, operation: Operation, sides: Mapping[str, Path], say: Callable[[str], None],
) -> Measured:
    dataset = runner.dataset(operation.container)
    assert dataset.container.exists()
    write_back(runner.folder)
    measured = Measured(operation, {side: [] for side in sides}, {side: [] for side in sides})
    with tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as caches:
        # Run 0 reads everything into memory and, where that is wanted, into the catalogue.
        for number in range(runner.runs + 1):
            for side, source in sides.items():
                say(f"{operation.title}: run {number} of {runner.runs}, {side}")
                kept = f"{caches}/{side}" if operation.is_known else f"{caches}/{side}-{number}"
                found = _run(operation, dataset, source, kept)
                if number:
                    measured.times[side].append(found["seconds"] * 1e6 / found["count"])
                    measured.others[side].append(found["others"] * 1e6 / found["count"])
    say("")
    return measured


def _run(operation: Operation, dataset: Dataset, source: Path, caches: str, *options: str) -> dict[str, float]:
    """Return what one process measured with the code in ``source``."""
    os.makedirs(caches, mode=0o700, exist_ok=True)
    words: Sequence[str] = [sys.executable, "-m", "benchmarks.kernel", operation.work, *options]
    # Each side brings the script for its own names of modules.
    scripts = source.parent / "scripts"
    ended = subprocess.run(
        words, input=json.dumps([str(dataset.container), operation.asked(dataset)]), stdout=subprocess.PIPE,
        check=True, text=True, timeout=TIMEOUT_SECONDS,
        env=os.environ | {"PYTHONPATH": f"{source}:{scripts}", "XDG_CACHE_HOME": caches},
    )
    found: dict[str, float] = json.loads(ended.stdout)
    return found
