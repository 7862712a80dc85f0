"""Measure how the times of glassfs grow with 1, 4 and 16 times the frames, episodes, rows and keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks import recipes
from benchmarks.recipes import Recipe
from benchmarks.runner import Runner
from benchmarks.workloads import Participant

FACTORS = (0.25, 1, 4)
SPAN = FACTORS[-1] / FACTORS[0]
CONSTANT, LINEAR = 0.25, 1.15


@dataclass(frozen=True)
class Growth:
    """A recipe on a container whose size counts ``unit``; ``share`` of its usual size is the middle one.

    ``most`` is the exponent that is allowed: CONSTANT or LINEAR.
    """

    title: str
    unit: str
    container: str
    recipe: Recipe
    key: str = "seconds"
    most: float = LINEAR
    share: float = 1.0


@dataclass(frozen=True)
class Grown:
    """A growth and its medians by size."""

    growth: Growth
    medians: Mapping[int, float]

    @property
    def exponent(self) -> float:
        """Return e if the time grows like the e-th power of the size, from the first size to the last."""
        values = list(self.medians.values())
        return math.log(max(values[-1], 1e-9) / max(values[0], 1e-9)) / math.log(SPAN)

    @property
    def is_fine(self) -> bool:
        return self.exponent <= self.growth.most


GROWTHS = (
    Growth("ls -l of frames, first time", "frames", "pictures", recipes.LIST_FRAMES, recipes.FIRST),
    Growth("cat of stored pictures, first time", "frames", "pictures", recipes.CAT_FRAMES),
    Growth("mount, process start included", "episodes", "episodes", recipes.nothing, "mount"),
    Growth("the daemon's memory after the mount", "episodes", "episodes", recipes.nothing, "memory"),
    Growth("ls -l of episodes, first time", "episodes", "episodes", recipes.ls("episodes")),
    Growth("reading all episode.json", "episodes", "episodes", recipes.read_episodes(1)),
    Growth("mount, process start included", "rows", "long", recipes.nothing, "mount", CONSTANT, 0.25),
    Growth("one row, cold", "rows", "long", recipes.row, most=CONSTANT, share=0.25),
    Growth("whole column, first read", "rows", "long", recipes.cat_once("columns/Features.npy"), "first", share=0.25),
    Growth("mount, process start included", "keys", "keys", recipes.nothing, "mount"),
    Growth("ls -l of keys, first time", "keys", "keys", recipes.ls("root")),
)


def measure_all(runner: Runner, wanted: Callable[[str], bool], done: Callable[[Grown], None]) -> None:
    """Measure those of GROWTHS whose title and unit are wanted, and call ``done`` with each result."""
    chosen = [growth for growth in GROWTHS if wanted(f"{growth.title} {growth.unit}")]
    for number, growth in enumerate(chosen):
        datasets = [runner.dataset(growth.container, factor * growth.share) for factor in FACTORS]
        participant = Participant("glassfs", "glassfs", growth.recipe)
        medians = {}
        for dataset in datasets:
            samples = runner.measure(f"growth, {growth.title}, {dataset.size}", dataset, (participant,))
            measured = samples.get("glassfs", {}).get(growth.key, [])
            if measured:
                medians[dataset.size] = median(measured)
        if len(medians) == len(FACTORS):
            done(Grown(growth, medians))
        if all(later.container != growth.container for later in chosen[number + 1 :]):
            for dataset in datasets:
                runner.forget(dataset)
