"""``glassfs export``: a tree as a folder of ordinary files, written here or by worker processes.

Each worker opens the tree itself and writes to the same target, which is safe: a name is a complete file or does not
exist. What a killed worker had begun is begun again by another one, so complete files are kept as with ``--resume``.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import click

from glassfs.cli import stoppable
from glassfs.cli.common import located, lookup, name_of, nodes_from, opened
from glassfs.cli.completion import complete_file, misuse, progress_option, source_argument, where_option
from glassfs.cli.episodes import Rows
from glassfs.cli.exporting import LINKS, Export, ExportJob, Written, is_within
from glassfs.cli.layouts import tree_options
from glassfs.cli.many import Progress, batch, many_options, progress_over
from glassfs.cli.target import Existing, NotWritten, Target, Unusable
from glassfs.content.episodes import POSITION
from glassfs.content.summary import CONTAINER, EPISODES, ContainerPiece, records
from glassfs.datasets.batch.found import TABLE, Outcome, Problems, Search, SearchHit, Unlisted
from glassfs.datasets.batch.run import RunPlan
from glassfs.datasets.joined import WithJoined, joined_of
from glassfs.datasets.selections import is_selection
from glassfs.datasets.table import PARQUET, writer
from glassfs.datasets.where import why_none
from glassfs.errors import GlassfsError, NotFound
from glassfs.library import open_tree
from glassfs.names import component, raw
from glassfs.sizes import PIECE, counted, human_size
from glassfs.source import Connection, Kind, absolute, is_url
from glassfs.source.remote.url import local_name, shown
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Tree
from glassfs.tree.sources.folder import Folder
from glassfs.view import available

_GAP = re.compile(r"[\W_]+")


@click.command()
@source_argument
@click.argument("paths", metavar="[PATH]... TARGET", nargs=-1, shell_complete=complete_file)
@click.option("--overwrite", is_flag=True, help="Replace files, links and pipes of the same names in TARGET.")
@click.option(
    "--links", type=click.Choice(LINKS), default=LINKS[0],
    help="Symbolic links: keep, follow (copy what they lead to), or by default keep those to what is exported as well "
    "and those out of SOURCE, and follow the others.",
)
@click.option(
    "--only", metavar="NAME+NAME…", default="",
    help="Only files and directories that are called so, or end so, such as png, npy+json or meta; views among them "
    "as by --views.",
)
@click.option(
    "--allow-omissions", "may_omit", is_flag=True,
    help="Exit with status 0 although containers have what the tree does not show; each is named.",
)
@where_option
@progress_option
@many_options("Continue an interrupted export: complete files are kept.", is_report_needed=False)
@tree_options
def command(
    source: str, paths: tuple[str, ...], overwrite: bool, links: str, only: str, may_omit: bool, where: str,
    progress: bool | None, views: str, plan: RunPlan, connection: Connection,
) -> int:
    """Write the tree of SOURCE, or each PATH in it, to the folder TARGET, with the same names and bytes as in a mount.

    TARGET is created if missing; if it is not empty, --overwrite or --resume is required. A file gets its name when it
    is complete. With --resume, a regular file counts as complete if its time is that of the source and its size is
    right (not compared if that requires decoding); any other regular file is written again. Permissions are those of
    new files, 0666 less the umask, without those of a group or of others that may not read the source.

    With --where, TARGET gets a directory for each of the episodes that satisfy the condition, and their table,
    episodes.parquet.
    """
    if not paths:
        raise misuse("the TARGET folder is missing")
    if overwrite and plan.is_resumed:
        raise misuse("--overwrite and --resume cannot be used together")
    *chosen, folder = paths
    folder = _demand_target(folder)
    if where and (chosen or not plan.is_plain):
        raise misuse("--where cannot be used with PATHs, --jobs, --scheduler, --shard or --report")
    if is_selection(source) and (where or not plan.is_plain):
        raise misuse("--where, --jobs, --scheduler, --shard and --report cannot be used with a selection")
    existing = Existing.OVERWRITE if overwrite else Existing.RESUME if plan.is_resumed else Existing.REFUSE
    at = located(source)
    if where and at.path != "/":
        raise misuse(f"--where needs a container or a folder, not {at.path[1:]} in one")
    source, name = at.source, at.shown
    where_to = name_of(folder)
    forms = [form for text in re.split("[+,]", only) if (form := text.lstrip("*."))]
    views = "+".join(filter(None, [views, *(form for form in forms if form in available())]))
    with stoppable(can_resume=True), opened(source, views, connection) as tree:
        try:
            picked = picked_episodes(tree, source, connection, plan, where) if where else None
            inside = [at.inner(path) for path in chosen] or [at.path]
            starts = {path: path for path in _starts(tree, name, inside)} if picked is None else picked.places
            job = ExportJob(
                source, name, folder, folder, existing, links, starts, views, connection,
                tuple(f".{form}" for form in forms),
            )
            if plan.is_plain:
                with (
                    job.opened_target(tree.root.mode) as target,
                    Progress(lambda: _sizes(tree, starts), progress) as bar,
                ):
                    written = Export(job, tree, target, bar.complain, bar).run()
                    if picked is not None:
                        written.add(picked.write_table(target))
            else:
                written = export_many(plan, job, tree, progress)
        except NotWritten as error:
            raise click.ClickException(f"{where_to}: {error}") from error
    size = human_size(written.bytes) if written.bytes >= 1024 else counted(written.bytes, "byte")
    click.echo(printable(f"{counted(written.files, 'file')} in {where_to}, {size} written"), err=True)
    if written.failures:
        raise click.ClickException(f"{name}: {written.failures} of its files and directories were not written")
    if written.omitted and not may_omit:
        what = f"{written.omitted:,} of its contents {'is' if written.omitted == 1 else 'are'} omitted"
        raise click.ClickException(f"{name}: {what}; --allow-omissions makes this a success")
    if only and not written.files and plan.shard.parts == 1:
        raise click.ClickException(f"{name}: no name is or ends with {' or '.join(forms)}")
    return 0


def _demand_target(folder: str) -> str:
    """Return the local name that the user means. Raises ClickException for a URL, also for a mistyped one."""
    name = local_name(folder)
    if is_url(folder):
        raise click.ClickException(f"{shown(folder)}: export writes to folders of this machine only")
    if ":" in name.partition("/")[0] and not os.path.lexists(name):
        raise click.ClickException(f"{folder}: looks like a URL; write ./{folder} for a folder of that name")
    return name


def _sizes(tree: Tree, starts: Iterable[str]) -> Iterator[int]:
    nodes = (node for start in starts for _, node in nodes_from(tree, start, lambda *_: None))
    return (node.size for node in nodes if isinstance(node, File) and node.data.is_sized)


def _starts(tree: Tree, source: str, paths: list[str]) -> list[str]:
    """Return the paths to export: all exist, and none is inside another."""
    found = dict.fromkeys(lookup(tree, path, source)[0] for path in paths)
    return [path for path in found if not any(path != other and is_within(path, other) for other in found)]


def export_many(plan: RunPlan, job: ExportJob, tree: Tree, is_shown: bool | None) -> Written:
    """Return how much was written. Raises NotWritten if continuing is pointless."""
    search = Search([job.source], job.connection, has_all=True)
    with job.opened_target(tree.root.mode) as target, progress_over(search, plan.shard, is_shown) as bar:
        # A worker that was killed left complete files, which its successor must not refuse.
        if job.existing is Existing.REFUSE:
            job = replace(job, existing=Existing.RESUME)
        here = Export(job, tree, target, bar.complain)
        work = Exporting(replace(job, source=absolute(job.source), target=absolute(job.target)))
        with batch(plan, bar) as run:
            for found, outcome in run.outcomes(
                _files(plan, search, tree, job, here), work,
                is_still=lambda one: not one.path or target.has_anything(f"/{one.path}"),
            ):
                if outcome.fatal:
                    raise Unusable(outcome.fatal)
                for fault in outcome.faults:
                    bar.complain(fault)
                bar.advance(found.size)
                if outcome.data is not None:
                    here.written.add(outcome.data)
        # Tables over all containers are of no single shard: the first one writes them.
        root = tree.root
        if isinstance(root, WithJoined) and "/" in job.starts and not plan.shard.number:
            shown = {found.path for found in search.below() if isinstance(found, SearchHit)}
            for node in root.listing():
                if node.name not in shown:
                    here.write_all(f"/{node.name}", f"/{node.name}")
    here.written.add(Written(failures=run.faults, omitted=run.omitted))
    return here.written


def _files(plan: RunPlan, search: Search, tree: Tree, job: ExportJob, here: Export) -> Iterator[SearchHit | Unlisted]:
    """Walk the source: write folders and links, yield files."""
    for start in job.starts:
        here.make_folders_above(start)
        node = tree.lookup(start)
        # A file, a container, or a part of one, which has no folder to walk through.
        if not isinstance(node, (WithJoined, Folder)):
            source = name_of(job.source)
            name = source if start == "/" else f"{source}{start}"
            size = node.size if isinstance(node, File) and node.data.is_sized else 0
            version = str(node.origin.identity)
            yield SearchHit(name, job.source, (), start[1:], start[1:], Kind.FILE, version, size, is_named=True)
            continue
        here.write(start, node, start)
        for found in search.below(node.location if isinstance(node, Folder) else None, start[1:]):
            if isinstance(found, Unlisted):
                yield found
                continue
            if found.kind is Kind.FILE:
                yield found
            # A folder may contain files of any shard.
            elif found.kind is Kind.FOLDER or (found.kind is Kind.LINK and plan.shard.has(found.key)):
                path = f"/{found.path}"
                try:
                    node = tree.lookup(path)
                except NotFound:
                    continue  # removed meanwhile
                except GlassfsError as error:
                    here.failed(path, error)
                else:
                    here.write(path, node, path)


@dataclass(frozen=True)
class Exporting:
    """The work: write each file, or all of a container, to the target."""

    job: ExportJob

    @contextmanager
    def __call__(self) -> Iterator[Callable[[SearchHit], Outcome]]:
        job = self.job
        with open_tree(job.source, views=job.views, connection=job.connection) as tree:
            try:
                with job.opened_target(is_begun=True) as target:
                    yield partial(self._outcome, tree, target)
            except NotWritten as error:
                fatal = Outcome(is_container=False, fatal=str(error))
                yield lambda found: fatal

    def _outcome(self, tree: Tree, target: Target, found: SearchHit) -> Outcome:
        faults = Problems()
        export = Export(self.job, tree, target, faults.add)
        path = f"/{found.path}"
        is_container = is_several = False
        try:
            node = tree.lookup(path)
            is_container = isinstance(node, Directory)
            if self.job.forms:  # the folders above are made when they are needed
                export.make_folders_above(path)
            export.write_all(path, path)
            is_several = len(node.origin.lease.sources) > 1
        except Unusable as error:
            return Outcome(is_container=False, fatal=str(error))
        except Exception as error:
            export.failed(path, error)
        # What is missing is counted by its faults.
        return Outcome(faults.all, is_container, replace(export.written, failures=0, omitted=0), is_several=is_several)


# Episodes picked by a condition: where each is, its name in the target, and their table.


@dataclass
class Picked:
    """Episodes: ``places`` are their paths in the tree and in the target. ``missing`` counts what was not searched."""

    places: dict[str, str] = field(default_factory=dict)
    pieces: list[ContainerPiece] = field(default_factory=list)
    missing: Written = field(default_factory=Written)

    def write_table(self, target: Target) -> Written:
        """Write the table of the episodes beside them, and return how much is written and missing."""
        with tempfile.TemporaryFile() as file:
            with writer(PARQUET, file) as write:
                write(self.pieces)
            size = file.tell()
            file.seek(0)
            pieces = (memoryview(piece) for piece in iter(lambda: file.read(PIECE), b""))
            target.write(f"/{TABLE}", 0o444, time.time_ns(), pieces)
        return replace(self.missing, files=1, bytes=size)


def picked_episodes(tree: Tree, source: str, connection: Connection, plan: RunPlan, where: str) -> Picked:
    """Return the episodes in a source that satisfy a condition. Containers that cannot be read are reported.

    Raises ClickException if there is none.
    """
    picked, known = Picked(), Counter[str]()
    work = Rows(connection, PARQUET, where)
    bar = Progress()
    with batch(plan, bar) as run:
        for found, outcome in run.outcomes(Search([source], connection).all(), work):
            for fault in outcome.faults:
                bar.report(found.name, fault)
            known.update(outcome.known)
            for piece in outcome.data or ():
                above = "/" if found.is_named else f"/{piece.path}"
                # Each episode has a directory in one of the container's, unless the container is an episode itself.
                node = tree.lookup(above)
                table = joined_of(node, EPISODES) if isinstance(node, Directory) else None
                directory = component(table.directory) if table is not None and table.directory else ""
                picked.pieces.append(piece)
                for row in records(piece):
                    path = f"{above.rstrip('/')}/{directory}/{row[POSITION]}" if directory else above
                    picked.places[path] = f"/{_label(row)}"
    picked.missing = Written(failures=run.faults, omitted=run.omitted)
    if not picked.places:
        reason = why_none(where, known)
        raise click.ClickException(f"{name_of(source)}: no episode satisfies: {where}{'; ' * bool(reason)}{reason}")
    return picked


def _label(row: dict[str, object]) -> str:
    """Return a name that tells container, position and task; all are different, as ``~`` is not in a task's words."""
    task = _GAP.sub("-", str(row["language_instruction"] or "").lower())[:60].strip("-")
    return component(raw(str(row[CONTAINER])), f"~{row[POSITION]}{'-' * bool(task)}{task}")
