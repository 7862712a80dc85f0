"""``glassfs verify``: read, decode and check everything in containers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import click

from glassfs import work
from glassfs.cli import stoppable
from glassfs.cli.completion import json_option, progress_option, sources_argument
from glassfs.cli.layouts import source_options
from glassfs.cli.many import batch, fault_of, many_options, progress_over, summary
from glassfs.content import Container, Image, Json, Stored
from glassfs.datasets.batch.found import Opener, Outcome, Problem, Problems, Search, SearchHit
from glassfs.datasets.batch.run import RunPlan
from glassfs.errors import GlassfsError, Unrecognised
from glassfs.sizes import PIECE
from glassfs.source import Connection
from glassfs.terminal import printable
from glassfs.tree import File, NestedDirectory, Tree
from glassfs.tree.omissions import Omission


@click.command()
@sources_argument
@json_option("fault")
@progress_option
@many_options("Continue the report: containers with a line in it are not read again.")
@source_options
def command(
    sources: tuple[str, ...], as_json: bool, progress: bool | None, plan: RunPlan, connection: Connection,
) -> int:
    """Read everything in each SOURCE, a container or a folder of containers: checksums, offsets, lengths, blocks,
    images, cross-references. Prints a line per fault; exit status 1 if there is any. What a container has and glassfs
    does not show is no fault: it is named as omitted.
    """
    search = Search(sources, connection)
    bar = progress_over(search, plan.shard, progress)

    def show(name: str, fault: Problem) -> None:
        fields: dict[str, str | bool] = {"source": name, "place": fault.place, "reason": fault.reason}
        if fault.is_omitted:
            fields["omitted"] = True
        with bar.aside():
            click.echo(json.dumps(fields) if as_json else printable(f"{name}: {fault}"))

    with stoppable(can_resume=bool(plan.report)), bar, batch(plan, bar, show) as run:
        work_on = Verification(connection, os.cpu_count() or 1 if plan.is_here else 1)
        for found, outcome in run.outcomes(search.all(), work_on):
            for fault in outcome.faults:
                show(found.name, fault)
            bar.advance(found.size)
    if not as_json:
        click.echo(printable(summary(run)), err=True)
    return 1 if run.faults else 0


@dataclass(frozen=True)
class Verification:
    """The work: the faults of each container, whose files are read by ``threads``."""

    connection: Connection
    threads: int

    @contextmanager
    def __call__(self) -> Iterator[Callable[[SearchHit], Outcome]]:
        with closing(Opener(self.connection)) as opener:
            yield partial(self._outcome, opener)

    def _outcome(self, opener: Opener, found: SearchHit) -> Outcome:
        """Return the faults of one container, each once, and what is omitted."""
        faults, seen = Problems(), set[str]()
        name = found.name
        try:
            named = opener.named(found)
            name = named.store.shown(named.path)
            with opener.opened(named) as (tree, container):
                # Several threads would take longer for a small container than one.
                is_small = container.sources[0].size <= PIECE
                in_files = _faults_in_files(tree, name, 1 if is_small else self.threads)
                for fault in chain(in_files, _faults_of_checks(container, "", name)):
                    # A check may find what reading files has found. It names the place as that does, or in its text.
                    if not seen & {str(fault), fault.reason}:
                        faults.add(fault)
                    seen.add(str(fault))
        except Exception as error:
            if isinstance(error, Unrecognised) and not found.is_named:
                return Outcome(is_container=False)
            faults.add(fault_of(error, name))
        return Outcome(faults.all, is_several=opener.is_several)


def _faults_in_files(tree: Tree, source: str, threads: int) -> Iterator[Problem]:
    unlisted: list[Problem] = []
    reading = work.derived()

    def on_omitted(path: str, one: Omission) -> None:
        unlisted.append(fault_of(one.error, source, path[1:]))

    def on_error(path: str, error: GlassfsError) -> None:
        unlisted.append(fault_of(error, source, path[1:]))

    def files() -> Iterator[tuple[str, File]]:
        for path, node in tree.walk("/", on_error, on_omitted):
            if isinstance(node, File):
                yield path[1:], node  # as checks of containers name places
            elif isinstance(node, NestedDirectory):
                yield path[1:], node.file  # what is in it may leave out some of its bytes
                unlisted.extend(_faults_of_checks(node, path[1:], source))

    fault_in = partial(_fault_in, source)
    if threads == 1:
        yield from filter(None, map(fault_in, files()))
    else:
        pool, all_files = ThreadPoolExecutor(threads, initializer=work.begin, initargs=(reading,)), files()
        try:
            while some := list(islice(all_files, 256)):
                yield from filter(None, pool.map(fault_in, some))
        finally:  # also if the consumer stops early
            reading.cancel()
            pool.shutdown(cancel_futures=True)
    yield from unlisted


def _faults_of_checks(one: Container | NestedDirectory, place: str, source: str) -> Iterator[Problem]:
    """Yield what the checks of a container find that is shown at ``place``."""
    try:
        container = one.opened().container if isinstance(one, NestedDirectory) else one
        for inner, reason in container.check():
            yield Problem("/".join(filter(None, (place, inner))), reason)
    except GlassfsError as error:
        yield fault_of(error, source, place)


def _fault_in(source: str, named: tuple[str, File]) -> Problem | None:
    """Return why a file cannot be read completely or has invalid contents."""
    path, file = named
    if isinstance(file.content, Image) and file.data.location() is None:
        return None  # a frame of an array that is read as a whole
    try:
        data = file.content.data if isinstance(file.content, Stored) else file.data
        if not data.size:  # what no reader of a file asks for: it may be the size that is wrong
            data.read_into(memoryview(bytearray()), 0)
        pieces: Iterator[bytes] = (file.read(position, PIECE) for position in range(0, file.size, PIECE))
        parts = data.written()
        if parts is not None:  # an array of terabytes may have a few stored chunks; the others are fill value
            pieces = chain(islice(pieces, 1), chain.from_iterable(part.pieces() for part in parts))
        for _ in pieces:
            work.check()
        if isinstance(file.content, Json):
            json.loads(file.read(0, file.size))
    except (GlassfsError, OSError) as error:
        return fault_of(error, source, path)
    except (ValueError, RecursionError) as error:
        return Problem(path, f"is not valid JSON: {error}")
    return None
