"""``glassfs export``: a tree as a folder of ordinary files, written here or by worker processes.

Each worker opens the tree itself and writes to the same target, which is safe: a name is a complete file or does not
exist. What a killed worker had begun is begun again by another one, so complete files are kept as with ``--resume``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import click

from glassfs.cli.common import complain, located, lookup, name_of, nodes_from, opened, report, views_option
from glassfs.cli.completion import complete_path_or_folder, connection_option, misuse, progress_option, source_argument
from glassfs.cli.exporting import Export, Links, Written, is_within, opened_target
from glassfs.cli.many import Progress, batch, fault_of, found_under, many_options, progress, where_option
from glassfs.cli.picking import picked_episodes
from glassfs.cli.stopping import stoppable
from glassfs.cli.target import Existing, NotWritten, Target, Unusable
from glassfs.datasets.batch.contract import BatchSettings, Outcome, Problem, Problems, SearchHit, WorkItem
from glassfs.datasets.batch.found import Search, Unlisted
from glassfs.datasets.batch.run import RunPlan
from glassfs.datasets.joined import WithJoined
from glassfs.errors import GlassfsError, NotFound
from glassfs.library import open_tree
from glassfs.sizes import counted, human_size
from glassfs.source import Connection, Kind, Path, absolute, is_url
from glassfs.source.remote.options import meant_by
from glassfs.source.remote.url import local_name
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Tree
from glassfs.tree.sources.folder import Folder
from glassfs.tree.sources.sources import SideBySide

ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")


@click.command()
@source_argument
@click.argument("paths", metavar="[PATH]... TARGET", nargs=-1, shell_complete=complete_path_or_folder)
@click.option("--overwrite", is_flag=True, help="Replace files, links and pipes of the same names in TARGET.")
@click.option(
    "--links", type=click.Choice([one.value for one in Links]), default=Links.AUTO.value,
    help="Symbolic links: keep, follow (copy what they lead to), or by default keep those to what is exported as well "
    "and those out of SOURCE, and follow the others.",
)
@click.option(
    "--allow-omissions", "may_omit", is_flag=True,
    help="Exit with status 0 although containers have what the tree does not show; each is named.",
)
@where_option
@progress_option
@many_options("Continue an interrupted export: complete files are kept.", is_report_needed=False)
@views_option
@connection_option
def command(
    source: str, paths: tuple[str, ...], overwrite: bool, links: str, may_omit: bool, where: str, progress: bool | None,
    views: str, plan: RunPlan, connection: Connection,
) -> int:
    """Write the tree of SOURCE, or each PATH in it, to the folder TARGET, with the same names and bytes as in a mount.

    TARGET is created if missing; if it is not empty, --overwrite or --resume is required. A file gets its name when it
    is complete. With --resume, a regular file counts as complete if its time is that of the source and its size is
    right (not compared if that requires decoding); any other regular file is written again. Permissions are those of
    new files, 0666 less the umask, without those of a group or of others that may not read the source.

    TARGET may be the URL of a bucket or of a folder in one: s3://bucket/folder, gs:// or az://.

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
    existing = Existing.OVERWRITE if overwrite else Existing.RESUME if plan.is_resumed else Existing.REFUSE
    at = located(source)
    if where and at.path != "/":
        raise misuse(f"--where needs a container or a folder, not {at.path[1:]} in one")
    source, name = at.source, at.shown
    where_to = name_of(folder)
    with opened(source, views, connection) as tree, stoppable(can_resume=True):
        try:
            if where:
                picked = picked_episodes(tree, source, BatchSettings(connection=connection), where)
                starts = picked.places
            else:
                picked = None
                starts = {path: path for path in _starts(tree, name, [at.inner(path) for path in chosen] or [at.path])}
            if plan.is_plain:
                with (
                    opened_target(folder, tree.root.mode, existing, source, connection) as target,
                    Progress(lambda: _sizes(tree, list(starts)), progress) as bar,
                ):
                    failed = report_failure(name, folder, bar.aside)
                    written = Export(tree, source, target, existing, bar, failed, starts, Links(links)).run()
                    if picked is not None:
                        written.add(picked.write_table(target))
            else:
                settings = BatchSettings(views, connection)
                written = export_many(
                    plan, tree, source, list(starts), folder, existing, settings, Links(links), progress,
                )
        except NotWritten as error:
            raise click.ClickException(f"{where_to}: {error}") from error
    size = human_size(written.bytes) if written.bytes >= 1024 else counted(written.bytes, "byte")
    click.echo(printable(f"{counted(written.files, 'file')} in {where_to}, {size} written"), err=True)
    if written.failures:
        raise click.ClickException(f"{name}: {written.failures} of its files and directories were not written")
    if written.omitted and not may_omit:
        what = f"{written.omitted:,} of its contents {'is' if written.omitted == 1 else 'are'} omitted"
        raise click.ClickException(f"{name}: {what}; --allow-omissions makes this a success")
    return 0


