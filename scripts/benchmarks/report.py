"""What came out: as text, and as JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.growth import Grown
from benchmarks.workloads import Goal, Measure, Samples, Workload

WIDTH = 24
PACKAGES = ("glassfs", "numpy", "zstandard", "lz4", "ratarmount", "hdfuse", "h5py", "kastore")


@dataclass(frozen=True)
class Summary:
    """The samples of one participant in one measure."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)


@dataclass(frozen=True)
class Row:
    """One measure of one workload by participants, ``glassfs`` among them unless it failed."""

    workload: Workload
    measure: Measure
    summaries: Mapping[str, Summary]

    @property
    def ours(self) -> float:
        """The median of glassfs, not a number where it failed: that meets no goal."""
        return self.summaries["glassfs"].median if "glassfs" in self.summaries else nan

    def ratio(self, label: str) -> float | None:
        """How many times the median of glassfs that of ``label`` is: above 1, glassfs is better."""
        return self.summaries[label].median / self.ours if self.ours else None

    def limit(self, goal: Goal) -> float | None:
        """The most that the goal allows, or None where its reference did not take part."""
        if goal.reference is None:
            return goal.extra
        if goal.reference not in self.summaries:
            return None
        return goal.factor * self.summaries[goal.reference].median + goal.extra

    def verdict(self, goal: Goal) -> str:
        limit = self.limit(goal)
        if limit is None:
            return f"not judged without {goal.reference}"
        word = "met" if self.ours <= limit else "MISSED"
        return f"{word}: {shown(self.ours, self.measure.unit)} of {shown(limit, self.measure.unit)} allowed"


@dataclass
class Report:
    """Everything that was measured so far."""

    runs: int
    scale: float
    rows: list[Row] = field(default_factory=list)
    growths: list[Grown] = field(default_factory=list)
    notes: Mapping[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()

    def add(self, workload: Workload, samples: Samples) -> list[Row]:
        """The rows of a workload, which are also kept."""
        rows = [_row(workload, measure, samples) for measure in workload.measures]
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
        }

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n")

    def heading(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in system().items())
        scale = f" Scale {self.scale:g}: sizes in the titles are those of scale 1." if self.scale != 1 else ""
        return (
            f"Medians of {self.runs} runs, all sides in turn; least and most behind them; then how many times what"
            f" glassfs needs.{scale}\n{facts}\n"
        )

    def ending(self) -> str:
        """How many goals are met, and who did not take part."""
        limits = [(row.ours, row.limit(goal)) for row in self.rows for goal in row.measure.goals]
        judged = [ours <= limit for ours, limit in limits if limit is not None]
        lines = [f"{sum(judged)} of {len(judged)} goals met."] if judged else []
        lines += [f"Skipped {name}: {reason}." for name, reason in self.notes.items()]
        return "\n".join(lines + [f"Failed: {failure}" for failure in self.failures])


def row_text(row: Row) -> str:
    """A measure as a few lines."""
    lines = [f"{row.measure.title}  [{row.measure.state}]"]
    for label, summary in row.summaries.items():
        least, most = (shown(end(summary.samples), row.measure.unit) for end in (min, max))
        ratio = row.ratio(label)
        times = f"{ratio:8.2f} ×" if ratio is not None else ""
        middle = shown(summary.median, row.measure.unit)
        lines.append(f"  {label:<{WIDTH}} {middle:>10}  {least:>10} … {most:<10} {times}".rstrip())
    lines += [f"  goal {goal.words:<{WIDTH}} {row.verdict(goal)}" for goal in row.measure.goals]
    return "\n".join(lines) + "\n"


def growth_text(grown: Grown) -> str:
    """A growth as one line."""
    growth = grown.growth
    unit = "bytes" if growth.key == "memory" else "s"
    sizes = "   ".join(f"{size:>9,}: {shown(value, unit):>8}" for size, value in grown.medians.items())
    allowed = f"at most {growth.most:g}"
    word = "fine" if grown.is_fine else "TOO MUCH"
    return f"  {growth.title:<36} {growth.unit:<9} {sizes}   exponent {grown.exponent:5.2f} ({allowed}: {word})"


def shown(value: float, unit: str) -> str:
    """A value with three digits and the unit that suits it."""
    if unit == "count":
        return f"{value:g}"
    steps = ((1, "s"), (1e-3, "ms"), (1e-6, "µs")) if unit == "s" else ((1e6, "MB"), (1e3, "kB"), (1, "B"))
    scale, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    digits = 2 if value < 10 * scale else 1 if value < 100 * scale else 0
    return f"{value / scale:.{digits}f} {name}"


def system() -> dict[str, str]:
    """What the figures depend on."""
    facts = {
        "CPUs": str(os.cpu_count()), "Linux": platform.release().partition("-")[0], "Python": platform.python_version()
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


def _row(workload: Workload, measure: Measure, samples: Samples) -> Row:
    summaries = {
        label: Summary(tuple(results[measure.key])) for label, results in samples.items() if measure.key in results
    }
    return Row(workload, measure, summaries)


def _row_as_json(row: Row) -> dict[str, Any]:
    return {
        "workload": row.workload.name,
        "measure": row.measure.key,
        "title": row.measure.title,
        "unit": row.measure.unit,
        "state": row.measure.state,
        "sides": {
            label: {
                "median": summary.median, "least": min(summary.samples), "most": max(summary.samples),
                "ratio": row.ratio(label), "samples": summary.samples,
            }
            for label, summary in row.summaries.items()
        },
        "goals": [
            {"words": goal.words, "limit": limit, "is_met": None if limit is None else row.ours <= limit}
            for goal in row.measure.goals
            for limit in (row.limit(goal),)
        ],
    }
