"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import batch, cpu, growth, markdown
from benchmarks.growth import Grown
from benchmarks.recipes import CACHES
from benchmarks.report import Report, growth_text, row_text
from benchmarks.runner import Runner, say
from benchmarks.workloads import WORKLOADS, Samples, Workload

MIN_RUNS, RUNS = 1, 5
LINE = "Measures glassfs against other mounts of the same data, all sides in turn, and judges its goals."


def main() -> int:
    options = _parser().parse_args()
    if options.list:
        for workload in WORKLOADS:
            print(f"{workload.name:<20} {'; '.join(measure.title for measure in workload.measures)}")
        return 0
    # A terminated benchmark unmounts as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = options.runs or (cpu.RUNS if options.cpu else RUNS)
    report = Report(runs, options.scale)
    try:
        with _folder(options.data) as folder, tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as caches:
            os.environ[CACHES] = caches
            runner = Runner(folder, runs, options.scale, options.data is not None)
            _measure(runner, report, options)
    except KeyboardInterrupt:
        say("")
        print("benchmark: interrupted", file=sys.stderr)
        return 130
    print(report.ending())
    return 1 if report.failures else 0


def _measure(runner: Runner, report: Report, options: argparse.Namespace) -> None:
    """Measure the requested workloads, print results as they come, and write the files."""
    report.notes, report.failures = runner.notes, runner.failures

    def wanted(name: str) -> bool:
        return not options.only or any(fnmatch.fnmatch(name, pattern) for pattern in options.only)

    def done(workload: Workload, samples: Samples) -> None:
        for row in report.add(workload, samples):
            print(row_text(row), flush=True)

    def grown(result: Grown) -> None:
        report.growths.append(result)
        print(growth_text(result), flush=True)

    def spent(result: cpu.Measured) -> None:
        report.cpu.append(result)
        print(cpu.text(result), flush=True)

    print(report.heading())
    try:
        if options.cpu and options.profile:
            cpu.profile(runner, wanted)
        elif options.cpu:
            cpu.measure_all(runner, options.against, wanted, say, spent)
        elif options.batch:
            measured = batch.measure(runner.folder, runner.runs, options.scale, say)
            report.batches.append(measured)
            print(batch.text(measured), flush=True)
        elif options.growth:
            growth.measure_all(runner, wanted, grown)
        else:
            runner.run([workload for workload in WORKLOADS if wanted(workload.name)], done)
    finally:  # an interrupted run keeps what it has
        if options.json:
            report.write_json(options.json)
        if options.markdown:
            markdown.write(report, options.markdown)


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Yield the folder for the data, which is removed afterwards unless it was named."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="glassfs-benchmark-") as folder:
        yield Path(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/benchmark", description=LINE)
    often = f"how often each side does each workload ({RUNS}; {cpu.RUNS} with --cpu)"
    parser.add_argument("--runs", type=_runs, help=often)
    parser.add_argument(
        "--only", metavar="PATTERN", action="append",
        help="only workloads whose name fits, such as 'dataset-*' or 'array'; with --growth, titles; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="show the workloads and do nothing")
    parser.add_argument("--growth", action="store_true", help="instead: how glassfs grows with 1, 4, 16 times the data")
    parser.add_argument("--batch", action="store_true", help="instead: 100,000 containers by one process and by two")
    parser.add_argument(
        "--cpu", action="store_true",
        help="instead: processor time of one operation, without the kernel; --only takes names such as 'read_*'",
    )
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="with --cpu: in turn with another checkout")
    parser.add_argument("--profile", action="store_true", help="with --cpu: show where the time goes, by function")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink all data, such as 0.01 to try it out (1)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the data there; needs 30 GB at scale 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write tables such as docs/performance.md has")
    return parser


def _runs(text: str) -> int:
    number = int(text)
    if number < MIN_RUNS:
        raise argparse.ArgumentTypeError(f"at least {MIN_RUNS}")
    return number


if __name__ == "__main__":
    sys.exit(main())
