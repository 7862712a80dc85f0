"""``glassfs episodes``: the table of the episodes in containers and folders, printed or written to a file.

The rows are those of ``episodes.jsonl`` and ``episodes.parquet`` at the root of a mounted folder.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import click

from glassfs import outputs
from glassfs.cli import stoppable
from glassfs.cli.completion import misuse, sources_argument, where_option
from glassfs.cli.layouts import source_options
from glassfs.cli.many import batch, fault_of, many_options, progress_over, summary
from glassfs.content.summary import EPISODES, RECORD_COLUMNS, ContainerPiece, Summary, pieces_of
from glassfs.datasets.batch.found import Opener, Outcome, Problem, Search, SearchHit
from glassfs.datasets.batch.run import RunPlan
from glassfs.datasets.files import in_order
from glassfs.datasets.table import CSV, CSV_SAFE, FORMS, PARQUET, chosen, encoded, head, mark, placed_in, writer
from glassfs.datasets.where import condition, why_none
from glassfs.errors import Changed, Damaged, GlassfsError, Refused, Unrecognised
from glassfs.formats.registry import HEAD, Head, recognise
from glassfs.sizes import PIECE, counted
from glassfs.source import Connection, is_url
from glassfs.terminal import printable

PART = ".part"
"""The suffix of a file that is not complete."""
_Rest: TypeAlias = tuple[int, int, str]
"""Where to continue: block of the container's table, row number, and the container's version."""


@click.command()
@sources_argument
@click.option("--format", "form", type=click.Choice(FORMS), help="Format; default: the suffix of FILE, or jsonl.")
@click.option(
    "--csv-safe", "is_csv_safe", is_flag=True,
    help="For spreadsheets: put ' before texts in CSV that begin like a formula (with = + - @, a tab or a line break).",
)
@where_option
@click.option(
    "--output", metavar="FILE", default="", type=click.Path(readable=False),
    help="Write the table to FILE instead of standard output. FILE appears when it is complete.",
)
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; default: on a terminal, with --output.",
)
@many_options()
@source_options
def command(
    sources: tuple[str, ...], form: str | None, is_csv_safe: bool, where: str, output: str, progress: bool | None,
    plan: RunPlan, connection: Connection,
) -> int:
    """The episodes in each SOURCE, a container or a folder of containers: one row each, sorted by the containers'
    paths.

    A container that cannot be read is reported on standard error; exit status 1 if there is any.
    """
    form = form or _form_of(output)
    if is_csv_safe:
        if form != CSV:
            raise misuse("--csv-safe needs --format csv")
        form = CSV_SAFE
    if form == PARQUET and not output and sys.stdout.isatty():
        raise click.ClickException("Parquet cannot be written to a terminal; use --output FILE")
    search = Search(sources, connection)
    if output:
        _demand_replaceable(output, sources)
    tables, known, rows = Counter[str](), Counter[str](), 0
    # The file is entered last, so that it gets its name before the workers end, and is removed first after an error.
    with (
        stoppable(), progress_over(search, plan.shard, progress if output else bool(progress)) as bar,
        batch(plan, bar) as run, _opened(form, output) as write,
    ):
        for found, outcome in run.outcomes(search.all(), Rows(connection, form, where), is_ordered=True):
            if outcome.data:
                write(outcome.data)
            rows += outcome.rows or 0
            known.update(outcome.known)
            for fault in outcome.faults:
                bar.report(found.name, fault)
            if outcome.rest is None:
                tables.update(outcome.tables)
                bar.advance(found.size)
    if output:
        click.echo(printable(f"{summary(run)}; {counted(rows, 'row')} in {output}"), err=True)
    if not rows and not known and (tables or not run.faults):
        names = [name for name in in_order(tables) if name != EPISODES]
        others = ", ".join(f"{counted(tables[name], 'container')} with {name}" for name in names)
        click.echo(printable(f"no episodes{', but ' if others else ''}{others}"), err=True)
    elif where and not rows and (reason := why_none(where, known)):
        click.echo(printable(reason), err=True)
    return 1 if run.faults else 0


def _form_of(output: str) -> str:
    """Return the format that the suffix of a file means. Raises UsageError for one that means none."""
    suffix = os.path.splitext(output)[1].lower()
    form = next((known for known in FORMS if suffix in ("", f".{known}")), None)
    if form is None:
        known = ", ".join(f".{known}" for known in FORMS)
        raise misuse(f"--output {output}: {suffix} is not one of {known}; name one of these, or a --format")
    return form


def _demand_replaceable(output: str, sources: Sequence[str]) -> None:
    """Raise Refused if FILE must not be overwritten: a source or a container."""
    path = os.path.realpath(output)
    if os.path.isfile(path):
        if any(os.path.realpath(source) == path for source in sources if not is_url(source)):
            raise Refused("is a source; name another file", output)
        with suppress(OSError), open(path, "rb") as file:
            if recognise(Head(file.read(HEAD))) is not None:
                raise Refused("is a container; name another file", output)


@contextmanager
def _opened(form: str, output: str) -> Iterator[Callable[[Any], None]]:
    """Open the output for a ``with``; yield what writes rows to it.

    A file gets its name at the end of the ``with``, and is removed after an error. Until then it is locked, and has
    another name. Raises GlassfsError if it cannot be written, or if what has that name is not from this command.
    """
    if not output:
        sys.stdout.buffer.write(head(form))
        with writer(form, sys.stdout.buffer) as write:
            yield write
        return
    if os.path.isdir(output):
        raise GlassfsError("is a folder", output)
    part = output + PART
    with outputs.locked(part) as file:
        # What begins with our mark is of a run that was killed.
        if not mark(form).startswith(os.pread(file.fileno(), len(mark(form)), 0)):
            raise GlassfsError("exists and is not from this command; move it away first", part)
        try:
            with outputs.writing(output):
                file.truncate(0)
            file.write(head(form))
            with writer(form, file, os.path.dirname(output) or ".", partial(outputs.writing, output)) as write:
                yield write
            with outputs.writing(output):
                file.flush()
                os.rename(part, output)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise


@dataclass(frozen=True)
class Rows:
    """The work: the rows of each container that satisfy a condition, in parts if there are many."""

    connection: Connection
    form: str
    where: str = ""

    @contextmanager
    def __call__(self) -> Iterator[Callable[[SearchHit], Outcome]]:
        with closing(Opener(self.connection)) as opener:
            yield partial(self._outcome, opener)

    def _outcome(self, opener: Opener, item: SearchHit) -> Outcome:
        placed: list[ContainerPiece] = []
        tables: Sequence[str] = ()
        rest: _Rest | None = None
        faults: tuple[Problem, ...] = ()
        is_container = True
        name, size = item.name, 0
        try:
            named = opener.named(item)
            name = named.store.shown(named.path)
            entry = named.store.entry(named.path)
            block, position, version = item.rest or (0, 0, str(entry.version))
            # Parts of a container are read at different times, maybe by different workers.
            if version != entry.version:
                raise Changed("has been replaced by another file")
            with opener.glimpsed(named, entry.version) as container:
                tables, table = container.tables, container.episodes()
                pieces = pieces_of(Summary(RECORD_COLUMNS, table), opener.cache, block) if table is not None else ()
                numbers = None if item.picks is None or table is None else sorted(item.picks.episodes)
                for piece in pieces:
                    if size >= PIECE:  # the rest of the container is left for a later part
                        rest = piece.block, position, version
                        break
                    placed += placed_in(item.path, position, piece, numbers)
                    position += piece.rows
                    size += len(piece.data)
                if rest is None and table is not None and table.records is not None and position != table.rows:
                    raise Damaged(f"has {position} rows, but its table should have {table.rows}")
        except Exception as error:  # rows that were read before are true
            is_container = item.is_named or not isinstance(error, Unrecognised)
            if is_container:
                faults = (fault_of(error, name),)
        known = Counter[str]()
        if self.where:
            placed = list(chosen(placed, condition(self.where), known))
        rows = sum(one.piece.rows for one in placed)
        data = encoded(self.form, placed)
        return Outcome(faults, is_container, data, rest, opener.is_several, rows, tables=tuple(tables), known=known)
