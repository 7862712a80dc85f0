"""``glassfs export``: a tree as a folder of ordinary files. ``target`` writes to the folder safely."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from glassfs.cli.common import located, lookup, name_of, nodes_from, opened, views_option
from glassfs.cli.completion import complete_path_or_folder, complete_source, connection_option
from glassfs.cli.export_many import export_many, report_failure
from glassfs.cli.exporting import Export, Links, is_within, opened_target
from glassfs.cli.many import many_options, where_option
from glassfs.cli.picking import picked_episodes
from glassfs.cli.progress import Progress
from glassfs.cli.stopping import stoppable
from glassfs.cli.target import Existing, NotWritten, names_below
from glassfs.datasets.batch.contract import Settings
from glassfs.datasets.batch.run import Plan
from glassfs.errors import GlassfsError
from glassfs.sizes import counted, human_size
from glassfs.source import Connection, is_url
from glassfs.source.remote.options import meant_by
from glassfs.source.remote.url import local_name
from glassfs.terminal import printable
from glassfs.tree import File, Tree

ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")


@click.command()
@click.argument("source", type=click.Path(readable=False), shell_complete=complete_source)
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
@click.option("--progress/--no-progress", default=None, help="Show a progress bar; default: on a terminal.")
@many_options("Continue an interrupted export: complete files are kept.", is_report_needed=False)
@views_option
@connection_option
def command(
    source: str, paths: tuple[str, ...], overwrite: bool, links: str, may_omit: bool, where: str, progress: bool | None,
    views: str, plan: Plan, connection: Connection,
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
    context = click.get_current_context()
    if not paths:
        raise click.UsageError("the TARGET folder is missing", context)
    if overwrite and plan.is_resumed:
        raise click.UsageError("--overwrite and --resume cannot be used together", context)
    *chosen, folder = paths
    folder = _demand_target(folder)
    if where and (chosen or not plan.is_plain):
        raise click.UsageError("--where cannot be used with PATHs, --jobs, --scheduler, --shard or --report", context)
    existing = Existing.OVERWRITE if overwrite else Existing.RESUME if plan.is_resumed else Existing.REFUSE
    at = located(source)
    if where and at.path != "/":
        raise click.UsageError(f"--where needs a container or a folder, not {at.path[1:]} in one", context)
    source, name = at.source, at.shown
    where_to = name_of(folder)
    with opened(source, views, connection) as tree, stoppable(can_resume=True):
        try:
            if where:
                picked = picked_episodes(tree, source, Settings(connection=connection), where)
                starts = picked.places
            else:
                picked = None
                starts = {path: path for path in _starts(tree, name, [at.inner(path) for path in chosen] or [at.path])}
            if _would_hit_itself(tree, source, list(starts.values()), folder):
                raise click.ClickException(f"{folder}: would overwrite the source {name}; name another folder")
            if plan.is_plain:
                with (
                    opened_target(folder, tree.root.mode, existing, source, connection) as target,
                    Progress(lambda: _sizes(tree, list(starts)), progress) as bar,
                ):
                    failed = report_failure(name, folder, bar.aside)
                    written = Export(tree, source, target, existing, bar, failed, starts, Links(links)).run()
                    if picked is not None:
                        written = written.plus(picked.write_table(target))
            else:
                settings = Settings(views, connection)
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


def _would_hit_itself(tree: Tree, source: str, starts: list[str], folder: str) -> bool:
    """Return whether the source is in the target where something of this name would be written."""
    names = None if is_url(source) or is_url(folder) else names_below(source, folder)
    if names is None:
        return False
    path = "/" + "/".join(names)
    try:
        tree.lookup(path)
    except GlassfsError:
        return False
    return any(is_within(path, start) or is_within(start, path) for start in starts)
