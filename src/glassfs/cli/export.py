"""``glassfs export``: a tree as a folder of ordinary files. How the folder is written to safely is in ``target``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from glassfs.cli.common import complain, located, lookup, nodes_from, opened, report, views_option
from glassfs.cli.complete import complete_path_or_folder, complete_source
from glassfs.cli.progress import Progress
from glassfs.cli.stopping import Stopped, stoppable
from glassfs.cli.target import PIECE, Existing, NotWritten, Place, Target, Unusable, names_below, opened_target
from glassfs.errors import Damaged, GlassfsError
from glassfs.tree import Directory, File, Node, Symlink, Tree
from glassfs.tree.tree import normal


@click.command()
@click.argument("source", type=click.Path(readable=False), shell_complete=complete_source)
@click.argument("paths", metavar="[PATH]... TARGET", nargs=-1, shell_complete=complete_path_or_folder)
@click.option("--overwrite", is_flag=True, help="Replace files, links and pipes that TARGET has under the same names.")
@click.option("--resume", is_flag=True, help="Go on with an export that was interrupted: what is complete is kept.")
@click.option("--progress/--no-progress", default=None, help="A progress bar; the default on a terminal.")
@views_option
def command(
    source: str, paths: tuple[str, ...], overwrite: bool, resume: bool, progress: bool | None, views: str,
) -> int:
    """Write the same tree with the same bytes as a mount to the folder TARGET: all of SOURCE, or each PATH in it.

    TARGET is made where it is missing; one that has something in it needs --overwrite or --resume. A file gets its
    name when it is whole. For --resume one is complete if it is a regular file whose time is the source's and whose
    size is right (not compared where it takes decoding to know it); any other regular file is written anew.
    Permissions are those of a mount less the umask, and folders can be written to by their owner.
    """
    if not paths:
        raise click.UsageError("a folder to write to is needed", click.get_current_context())
    if overwrite and resume:
        raise click.UsageError("--overwrite and --resume cannot be used together", click.get_current_context())
    *chosen, folder = paths
    existing = Existing.OVERWRITE if overwrite else Existing.RESUME if resume else Existing.REFUSE
    is_shown = sys.stderr.isatty() if progress is None else progress
    source, inner = located(source)
    if inner != "/":
        chosen = [f"{inner}/{path}" for path in chosen] or [inner]
    with opened(source, views) as tree:
        starts = _starts(tree, source, chosen or ["/"])
        if _would_hit_itself(tree, source, starts, folder):
            raise click.ClickException(f"{folder}: this would write over {source}, which is to be exported")
        try:
            with (
                stoppable(), opened_target(folder, tree.root.mode, existing, source) as target,
                Progress(tree, starts, is_shown) as bar,
            ):
                failures = _Export(tree, source, target, folder, existing, bar).run(starts)
        except NotWritten as error:
            raise click.ClickException(f"{folder}: {error}") from error
        except Stopped as stopped:
            complain(f"{stopped}; '--resume' goes on from here")
            return stopped.status
    if failures:
        raise click.ClickException(f"{source}: {failures} of its files and directories could not be written")
    return 0


def _starts(tree: Tree, source: str, paths: list[str]) -> list[str]:
    """The paths to be exported, each of them there, none inside another one."""
    for path in paths:
        lookup(tree, path, source)
    found: list[str] = []
    for path in dict.fromkeys(map(normal, paths)):
        if not any(_is_within(path, other) for other in found):
            found = [other for other in found if not _is_within(other, path)] + [path]
    return found


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _would_hit_itself(tree: Tree, source: str, starts: list[str], folder: str) -> bool:
    """Whether the source lies in the target where something of this name is to be written."""
    names = names_below(source, folder)
    if names is None:
        return False
    path = "/" + "/".join(names)
    try:
        tree.lookup(path)
    except GlassfsError:
        return False
    return any(_is_within(path, start) or _is_within(start, path) for start in starts)


class _Export:
    """One export; what cannot be read or written is reported, counted and left out."""

    def __init__(
        self, tree: Tree, source: str, target: Target, folder: str, existing: Existing, bar: Progress,
    ) -> None:
        self._tree, self._source = tree, source
        self._target, self._folder = target, folder
        self._is_resumed = existing is Existing.RESUME
        self._bar = bar
        self._buffer = memoryview(bytearray(PIECE))
        self._unusable: set[str] = set()
        self._has_folders = os.path.isdir(source)
        self._failures = 0

    def run(self, starts: list[str]) -> int:
        """The number of nodes that failed. Raises Unusable where there is no point in going on."""
        for start in starts:
            self._make_folders_above(start)
            for place, node in nodes_from(self._tree, start, self._unlisted):
                self._write(place, node)
        return self._failures

    def _make_folders_above(self, start: str) -> None:
        parts = start.split("/")
        for end in range(2, len(parts)):
            place = "/".join(parts[:end])
            self._write(place, self._tree.lookup(place))

    def _write(self, place: str, node: Node) -> None:
        if place == "/":
            return
        if self._unusable and place.rpartition("/")[0] in self._unusable:
            self._leave_out(place, node)
            return
        try:
            if isinstance(node, Directory):
                self._make_folder(place, node)
            elif isinstance(node, Symlink):
                if not (self._is_resumed and self._target.has_link(place, node.target)):
                    self._target.link(place, node.target, node.origin.mtime_ns)
            elif isinstance(node, File):
                self._write_file(place, node)
        except Unusable:
            raise
        except NotWritten as error:
            below = " and nothing below it is written" if isinstance(node, Directory) else ""
            self._failed(os.path.join(self._folder, place[1:]), NotWritten(f"{error}{below}"))
            self._leave_out(place, node, is_counted=True)
        except (GlassfsError, OSError) as error:  # the target raises none of its own
            self._failed(place, error)

    def _make_folder(self, place: str, node: Directory) -> None:
        if self._has_folders and self._is_target(place):
            raise Unusable(f"is inside the source, as {place}")
        self._target.make_folder(place, node.mode)

    def _is_target(self, place: str) -> bool:
        """Whether a folder of the source is the target, which may be mounted a second time in there."""
        try:
            return Place.of(os.stat(self._source + place)) == self._target.place
        except OSError:
            return False

    def _write_file(self, place: str, node: File) -> None:
        origin = node.origin
        is_sized = node.data.is_sized
        if self._is_resumed and self._target.has_file(place, origin.mtime_ns, node.size if is_sized else None):
            self._bar.leave_out(node)
            return
        if not is_sized:
            self._bar.unsized(node.size)
        with origin.lease:
            self._target.write(place, node.mode, origin.mtime_ns, self._pieces(node))

    def _pieces(self, node: File) -> Iterator[memoryview]:
        size = node.size
        for position in range(0, size, PIECE):
            piece = self._buffer[: size - position]
            if node.read_into(piece, position) != len(piece):
                raise Damaged("ends before its size")
            yield piece
            self._bar.advance(len(piece))

    def _leave_out(self, place: str, node: Node, is_counted: bool = False) -> None:
        if isinstance(node, Directory):
            self._unusable.add(place)
        self._failures += not is_counted

    def _unlisted(self, place: str, error: GlassfsError) -> None:
        if place not in self._unusable:
            self._failed(place, error)

    def _failed(self, place: str, error: Exception) -> None:
        self._failures += 1
        with self._bar.aside():
            report(place, error, "" if isinstance(error, NotWritten) else self._source)
