"""An export of many containers at once: folders and links are made here, files and containers by those who do the work.

Each of these opens the source by itself and writes to the same target, which is safe by how files are written there: a
name is a whole file or none. What a worker has begun that was killed is begun again by another one, so that files that
are complete are kept, as with ``--resume``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from glassfs.batch.contract import Fault, Faults, Found, Item, Outcome, Settings
from glassfs.batch.found import Search, Unlisted
from glassfs.batch.run import Plan, Run
from glassfs.batch.unforeseen import as_fault
from glassfs.cli.common import complain, name_of, reason_of, report
from glassfs.cli.exporting import Export
from glassfs.cli.many import Bar, found_under
from glassfs.cli.progress import Progress
from glassfs.cli.target import Existing, NotWritten, Target, Unusable, opened_target
from glassfs.errors import GlassfsError, NotFound, Passing
from glassfs.library import open_tree
from glassfs.source import Kind, Path, absolute
from glassfs.tree import Directory, File, Tree
from glassfs.tree.sources.folder import Folder
from glassfs.tree.sources.joined import Joinable

Failed = Callable[[str, Exception], None]


def report_failure(source: str, folder: str, aside: Callable[[], AbstractContextManager[None]]) -> Failed:
    """Tells on standard error what is left out, under its name in the source or in the target."""

    def failed(place: str, error: Exception) -> None:
        with aside():
            if isinstance(error, NotWritten):
                report(os.path.join(folder, place[1:]), error)
            else:
                report(place, error, source)

    return failed


def export_many(
    plan: Plan, tree: Tree, source: str, starts: list[str], folder: str, existing: Existing, settings: Settings,
    is_shown: bool,
) -> int:
    """The number of nodes that failed. Raises NotWritten where there is no point in going on."""
    search = found_under([source], settings.connection, has_all=True)
    name = name_of(source)
    with (
        opened_target(folder, tree.root.mode, existing, source) as target,
        Bar(search.all, plan.shard, is_shown) as bar, plan.opened_report() as lines, plan.workers() as workers,
    ):
        existing = Existing.OVERWRITE if existing is Existing.OVERWRITE else Existing.RESUME
        tell = report_failure(name, folder, bar.aside)
        here = Export(tree, source, target, existing, Progress(tree, [], False), tell)

        def unlisted_is(one: Unlisted) -> None:
            with bar.aside():
                report(one.name, one.error)

        def is_still(found: Found) -> bool:
            return target.has_anything(_place(found)) or _place(found) == "/"

        run = Run(plan, workers, lines, unlisted_is, bar.advance)
        walk = _Walk(plan, search, tree, source, here)
        work = Exporting(settings, name, absolute(source), folder, os.path.abspath(folder), existing)
        for done in run.outcomes(walk.files(starts), work, is_still=is_still):
            if done.outcome.fatal:
                raise Unusable(done.outcome.fatal)
            for fault in done.outcome.faults:
                with bar.aside():
                    complain(str(fault))
            bar.advance(done.item.found)
        if settings.views and "/" in starts and not plan.shard.number:
            walk.write_joined()
    return run.faults + here.failures


class _Walk:
    """Goes through the source: folders and links are written, files are found."""

    def __init__(self, plan: Plan, search: Search, tree: Tree, source: str, here: Export) -> None:
        self._plan, self._search = plan, search
        self._tree, self._source, self._here = tree, source, here
        root = tree.root
        self._has_folders = isinstance(root, (Joinable, Folder))

    def files(self, starts: list[str]) -> Iterator[Found | Unlisted]:
        for start in starts:
            self._here.make_folders_above(start)
            place = self._folder_at(start)
            if place is None:
                yield self._found_at(start)
                continue
            self._here.write(start, self._tree.lookup(start))
            for found in self._search.below(place, start[1:]):
                if isinstance(found, Unlisted):
                    yield found
                elif found.kind is not Kind.FILE:
                    self._write(found)
                elif not self._here.is_left_out(_place(found)):
                    yield found
                elif self._plan.shard.has(found.key):
                    self._here.leave_out(_place(found), None)

    def write_joined(self) -> None:
        """What the root has besides what is in the folder: tables over all containers."""
        if self._has_folders:
            root = self._tree.root
            shown = {found.path for found in self._search.below((), "") if isinstance(found, Found)}
            for node in root.listing():
                if node.name not in shown:
                    self._here.write_all(f"/{node.name}")

    def _folder_at(self, start: str) -> Path | None:
        """Where the folder is from the source on that is shown at a path; None where there is none."""
        if not self._has_folders:
            return None
        if start == "/":
            return ()
        node = self._tree.lookup(start)
        return self._search.inner(node.location) if isinstance(node, Folder) else None

    def _found_at(self, start: str) -> Found:
        """A file or container, or something in one, as if that were all there is."""
        node = self._tree.lookup(start)
        source = name_of(self._source)
        name = source if start == "/" else f"{source}{start}"
        size = node.size if isinstance(node, File) and node.data.is_sized else 0
        version = str(node.origin.identity)
        return Found(name, self._source, (), start[1:], start[1:], Kind.FILE, version, size, is_named=True)

    def _write(self, found: Found) -> None:
        """A folder, in which there may be files of any part, or a link."""
        place = _place(found)
        if found.kind is not Kind.LINK or self._plan.shard.has(found.key):
            try:
                self._here.write(place, self._tree.lookup(place))
            except NotFound:
                return  # gone meanwhile
            except Unusable:
                raise
            except GlassfsError as error:
                self._here.failed(place, error)


@dataclass(frozen=True)
class Exporting:
    """The work: each file, or all of a container, to the target. ``name`` and ``folder`` are as they are told."""

    settings: Settings
    name: str
    source: str
    folder: str
    target: str
    existing: Existing

    def __call__(self, items: Iterator[Item]) -> Iterator[Outcome]:
        try:
            with (
                open_tree(self.source, views=self.settings.views, connection=self.settings.connection) as tree,
                opened_target(self.target, 0, self.existing, self.source, is_begun=True) as target,
            ):
                for item in items:
                    yield self._outcome(tree, target, item.found)
        except NotWritten as error:
            yield Outcome(is_container=False, fatal=str(error))

    def _outcome(self, tree: Tree, target: Target, found: Found) -> Outcome:
        faults = Faults()

        def failed(place: str, error: Exception) -> None:
            if isinstance(error, NotWritten):
                faults.add(Fault(os.path.join(self.folder, place[1:]), str(error)))
            else:
                reason = reason_of(error, name_of(self.source), place)
                faults.add(Fault(f"{self.name}: {place}", reason, isinstance(error, Passing)))

        place = _place(found)
        export = Export(tree, self.source, target, self.existing, Progress(tree, [], False), failed)
        is_container = is_several = False
        try:
            node = tree.lookup(place)
            is_container = isinstance(node, Directory)
            export.write_all(place)
            is_several = len(node.origin.lease.sources) > 1
        except Unusable as error:
            return Outcome(is_container=False, fatal=str(error))
        except (GlassfsError, OSError) as error:
            failed(place, error)
        except Exception as error:
            failed(place, as_fault(error, found.name))
        return Outcome(faults.all, is_container, is_several=is_several)


def _place(found: Found) -> str:
    return f"/{found.path}"
