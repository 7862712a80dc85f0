"""``glassfs export``: a tree as a folder of ordinary files. How the folder is written to safely is in ``target``."""

from __future__ import annotations

import sys

import click

from glassfs.batch.contract import Settings
from glassfs.batch.shards import Shard
from glassfs.cli.common import complain, connection_option, located, lookup, opened, views_option
from glassfs.cli.complete import complete_path_or_folder, complete_source
from glassfs.cli.export_many import export_many, report_failure
from glassfs.cli.exporting import Export
from glassfs.cli.many import many_options, planned
from glassfs.cli.progress import Progress
from glassfs.cli.stopping import Stopped, stoppable
from glassfs.cli.target import Existing, NotWritten, names_below, opened_target
from glassfs.errors import GlassfsError
from glassfs.source import Connection, is_url
from glassfs.tree import Tree
from glassfs.tree.tree import normal


@click.command()
@click.argument("source", type=click.Path(readable=False), shell_complete=complete_source)
@click.argument("paths", metavar="[PATH]... TARGET", nargs=-1, shell_complete=complete_path_or_folder)
@click.option("--overwrite", is_flag=True, help="Replace files, links and pipes that TARGET has under the same names.")
@click.option("--progress/--no-progress", default=None, help="A progress bar; the default on a terminal.")
@many_options("Go on with an export that was interrupted: what is complete is kept.")
@views_option
@connection_option
def command(
    source: str, paths: tuple[str, ...], overwrite: bool, resume: bool, progress: bool | None, views: str, jobs: int,
    scheduler: str, shard: Shard, report: str, connection: Connection,
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
    plan = planned(jobs, scheduler, shard, report, resume, is_report_needed=False)
    is_shown = sys.stderr.isatty() if progress is None else progress
    place = located(source)
    source, name = place.source, place.shown
    chosen = [place.inner(path) for path in chosen] or [place.path]
    with opened(source, views, connection) as tree:
        starts = _starts(tree, name, chosen)
        if _would_hit_itself(tree, source, starts, folder):
            raise click.ClickException(f"{folder}: this would write over {name}, which is to be exported")
        try:
            if plan.is_plain:
                with (
                    stoppable(), opened_target(folder, tree.root.mode, existing, source) as target,
                    Progress(tree, starts, is_shown) as bar,
                ):
                    failed = report_failure(name, folder, bar.aside)
                    failures = Export(tree, source, target, existing, bar, failed).run(starts)
            else:
                with stoppable():
                    settings = Settings(views, connection)
                    failures = export_many(plan, tree, source, starts, folder, existing, settings, is_shown)
        except NotWritten as error:
            raise click.ClickException(f"{folder}: {error}") from error
        except Stopped as stopped:
            complain(f"{stopped}; '--resume' goes on from here")
            return stopped.status
    if failures:
        raise click.ClickException(f"{name}: {failures} of its files and directories could not be written")
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
    names = None if is_url(source) else names_below(source, folder)
    if names is None:
        return False
    path = "/" + "/".join(names)
    try:
        tree.lookup(path)
    except GlassfsError:
        return False
    return any(_is_within(path, start) or _is_within(start, path) for start in starts)