def _demand_target(folder: str) -> str:
    """Return the local name or the URL that the user means. Raises ClickException for a mistyped URL or an archive."""
    meant = "" if is_url(folder) or os.path.lexists(folder) else meant_by(folder)
    if meant and not folder.startswith("file:"):
        raise click.ClickException(f"{folder}: no folder is made for what looks like a URL{meant}")
    name = folder.rstrip("/").lower()
    if name.endswith(ARCHIVES) and not os.path.isdir(folder):
        advice = "name a folder, and pack it with a program such as zip or tar"
        raise click.ClickException(f"{folder}: export writes a folder, not an archive: {advice}")
    return local_name(folder)


def _sizes(tree: Tree, starts: list[str]) -> Iterator[int]:
    for start in starts:
        for _, node in nodes_from(tree, start, lambda *_: None):
            if isinstance(node, File) and node.data.is_sized:
                yield node.size


def _starts(tree: Tree, source: str, paths: list[str]) -> list[str]:
    """Return the paths to export: all exist, and none is inside another."""
    found: list[str] = []
    for path in dict.fromkeys(lookup(tree, path, source)[0] for path in paths):
        if not any(is_within(path, other) for other in found):
            found = [other for other in found if not is_within(other, path)] + [path]
    return found


Failed = Callable[[str, Exception], None]


def report_failure(source: str, folder: str, aside: Callable[[], AbstractContextManager[None]]) -> Failed:
    """Return a function that reports what is left out, under its name in the source or the target."""

    def failed(path: str, error: Exception) -> None:
        with aside():
            if isinstance(error, NotWritten):
                report(os.path.join(folder, path[1:]), error)
            else:
                report(path, error, source)

    return failed


def export_many(
    plan: RunPlan, tree: Tree, source: str, starts: list[str], folder: str, existing: Existing, settings: BatchSettings,
    links: Links, is_shown: bool | None,
) -> Written:
    """Return how much was written. Raises NotWritten if continuing is pointless."""
    search = found_under([source], settings.connection, has_all=True)
    name = name_of(source)
    with (
        opened_target(folder, tree.root.mode, existing, source, settings.connection) as target,
        progress(search, plan.shard, is_shown) as bar,
    ):
        # A worker that was killed left complete files, which its successor must not refuse.
        existing = Existing.OVERWRITE if existing is Existing.OVERWRITE else Existing.RESUME
        report_node = report_failure(name, folder, bar.aside)
        places = {start: start for start in starts}
        here = Export(tree, source, target, existing, Progress(), report_node, places, links)

        def show(name: str, fault: Problem) -> None:
            with bar.aside():
                complain(f"{name}: {fault}")

        def is_still(found: SearchHit) -> bool:
            return target.has_anything(_path(found)) or _path(found) == "/"

        written = Written()
        walk = _SourceWalk(plan, search, tree, source, here)
        work = Exporting(settings, name, absolute(source), folder, absolute(folder), existing, links, tuple(starts))
        with batch(plan, bar, show) as run:
            for done in run.outcomes(walk.files(starts), work, is_still=is_still):
                if done.outcome.fatal:
                    raise Unusable(done.outcome.fatal)
                for fault in done.outcome.faults:
                    with bar.aside():
                        complain(str(fault))
                bar.advance(done.item.found.size)
                if done.outcome.data is not None:
                    written.add(done.outcome.data)
        # Tables over all containers are of no single shard: the first one writes them.
        if settings.views and "/" in starts and not plan.shard.number:
            walk.write_joined()
    here.written.add(Written(written.files, written.bytes, run.faults, run.omitted))
    return here.written


