"""Write the results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.goals import Goal
from benchmarks.report import CONDITIONS, OURS, Report, Row, ends, shown, system

SIDES = {
    "squashfuse_ll": "squashfuse_ll", "ratarmount": "ratarmount", "plain": "plain files", "C server": "C server",
}
"""Sides with a column of their own; all others share one."""


def write(report: Report, path: Path) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in system().items())
    scale = f" Scale {report.scale:g}: sizes are those of scale 1." if report.scale != 1 else ""
    head = f"Medians of {report.runs} runs (least – most), all sides in turn. {CONDITIONS}{scale}"
    parts = [head, facts, _results(report.rows), _requests(report.rows), _missing(report)]
    path.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def _results(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lines = []
    for row in rows:
        found = {label: _cell(row, values) for label, values in row.measured.items()}
        own = found.pop(OURS, "failed")
        columns = [found.pop(label, "") for label in SIDES]
        others = "; ".join(f"{label} {cell}" for label, cell in found.items())
        goals = "; ".join(_verdict(row, goal) for goal in row.measure.goals)
        lines.append((row.measure.title, own, *columns, others, goals))
    return _table(("work", OURS, *SIDES.values(), "other", "goal"), lines)


def _requests(rows: Iterable[Row]) -> str:
    counted = [row for row in rows if row.requests]
    if not counted:
        return ""
    lines = [
        (row.measure.title, row.measure.each, f"{sum(row.requests.values()):.2f}",
         ", ".join(f"{opcode} {count:.2f}" for opcode, count in row.requests.items() if count >= 0.005))
        for row in counted
    ]
    return _table(("work", "requests for each", "all", "by opcode"), lines)


def _missing(report: Report) -> str:
    """Name missing and failed sides, without the reasons, which contain paths."""
    absent = [f"Without {name}." for name in report.notes]
    failed = sorted({failure.partition(":")[0] for failure in report.failures})
    return "\n".join(absent + [f"Failed in some run: {side}." for side in failed])


def _cell(row: Row, values: Sequence[float]) -> str:
    least, most = ends(values, row.measure.unit)
    middle = shown(median(values), row.measure.unit)
    return middle if least == most else f"{middle} ({least} – {most})"


def _verdict(row: Row, goal: Goal) -> str:
    is_met, part = row.is_met(goal), row.part(goal)
    if is_met is None:
        return f"{goal.words}: not judged"
    ratio = "" if part is None else f"{part:.2f} ×, "
    return f"{goal.words}: {ratio}{'met' if is_met else '**missed**'}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))
