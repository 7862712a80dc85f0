"""``glassfs episodes``: the table of the episodes in containers and folders, printed or written to a file.

The rows are those of ``episodes.jsonl`` and ``episodes.parquet`` at the root of a mounted folder.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

import click

from glassfs import outputs
from glassfs.cli.completion import connection_option, misuse, sources_argument
from glassfs.cli.layouts import layout_option
from glassfs.cli.many import Progress, batch, fault_of, found_under, many_options, summary, where_option
from glassfs.cli.many import progress as progress_over
from glassfs.cli.stopping import stoppable
from glassfs.content.pieces import ContainerPiece, pieces_of
from glassfs.content.summary import ARRAYS, EPISODES, RECORD_COLUMNS, Summary
from glassfs.datasets.batch.contract import Outcome, Problem, SearchHit
from glassfs.datasets.batch.found import TABLE, Opener, Search
from glassfs.datasets.batch.report import Report
from glassfs.datasets.batch.run import BatchRun, RunPlan
from glassfs.datasets.files import in_order
from glassfs.datasets.table import CSV, CSV_SAFE, FORMS, PARQUET, chosen, encoded, head, mark, read_back, writer
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
_Opened: TypeAlias = tuple[Callable[[Any], None], Callable[[SearchHit], bool], int]


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
@many_options("Continue report and FILE: containers with a line in the report are not read again. Not for parquet.")
@connection_option
@layout_option
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
    if plan.is_resumed and not output:
        raise misuse("--resume needs --output FILE")
    if plan.is_resumed and (form == PARQUET or where):
        raise misuse(f"--resume cannot continue {'with --where' if where else 'a Parquet file, only jsonl or csv'}")
    if form == PARQUET and not output and sys.stdout.isatty():
        raise click.ClickException("Parquet cannot be written to a terminal; use --output FILE")
    search = found_under(sources, connection)
    if output:
        _demand_replaceable(output, sources, plan.report)
    is_kept = bool(plan.report and output) and form != PARQUET
    work = Rows(connection, form, where)
    with stoppable(is_kept), progress_over(search, plan.shard, progress if output else bool(progress)) as bar:
        run, rows, tables, known = _run(plan, search, work, bar, output)
    if output:
        click.echo(printable(f"{summary(run)}; {counted(rows, 'row')} in {output}"), err=True)
    if EPISODES not in tables and not rows and (instead := _instead(tables, sources)):
        click.echo(printable(instead), err=True)
    elif where and not rows and (reason := why_none(where, known)):
        click.echo(printable(reason), err=True)
    return 1 if run.faults else 0


def _instead(tables: Mapping[str, int], sources: Sequence[str]) -> str:
    """Return a sentence about other tables of containers, or that of exported episodes, "" if there is none."""
    if not tables:
        table = next(filter(os.path.isfile, (os.path.join(source, TABLE) for source in sources)), "")
        return table and f"no container with episodes, but the table of exported ones: {table}"
    first, *others = in_order(tables)
    found = ", ".join(f"{counted(tables[name], 'container')} with {name}" for name in (first, *others))
    source = sources[0] if len(sources) == 1 and (is_url(sources[0]) or os.path.isdir(sources[0])) else "FOLDER"
    words = f"arrays {shlex.join(sources)}" if first == ARRAYS else f"cat {shlex.quote(source)} {first}.jsonl"
    return f"no episodes, but {found}; for a table, run: glassfs {words}"


def _form_of(output: str) -> str:
    """Return the format that the suffix of a file means. Raises UsageError for one that means none."""
    suffix = os.path.splitext(output)[1].lower()
    form = next((known for known in FORMS if suffix in ("", f".{known}")), None)
    if form is None:
        known = ", ".join(f".{known}" for known in FORMS)
        raise misuse(f"--output {output}: {suffix} is not one of {known}; name one of these, or a --format")
    return form


def _demand_replaceable(output: str, sources: Sequence[str], report: str) -> None:
    """Raise Refused if FILE must not be overwritten: the report, a source or a container."""
    path = os.path.realpath(output)
    if report and os.path.realpath(report) in (path, path + PART):
        raise Refused("is the report; name another file", output)
    if os.path.isfile(path):
        if any(os.path.realpath(source) == path for source in sources if not is_url(source)):
            raise Refused("is a source; name another file", output)
        with suppress(OSError), open(path, "rb") as file:
            if recognise(Head(file.read(HEAD))) is not None:
                raise Refused("is a container; name another file", output)


def _run(
    plan: RunPlan, search: Search, work: Rows, bar: Progress, output: str,
) -> tuple[BatchRun, int, Counter[str], Counter[str]]:
    """Return the run, the numbers of rows in the file and of containers for each joined table, and of known values."""
    form = work.form
    tables, known = Counter[str](), Counter[str]()

    # The file is entered last, so that it gets its name before the workers end, and is removed first after an error.
    with batch(plan, bar) as run, ExitStack() as stack:
        write, is_still, rows = stack.enter_context(_opened(plan, search, run.report, form, output))
        for found, outcome in run.outcomes(search.all(), work, is_ordered=True, is_still=is_still):
            if outcome.data:
                write(outcome.data)
            rows += outcome.rows or 0
            known.update(outcome.known)
            for fault in outcome.faults:
                bar.report(found.name, fault)
            if outcome.rest is None:
                tables.update(outcome.tables)
                bar.advance(found.size)
    return run, rows, tables, known


@contextmanager
def _opened(plan: RunPlan, search: Search, report: Report | None, form: str, output: str) -> Iterator[_Opened]:
    """Open the output; yield what writes to it, which containers it has already, and the rows it has."""
    if not output:
        sys.stdout.buffer.write(head(form))
        with writer(form, sys.stdout.buffer) as write:
            yield write, lambda found: False, 0
        return
    with AtomicFile(output, is_kept=report is not None and form != PARQUET) as whole:
        containers = set[str]()
        rows = 0
        if report is not None and report.known_lines:
            with whole.resuming() as before:
                # Rows of a container count only if all of them are there: the last container's may be incomplete.
                found = Counter(one for one, _ in read_back(form, before))
                containers |= {
                    one.path for one in search.all() if isinstance(one, SearchHit) and plan.shard.has(one.key)
                    and (known := report.known(one.name, one.version)) and known.has_rows(one.path, found[one.path])
                }
                rows = sum(found[one] for one in containers)
                before.seek(0)
                whole.file.write(head(form))
                whole.file.writelines(line for one, line in read_back(form, before) if one in containers)
        else:
            whole.begin(head(form), mark(form))
        with writer(form, whole.file, os.path.dirname(output) or ".", partial(outputs.writing, output)) as write:
            yield write, lambda found: found.path in containers, rows
        whole.end()


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
                for piece in pieces:
                    if size >= PIECE:  # the rest of the container is left for a later part
                        rest = piece.block, position, version
                        break
                    placed.append(ContainerPiece(item.path, position, piece))
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


class AtomicFile:
    """The file at ``name``, open as ``file`` in a ``with``; it gets its name when it is complete.

    Until then it is locked, and has another name. If it ``is_kept``, an incomplete part stays after an interruption.
    Entering raises GlassfsError if the file cannot be written.
    """

    file: BinaryIO

    def __init__(self, name: str, is_kept: bool) -> None:
        self._name, self._part = name, name + PART
        self._is_kept = is_kept
        self._is_over = False

    def __enter__(self) -> AtomicFile:
        if os.path.isdir(self._name):
            raise GlassfsError("is a folder", self._name)
        self.file = self._opened(self._part)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            if not self._is_over and not (self._is_kept and os.path.getsize(self._part)):
                os.unlink(self._part)
        try:
            self.file.close()
        except OSError:  # reported already if an error is under way
            if kind is None:
                raise

    def begin(self, head: bytes, mark: bytes) -> None:
        """Start over with ``head``. Raises GlassfsError if there is a part that does not begin with ``mark``."""
        with outputs.writing(self._name):
            # An empty part, or one with the beginning of our own head, was interrupted early and has nothing to lose.
            if not mark.startswith(os.pread(self.file.fileno(), len(mark), 0)):
                self._is_over = True
                raise GlassfsError("exists and is not from this command; move it away first", self._part)
            self.file.truncate(0)
            self.file.write(head)
            self.file.flush()

    @contextmanager
    def resuming(self) -> Iterator[BinaryIO]:
        """Provide the part, or the complete file if there is no part. In the ``with``, ``file`` is to get what is kept.

        The complete file stays until the new one is complete. Raises GlassfsError if neither exists. An error in the
        ``with`` passes through with the file's name, and both files are then unchanged.
        """
        part = before = self.file
        name = self._part
        if not os.path.getsize(self._part):
            name = self._name
            try:
                before = open(name, "rb")  # noqa: SIM115
            except FileNotFoundError:
                raise GlassfsError("nothing to resume: neither it nor its .part file exists", name) from None
        # What is kept goes to a third file, so that an interruption leaves the part or the complete file as it was.
        new = f"{self._part}-{os.urandom(8).hex()}"
        self.file = self._opened(new)
        try:
            with outputs.writing(self._name):
                yield before
                self.file.flush()
                os.rename(new, self._part)
        except BaseException as error:
            os.unlink(new)
            if isinstance(error, GlassfsError):
                raise error.at(name) from None
            raise
        finally:
            before.close()
            part.close()

    def end(self) -> None:
        """Give the complete file its name."""
        with outputs.writing(self._name):
            self.file.flush()
            os.rename(self._part, self._name)
        self._is_over = True

    def _opened(self, name: str) -> BinaryIO:
        """Open and lock a file, created if missing; a signal leaves no new file."""
        is_new = not os.path.lexists(name)
        try:
            return outputs.locked(name)
        except BaseException as error:
            if is_new and not isinstance(error, GlassfsError):
                with suppress(OSError):
                    os.unlink(name)
            raise