class _SourceWalk:
    """Walk the source: write folders and links, yield files."""

    def __init__(self, plan: RunPlan, search: Search, tree: Tree, source: str, here: Export) -> None:
        self._plan, self._search = plan, search
        self._tree, self._source, self._here = tree, source, here
        root = tree.root
        self._has_folders = isinstance(root, (WithJoined, SideBySide, Folder))

    def files(self, starts: list[str]) -> Iterator[SearchHit | Unlisted]:
        for start in starts:
            self._here.make_folders_above(start)
            path = self._folder_at(start)
            # A file, a container, or a part of one, which has no folder to walk through.
            if path is None:
                yield self._found_at(start)
                continue
            self._here.write(start, self._tree.lookup(start), start)
            for found in self._search.below(path, start[1:]):
                if isinstance(found, Unlisted):
                    yield found
                elif found.kind is not Kind.FILE:
                    self._write(found)
                # Nothing can be in a folder that could not be made; each shard counts its own files there.
                elif not self._here.is_left_out(_path(found)):
                    yield found
                elif self._plan.shard.has(found.key):
                    self._here.leave_out(_path(found), None)

    def write_joined(self) -> None:
        """Write what the root has besides the folder's entries: tables over all containers."""
        if self._has_folders:
            root = self._tree.root
            shown = {found.path for found in self._search.below((), "") if isinstance(found, SearchHit)}
            for node in root.listing():
                if node.name not in shown:
                    self._here.write_all(f"/{node.name}", f"/{node.name}")

    def _folder_at(self, start: str) -> Path | None:
        """Return the path, below the source, of the folder shown at ``start``; None if it is no folder."""
        if not self._has_folders:
            return None
        if start == "/":
            return ()
        node = self._tree.lookup(start)
        return self._search.inner(node.location) if isinstance(node, Folder) else None

    def _found_at(self, start: str) -> SearchHit:
        """Return a file or container, or a part of one, as the only hit."""
        node = self._tree.lookup(start)
        source = name_of(self._source)
        name = source if start == "/" else f"{source}{start}"
        size = node.size if isinstance(node, File) and node.data.is_sized else 0
        version = str(node.origin.identity)
        return SearchHit(name, self._source, (), start[1:], start[1:], Kind.FILE, version, size, is_named=True)

    def _write(self, found: SearchHit) -> None:
        """Write a folder, which may contain files of any shard, or a link of this shard."""
        path = _path(found)
        if found.kind is not Kind.LINK or self._plan.shard.has(found.key):
            try:
                self._here.write(path, self._tree.lookup(path), path)
            except NotFound:
                return  # removed meanwhile
            except Unusable:
                raise
            except GlassfsError as error:
                self._here.failed(path, error)


@dataclass(frozen=True)
class Exporting:
    """The work: write each file, or all of a container, to the target. ``name`` and ``folder`` are for messages."""

    settings: BatchSettings
    name: str
    source: str
    folder: str
    target: str
    existing: Existing
    links: Links
    starts: tuple[str, ...]

    def __call__(self, items: Iterator[WorkItem]) -> Iterator[Outcome]:
        try:
            with (
                open_tree(self.source, views=self.settings.views, connection=self.settings.connection) as tree,
                opened_target(
                    self.target, 0, self.existing, self.source, self.settings.connection, is_begun=True,
                ) as target,
            ):
                for item in items:
                    yield self._outcome(tree, target, item.found)
        except NotWritten as error:
            yield Outcome(is_container=False, fatal=str(error))

    def _outcome(self, tree: Tree, target: Target, found: SearchHit) -> Outcome:
        faults = Problems()

        def failed(path: str, error: Exception) -> None:
            if isinstance(error, NotWritten):
                faults.add(Problem(os.path.join(self.folder, path[1:]), str(error)))
            else:
                fault = fault_of(error, name_of(self.source), path)
                faults.add(fault._replace(place=f"{self.name}: {path}"))

        path = _path(found)
        starts = {start: start for start in self.starts}
        export = Export(tree, self.source, target, self.existing, Progress(), failed, starts, self.links)
        is_container = is_several = False
        try:
            node = tree.lookup(path)
            is_container = isinstance(node, Directory)
            export.write_all(path, path)
            is_several = len(node.origin.lease.sources) > 1
        except Unusable as error:
            return Outcome(is_container=False, fatal=str(error))
        except Exception as error:
            failed(path, error)
        return Outcome(faults.all, is_container, export.written, is_several=is_several)


def _path(found: SearchHit) -> str:
    return f"/{found.path}"
