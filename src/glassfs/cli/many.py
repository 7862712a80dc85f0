"""What commands over many containers share: the options, the bar, and how they end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from tqdm import tqdm

from glassfs.batch.contract import Found
from glassfs.batch.found import Search, Unlisted
from glassfs.batch.run import Plan
from glassfs.batch.shards import Shard
from glassfs.errors import GlassfsError, NotFound
from glassfs.source import Connection, Kind, is_url

MOST_JOBS = 1024
DIGITS = 9
"""Of a number that a person types: Python refuses to read some thousands of them."""
Command = TypeVar("Command", bound=Callable[..., Any])


def many_options(resume: str) -> Callable[[Command], Command]:
    """The options; ``resume`` says what ``--resume`` does for this command."""
    options = [
        click.option(
            "--jobs", metavar="N", default="1", callback=lambda context, parameter, said: _jobs(said),
            help="So many processes at a time; 0 or auto: one for each core. The default is 1, this one.",
        ),
        click.option("--scheduler", metavar="ADDRESS", default="", help="The workers of this Dask scheduler instead."),
        click.option(
            "--shard", metavar="I/N", default="0/1", callback=lambda context, parameter, said: _shard(said),
            help="Only part I of N, from 0/N on, of all containers: each is in one part, by its path.",
        ),
        click.option(
            "--report", metavar="FILE", default="", type=click.Path(readable=False),
            help="Write a line of JSON for each container there, as they are done.",
        ),
        click.option("--resume", is_flag=True, help=resume),
    ]

    def with_options(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def planned(jobs: int, scheduler: str, shard: Shard, report: str, resume: bool, *, is_report_needed: bool) -> Plan:
    """What the options ask for. Raises UsageError where they contradict each other."""
    context = click.get_current_context()
    if scheduler and jobs != 1:
        raise click.UsageError("--jobs and --scheduler cannot be used together", context)
    if resume and not report and is_report_needed:
        raise click.UsageError("--resume goes on with a report, which --report names", context)
    return Plan(context.info_name or "", jobs, scheduler, shard, report, resume)


def found_under(
    sources: Sequence[str], connection: Connection, *, is_by_path: bool = False, has_all: bool = False,
) -> Search:
    """What is to be found under what a person named. Raises Refused for a URL that nobody should type, and NotFound."""
    for source in filter(is_url, sources):
        from glassfs.source.remote.options import demand_plain

        demand_plain(source)
    try:
        return Search(sources, connection, is_by_path=is_by_path, has_all=has_all)
    except NotFound as error:
        from glassfs.source.remote.options import meant_by

        missing = (source for source in sources if not (is_url(source) or os.path.lexists(source)))
        raise type(error)(f"{error.reason}{meant_by(next(missing, ''))}", error.source, error.part) from None


class Bar:
    """How far it is, in bytes of the files that there are to do, on standard error; nothing unless ``is_shown``.

    How many these are is found out meanwhile by a thread of its own, which goes through ``found`` for itself.
    """

    def __init__(self, found: Callable[[], Iterator[Found | Unlisted]], shard: Shard, is_shown: bool | None) -> None:
        is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, disable=not is_shown, leave=False)
        self._found, self._shard = found, shard
        self._is_over = threading.Event()
        self._sum: int | None = None
        self._counting = threading.Thread(target=self._count, name="sum", daemon=True) if is_shown else None

    def __enter__(self) -> Bar:
        if self._counting is not None:
            self._counting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._bar.close()

    def advance(self, found: Found) -> None:
        """This one is done, now or before."""
        if self._sum is not None:
            self._bar.total = self._sum
        self._bar.update(found.size)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Lines may be written in here."""
        with tqdm.external_write_mode(file=sys.stdout):
            yield

    def _count(self) -> None:
        total = 0
        try:
            for one in self._found():
                if self._is_over.is_set():
                    return
                if isinstance(one, Found) and one.kind is Kind.FILE and self._shard.has(one.key):
                    total += one.size
        except (GlassfsError, OSError):
            return
        self._sum = total


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _jobs(said: str) -> int:
    if said == "auto":
        return 0
    if not (said.isascii() and said.isdigit() and len(said) <= DIGITS and int(said) <= MOST_JOBS):
        raise click.BadParameter(f"is a number up to {MOST_JOBS}, or auto")
    return int(said)


def _shard(said: str) -> Shard:
    try:
        return Shard.parsed(said)
    except ValueError as error:
        raise click.BadParameter(f"'{said}' {error}") from None
