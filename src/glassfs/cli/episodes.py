"""``glassfs episodes``: the table of the episodes in containers and folders, printed or written to a file.

The rows are those of ``episodes.jsonl`` and ``episodes.parquet`` at the root of a mounted folder, for any number of
containers.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeAlias

import click

from glassfs.batch.contract import Fault, Found, Item, Outcome, Settings
from glassfs.batch.found import Search, Unlisted
from glassfs.batch.opening import Opener
from glassfs.batch.report import Report
from glassfs.batch.run import Plan, Run
from glassfs.batch.shards import Shard
from glassfs.batch.unforeseen import as_fault
from glassfs.cli.common import complain, connection_option, reason_of
from glassfs.cli.many import Bar, counted, found_under, many_options, planned
from glassfs.cli.rows import FORMS, JSONL, PARQUET, Lines, Output, Table, encoded, head, read_back
from glassfs.cli.stopping import Stopped, stoppable
from glassfs.cli.whole import SUFFIX, WholeFile
from glassfs.content.join import ContainerPiece, pieces_of
from glassfs.errors import Changed, Damaged, GlassfsError, Passing, Refused, Unrecognised
from glassfs.formats.registry import HEAD, recognise
from glassfs.source import Connection, Named, is_url

_Opened: TypeAlias = "tuple[Output, Callable[[Found], bool], Callable[[], AbstractContextManager[None]]]"
AT_ONCE = 1 << 20
"""Bytes of rows of a container after which it is left for another time."""


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option(
    "--format", "form", type=click.Choice(FORMS), help="The default is what the name of FILE ends with, or jsonl.",
)
@click.option(
    "--output", metavar="FILE", default="", type=click.Path(readable=False),
    help="Write them there, not to the standard output. FILE is there when it is whole.",
)
@click.option(
    "--progress/--no-progress", default=None, help="A progress bar; the default on a terminal, with --output.",
)
@many_options("Go on with report and FILE: what has a line in the report is not read again. Not for parquet.")
@connection_option
def command(
    sources: tuple[str, ...], form: str | None, output: str, progress: bool | None, jobs: int, scheduler: str,
    shard: Shard, report: str, resume: bool, connection: Connection,
) -> int:
    """The episodes in each SOURCE, a container or a folder with containers: a row each, in the order of their paths.

    A container that cannot be read is a line on standard error; exit status 1 if there is any.
    """
    plan = planned(jobs, scheduler, shard, report, resume, is_report_needed=True)
    form = form or next((known for known in FORMS if output.endswith(f".{known}")), JSONL)
    if resume and not output:
        raise click.UsageError("--resume goes on with a file, which --output names", click.get_current_context())
    if resume and form == PARQUET:
        reason = "--resume cannot go on with a Parquet file, only with jsonl or csv"
        raise click.UsageError(reason, click.get_current_context())
    if form == PARQUET and not output and sys.stdout.isatty():
        raise click.ClickException("a Parquet file is nothing for a terminal; --output FILE writes it to a file")
    search = found_under(sources, connection, is_by_path=True)
    if output:
        _demand_replaceable(output, sources, report)
    try:
        with stoppable(), Bar(search.all, shard, progress if output else bool(progress)) as bar:
            run = _run(plan, search, Settings(connection=connection), bar, form, output)
    except Stopped as stopped:
        is_kept = report and output and form != PARQUET
        complain(f"{stopped}; '--resume' goes on from here" if is_kept else str(stopped))
        return stopped.status
    if output:
        click.echo(f"{counted(run.containers, 'container')}, {counted(run.faults, 'fault')}", err=True)
    return 1 if run.faults else 0


def _demand_replaceable(output: str, sources: Sequence[str], report: str) -> None:
    """Raises Refused where FILE is something that nobody wants to lose by a slip."""
    place = os.path.realpath(output)
    if report and os.path.realpath(report) in (place, place + SUFFIX):
        raise Refused("is the report, which needs a file of its own", output)
    if os.path.isfile(place):
        if any(os.path.realpath(source) == place for source in sources if not is_url(source)):
            raise Refused("is a source, which is not written over", output)
        with suppress(OSError), open(place, "rb") as file:
            if recognise(file.read(HEAD)) is not None:
                raise Refused("is a container, which is not written over", output)


def _run(plan: Plan, search: Search, settings: Settings, bar: Bar, form: str, output: str) -> Run:
    def tell(name: str, reason: object) -> None:
        with bar.aside():
            complain(f"{name}: {reason}")

    def unlisted_is(folder: Unlisted) -> None:
        tell(folder.name, reason_of(folder.error, folder.name))

    with plan.opened_report() as report, plan.workers() as workers, ExitStack() as stack:
        rows, is_still, writing = stack.enter_context(_opened(plan, search, report, form, output))
        run = Run(plan, workers, report, unlisted_is, bar.advance)
        for done in run.outcomes(search.all(), Rows(settings, form), is_ordered=True, is_still=is_still):
            if done.outcome.data:
                with writing():
                    rows.write(done.outcome.data)
            for fault in done.outcome.faults:
                tell(done.item.found.name, fault)
            if done.is_last:
                bar.advance(done.item.found)
        with writing():
            rows.end()
    return run


@contextmanager
def _opened(plan: Plan, search: Search, report: Report | None, form: str, output: str) -> Iterator[_Opened]:
    """Where the rows go, of which containers they are there already, and in what they are written."""
    if not output:
        sys.stdout.buffer.write(head(form))
        yield _output(form, sys.stdout.buffer), lambda found: False, nullcontext
        return
    with WholeFile(output, is_kept=report is not None and form != PARQUET) as whole:
        containers: set[str] = set()
        if plan.is_resumed and report is not None and report.known_lines:

            def kept(file: BinaryIO) -> Iterator[bytes]:
                containers.update(_done(plan, search, report, Counter(one for one, _ in read_back(form, file))))
                file.seek(0)
                yield head(form)
                yield from (line for container, line in read_back(form, file) if container in containers)

            whole.go_on(kept)
        else:
            whole.begin(head(form))
        rows = _output(form, whole.file, os.path.dirname(output) or ".")
        yield rows, lambda found: found.path in containers, whole.writing
        whole.end()


def _output(form: str, file: BinaryIO, folder: str | None = None) -> Output:
    return Table(file, folder) if form == PARQUET else Lines(file)


def _done(plan: Plan, search: Search, report: Report, rows: Mapping[str, int]) -> Iterator[str]:
    """The containers that are not read again, as ``rows`` call them: all that they had are there."""
    for one in search.all():
        if isinstance(one, Found) and plan.shard.has(one.key):
            known = report.known(one.name, one.version)
            if known is not None and known.has_rows(one.path, rows.get(one.path, 0)):
                yield one.path


@dataclass(frozen=True)
class Rows:
    """The work: the rows of each file that is a container, in parts where there are many."""

    settings: Settings
    form: str

    def __call__(self, items: Iterator[Item]) -> Iterator[Outcome]:
        with Opener(self.settings) as opener:
            for item in items:
                try:
                    outcome = self._outcome(item, opener)
                except Exception as error:
                    fault = as_fault(error, item.found.name)
                    outcome = Outcome((Fault("", fault.reason, isinstance(fault, Passing)),), rows=0)
                yield outcome

    def _outcome(self, item: Item, opener: Opener) -> Outcome:
        placed: list[ContainerPiece] = []
        rest: _Rest | None = None
        faults: tuple[Fault, ...] = ()
        is_container = True
        name = item.found.name
        try:
            named = opener.named(item.found)
            name = named.store.shown(named.path)
            rest = _take(item, named, opener, placed)
        except GlassfsError as error:
            is_container = item.found.is_named or not isinstance(error, Unrecognised)
            if is_container:
                faults = (Fault("", reason_of(error, name), isinstance(error, Passing)),)
        rows = sum(one.piece.rows for one in placed)
        return Outcome(faults, is_container, encoded(self.form, placed), rest, opener.is_several, rows)


def _take(item: Item, named: Named, opener: Opener, placed: list[ContainerPiece]) -> _Rest | None:
    """Some rows of a container, which are ``placed`` also where the next ones cannot be read; and what is left."""
    entry = named.store.entry(named.path)
    block, position, version = item.rest or _Rest(0, 0, str(entry.version))
    if version != entry.version:
        raise Changed("has been replaced by another file")
    size = 0
    with opener.glimpsed(named, entry.version) as container:
        table = container.episodes()
        for piece in pieces_of(table, opener.cache, block) if table is not None else ():
            if size >= AT_ONCE:
                return _Rest(piece.block, position, version)
            placed.append(ContainerPiece(item.found.path, position, piece))
            position += piece.rows
            size += len(piece.data)
        if table is not None and table.records is not None and position != table.rows:
            raise Damaged(f"has {position} rows, but its table should have {table.rows}")
    return None


class _Rest(NamedTuple):
    """Where the rows of a container go on: the block of its table, the number of the row, and the version of it."""

    block: int
    position: int
    version: str
