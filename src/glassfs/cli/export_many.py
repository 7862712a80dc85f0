"""Export many containers at once: this process makes folders and links, workers write files and containers.

Each worker opens the source itself and writes to the same target, which is safe: a name is a complete file or does not
exist. What a killed worker had begun is begun again by another one, so complete files are kept as with ``--resume``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from glassfs.cli.common import complain, name_of, report
from glassfs.cli.exporting import Export, Links, Written, opened_target
from glassfs.cli.many import fault_of, found_under, progress
from glassfs.cli.progress import Progress
from glassfs.cli.target import Existing, NotWritten, Target, Unusable
from glassfs.datasets.batch.contract import Fault, Faults, Item, Outcome, SearchHit, Settings
from glassfs.datasets.batch.found import Search, Unlisted
from glassfs.datasets.batch.run import Plan, Run
from glassfs.datasets.joined import WithJoined
from glassfs.errors import GlassfsError, NotFound
from glassfs.library import open_tree
from glassfs.source import Kind, Path, absolute
from glassfs.tree import Directory, File, Tree
from glassfs.tree.sources.folder import Folder
from glassfs.tree.sources.sources import SideBySide

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
    plan: Plan, tree: Tree, source: str, starts: list[str], folder: str, existing: Existing, settings: Settings,
    links: Links, is_shown: bool | None,
) -> Written:
    """Return how much was written. Raises NotWritten if continuing is pointless."""
    search = found_under([source], settings.connection, has_all=True)
    name = name_of(source)
    with (
        opened_target(folder, tree.root.mode, existing, source, settings.connection) as target,
        progress(search, plan.shard, is_shown) as bar, plan.opened_report() as lines, plan.workers() as workers,
    ):
        existing = Existing.OVERWRITE if existing is Existing.OVERWRITE else Existing.RESUME
        report_node = report_failure(name, folder, bar.aside)
        places = {start: start for start in starts}
        here = Export(tree, source, target, existing, Progress(), report_node, places, links)

        def show_unlisted(folder: Unlisted) -> None:
            with bar.aside():
                report(folder.name, folder.error)

        def is_still(found: SearchHit) -> bool:
            return target.has_anything(_path(found)) or _path(found) == "/"

        written = Written()
        run = Run(plan, workers, lines, show_unlisted, lambda hit: bar.advance(hit.size))
        walk = _Walk(plan, search, tree, source, here)
        work = Exporting(settings, name, absolute(source), folder, absolute(folder), existing, links, tuple(starts))
        for done in run.outcomes(walk.files(starts), work, is_still=is_still):
            if done.outcome.fatal:
                raise Unusable(done.outcome.fatal)
            for fault in done.outcome.faults:
                with bar.aside():
                    complain(str(fault))
            bar.advance(done.item.found.size)
            written = written.plus(done.outcome.data or Written())
        if settings.views and "/" in starts and not plan.shard.number:
            walk.write_joined()
    return Written(written.files, written.bytes, run.faults, run.omitted).plus(here.written)


class _Walk:
    """Walk the source: write folders and links, yield files."""

    def __init__(self, plan: Plan, search: Search, tree: Tree, source: str, here: Export) -> None:
        self._plan, self._search = plan, search
        self._tree, self._source, self._here = tree, source, here
        root = tree.root
        self._has_folders = isinstance(root, (WithJoined, SideBySide, Folder))

    def files(self, starts: list[str]) -> Iterator[SearchHit | Unlisted]:
        for start in starts:
            self._here.make_folders_above(start)
            path = self._folder_at(start)
            if path is None:
                yield self._found_at(start)
                continue
            self._here.write(start, self._tree.lookup(start), start)
            for found in self._search.below(path, start[1:]):
                if isinstance(found, Unlisted):
                    yield found
                elif found.kind is not Kind.FILE:
                    self._write(found)
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

    settings: Settings
    name: str
    source: str
    folder: str
    target: str
    existing: Existing
    links: Links
    starts: tuple[str, ...]

    def __call__(self, items: Iterator[Item]) -> Iterator[Outcome]:
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
        faults = Faults()

        def failed(path: str, error: Exception) -> None:
            if isinstance(error, NotWritten):
                faults.add(Fault(os.path.join(self.folder, path[1:]), str(error)))
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
