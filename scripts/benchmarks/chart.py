"""The chart: for each measure with peers, their values divided by that of glassfs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Row, shown

COLOURS = {
    "plain": "#7f8c8d", "squashfuse_ll": "#c0392b", "ratarmount": "#2980b9", "hdfuse": "#8e44ad",
    "libfuse 2": "#16a085", "C server": "#2c3e50", "rclone": "#d35400", "rclone, full cache": "#e59866",
    "curl": "#34495e", "reference": "#d4a017",
}
LINE_HEIGHT = 0.34


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG; a dot is a median, the line through it goes from the least to the greatest sample."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    compared = [row for row in rows if len(row.summaries) > 1 and row.ours][::-1]
    figure, axes = pyplot.subplots(figsize=(12, 1.6 + LINE_HEIGHT * len(compared)), layout="constrained")
    axes.axvline(1, color="#27ae60", linewidth=2, zorder=1)
    seen: set[str] = set()
    for height, row in enumerate(compared):
        for label, summary in row.summaries.items():
            if label == "glassfs":
                continue
            kind = label if label in COLOURS else "reference"
            ends = [end(summary.samples) / row.ours for end in (min, max)]
            axes.plot(ends, [height, height], color=COLOURS[kind], linewidth=1.2, alpha=0.6, zorder=2)
            axes.plot(
                summary.median / row.ours, height, "o", color=COLOURS[kind], zorder=3,
                label=None if kind in seen else {"reference": "in memory, or one reader"}.get(kind, kind),
            )
            seen.add(kind)
    axes.set_yticks(
        range(len(compared)), [f"{row.measure.title}  ({shown(row.ours, row.measure.unit)})" for row in compared],
        fontsize=8,
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ×"))
    axes.set_xlabel("what others need, in times of what glassfs needs: right of the line, glassfs is better")
    axes.grid(axis="x", alpha=0.3)
    axes.margins(y=0.02)
    figure.legend(loc="outside upper right", ncols=7, fontsize=8, frameon=False)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)
