"""Options, search, progress bar and faults of the commands over many containers."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from itertools import islice, repeat
from types import TracebackType
from typing import Any

import click
from tqdm import tqdm

from glassfs.cli.common import complain, reason_of
from glassfs.cli.completion import misuse
from glassfs.datasets.batch.found import Problem, Search, SearchHit
from glassfs.datasets.batch.run import BatchRun, RunPlan, Shard
from glassfs.errors import Damaged, GlassfsError, LeftOut, NotInstalled, Passing, Unavailable, is_lack
from glassfs.sizes import counted
from glassfs.source import Kind

ADDED_AT_ONCE = 64
"""Sizes that are added up whenever a bar advances."""

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # print nothing unless logging is configured


class Progress:
    """A bar on standard error; without ``sizes``, or unless ``is_shown`` (None: on a terminal), nothing.

    ``sizes`` yields the size of everything to do. Some are added up whenever the bar advances, so that no work waits
    for the sum. For one thread.
    """

    def __init__(self, sizes: Callable[[], Iterator[int]] | None = None, is_shown: bool | None = None) -> None:
        is_shown = sizes is not None and (sys.stderr.isatty() if is_shown is None else is_shown)
        # Created only if needed: it owns a lock that a killed worker process would leave behind in the system.
        self._bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, leave=False) if is_shown else None
        self._sizes = sizes() if sizes is not None and is_shown else iter(())
        self._sum = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        """Count so many bytes as done."""
        if self._bar is None:
            return
        try:
            some = list(islice(self._sizes, ADDED_AT_ONCE))
        except Exception:  # without a sum the bar shows a rate
            self._sizes, some = repeat(0), [0] * ADDED_AT_ONCE
        self._sum += sum(some)
        if len(some) < ADDED_AT_ONCE:
            self._bar.total = self._sum
        self._bar.update(count)

    def aside(self) -> AbstractContextManager[None]:
        """Hide the bar while lines are written to standard output or standard error."""
        return nullcontext() if self._bar is None else tqdm.external_write_mode(file=sys.stderr)

    def complain(self, line: object) -> None:
        """Print a line on standard error."""
        with self.aside():
            complain(str(line))

    def report(self, name: str, fault: object) -> None:
        """Print what is wrong with a container."""
        self.complain(f"{name}: {fault}")


def many_options(
    resume: str = "", *, is_report_needed: bool = True,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options to a command, which gets a ``plan``; ``resume`` describes ``--resume``.

    Without it there is no report either.
    """
    options = [
        click.option(
            "--jobs", metavar="N", default="1", type=_jobs,
            help="Number of processes; 0 or auto: one per core. Default: 1, this process.",
        ),
        click.option("--scheduler", metavar="ADDRESS", default="", help="Use the workers of this Dask scheduler."),
        click.option(
            "--shard", metavar="I/N", default="0/1", type=_shard,
            help="Process only part I of N, counted from 0; a container's path decides its part.",
        ),
    ]
    if resume:
        options += [
            click.option(
                "--report", metavar="FILE", default="", type=click.Path(readable=False),
                help="Write a line of JSON to FILE for each container when it is done.",
            ),
            click.option("--resume", is_flag=True, help=resume),
        ]

    def with_options(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def with_plan(
            *, jobs: int, scheduler: str, shard: Shard, report: str = "", resume: bool = False, **others: Any,
        ) -> int:
            if scheduler and jobs != 1:
                raise misuse("--jobs and --scheduler cannot be used together")
            if resume and not report and is_report_needed:
                raise misuse("--resume needs --report FILE")
            name = click.get_current_context().info_name or ""
            return command(plan=RunPlan(name, jobs, scheduler, shard, report, resume), **others)

        planned: Callable[..., int] = with_plan
        for option in reversed(options):
            planned = option(planned)
        return planned

    return with_options


def progress_over(search: Search, shard: Shard, is_shown: bool | None) -> Progress:
    """Return a progress bar over the bytes of all files of this shard."""
    return Progress(lambda: (
        hit.size for hit in search.all()
        if isinstance(hit, SearchHit) and hit.kind is Kind.FILE and shard.has(hit.key)
    ), is_shown)


@contextmanager
def batch(
    plan: RunPlan, bar: Progress, show: Callable[[str, Problem], None] | None = None,
) -> Iterator[BatchRun]:
    """Start a run for a ``with``. ``show`` gets name and fault of folders that cannot be listed, by default the bar."""
    show = show or bar.report
    with plan.opened_report() as report, plan.workers() as workers:
        yield BatchRun(
            plan, workers, report, lambda folder: show(folder.name, fault_of(folder.error, folder.name)),
            lambda hit: bar.advance(hit.size),
        )


def fault_of(error: Exception, name: str, place: str = "") -> Problem:
    """Return the fault to report for an error at ``place`` in the container ``name``.

    An unexpected error is logged, and is damage unless something lacks.
    """
    if not isinstance(error, (GlassfsError, OSError)):
        text = str(error)
        reason = f"cannot be read: {type(error).__name__}{': ' if text else ''}{text}"
        log.error("%s: %s", name, reason, exc_info=error)
        error = (Unavailable if is_lack(error) else Damaged)(reason)
    # What may be different the next time, or on another machine, is no fault of the container's bytes.
    is_passing = isinstance(error, (Passing, NotInstalled)) or is_lack(error)
    return Problem(place, reason_of(error, name, place), is_passing, isinstance(error, LeftOut))


def summary(run: BatchRun) -> str:
    """Return the line that ends a command."""
    where = f"; report in {run.plan.report}" if run.plan.report else ""
    omitted = f", {run.omitted:,} omitted" if run.omitted else ""
    return f"{counted(run.containers, 'container')}, {counted(run.faults, 'fault')}{omitted}{where}"


def _jobs(text: str) -> int:
    if text == "auto":
        return 0
    if not re.fullmatch("[0-9]{1,4}", text) or int(text) > 1024:
        raise click.BadParameter("must be a number up to 1024, or auto")
    return int(text)


def _shard(text: str) -> Shard:
    try:
        return Shard.parsed(text)
    except ValueError as error:
        raise click.BadParameter(f"'{text}' {error}") from None
