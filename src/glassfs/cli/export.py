"""``glassfs export``: a tree as a folder of ordinary files. ``target`` writes to the folder safely."""

from __future__ import annotations

from collections.abc import Iterator

import click

from glassfs.batch.contract import Settings
from glassfs.batch.run import Plan
from glassfs.cli.common import connection_option, located, lookup, nodes_from, opened, views_option
from glassfs.cli.complete import complete_path_or_folder, complete_source
from glassfs.cli.export_many import export_many, report_failure
from glassfs.cli.exporting import Export
from glassfs.cli.many import many_options
from glassfs.cli.progress import Progress
from glassfs.cli.stopping import stoppable
from glassfs.cli.target import Existing, NotWritten, names_below, opened_target
from glassfs.errors import GlassfsError
from glassfs.source import Connection, is_url
from glassfs.tree import File, Tree
from glassfs.tree.tree import normal


@click.command()
@click.argument("source", type=click.Path(readable=False), shell_complete=complete_source)
@click.argument("paths", metavar="[PATH]... TARGET", nargs=-1, shell_complete=complete_path_or_folder)
@click.option("--overwrite", is_flag=True, help="Replace files, links and pipes of the same names in TARGET.")
@click.option("--progress/--no-progress", default=None, help="Show a progress bar; default: on a terminal.")
@many_options("Continue an interrupted export: complete files are kept.", is_report_needed=False)
@views_option
@connection_option
def command(
    source: str, paths: tuple[str, ...], overwrite: bool, progress: bool | None, views: str, plan: Plan,
    connection: Connection,
) -> int:
    """Write the tree of SOURCE, or each PATH in it, to the folder TARGET, with the same names and bytes as in a mount.

    TARGET is created if missing; if it is not empty, --overwrite or --resume is required. A file gets its name when it
    is complete. With --resume, a regular file counts as complete if its time is that of the source and its size is
    right (not compared if that requires decoding); any other regular file is written again. Permissions are those of a
    mount less the umask, and folders are writable by their owner.
    """
    if not paths:
        raise click.UsageError("the TARGET folder is missing", click.get_current_context())
    if overwrite and plan.is_resumed:
        raise click.UsageError("--overwrite and --resume cannot be used together", click.get_current_context())
    *chosen, folder = paths
    existing = Existing.OVERWRITE if overwrite else Existing.RESUME if plan.is_resumed else Existing.REFUSE
    at = located(source)
    source, name = at.source, at.shown
    chosen = [at.inner(path) for path in chosen] or [at.path]
    with opened(source, views, connection) as tree:
        starts = _starts(tree, name, chosen)
        if _would_hit_itself(tree, source, starts, folder):
            raise click.ClickException(f"{folder}: would overwrite the source {name}; name another folder")
        try:
            if plan.is_plain:
                with (
                    stoppable(can_resume=True), opened_target(folder, tree.root.mode, existing, source) as target,
                    Progress(lambda: _sizes(tree, starts), progress) as bar,
                ):
                    failed = report_failure(name, folder, bar.aside)
                    failures = Export(tree, source, target, existing, bar, failed).run(starts)
            else:
                with stoppable(can_resume=True):
                    settings = Settings(views, connection)
                    failures = export_many(plan, tree, source, starts, folder, existing, settings, progress)
        except NotWritten as error:
            raise click.ClickException(f"{folder}: {error}") from error
    if failures:
        raise click.ClickException(f"{name}: {failures} of its files and directories were not written")
    return 0


def _sizes(tree: Tree, starts: list[str]) -> Iterator[int]:
    for start in starts:
        for _, node in nodes_from(tree, start, lambda *_: None):
            if isinstance(node, File) and node.data.is_sized:
                yield node.size


def _starts(tree: Tree, source: str, paths: list[str]) -> list[str]:
    """Return the paths to export: all exist, and none is inside another."""
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
    """Return whether the source is in the target where something of this name would be written."""
    names = None if is_url(source) else names_below(source, folder)
    if names is None:
        return False
    path = "/" + "/".join(names)
    try:
        tree.lookup(path)
    except GlassfsError:
        return False
    return any(_is_within(path, start) or _is_within(start, path) for start in starts)
