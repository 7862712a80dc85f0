"""``glassfs ls``"""

from __future__ import annotations

import grp
import pwd
import stat
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import click

from glassfs.cli.common import (
    described,
    located,
    lookup,
    opened,
    report,
    report_omitted,
    views_option,
)
from glassfs.cli.completion import complete_path, complete_source, connection_option
from glassfs.errors import GlassfsError, NotADirectory
from glassfs.sizes import human_size
from glassfs.source.remote.connection import Connection
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Symlink, Tree
from glassfs.tree.tree import demand_shallow

HALF_A_YEAR = 182 * 86_400
WIDEST = 40


@click.command()
@click.argument("source", type=click.Path(readable=False), shell_complete=complete_source)
@click.argument("path", default="/", shell_complete=complete_path)
@click.option("-l", "--long", "is_long", is_flag=True,
              help="Also show modes, owners, sizes, times, and type and shape of arrays.")
@click.option("-R", "--recursive", is_flag=True, help="Also list everything below.")
@click.option("-H", "--human-readable", is_flag=True, help="Print sizes such as 1.5K.")
@views_option
@connection_option
def command(
    source: str, path: str, is_long: bool, recursive: bool, human_readable: bool, views: str, connection: Connection,
) -> int:
    """SOURCE is a container or a folder, or the URL of one, PATH a directory or file inside it.

    SOURCE may include a path into a container, as in 'glassfs ls run.trees/nodes'.
    """
    at = located(source)
    inside = at.inner(path)
    with opened(at.source, views, connection) as tree:
        found, node = lookup(tree, inside, at.shown)
        if isinstance(node, Directory):
            failures = _list(tree, found, recursive, is_long, human_readable)
        else:
            failures = _show([node], is_long, human_readable)
    return 1 if failures else 0


def _list(tree: Tree, path: str, is_recursive: bool, is_long: bool, is_human: bool) -> int:
    """List a directory; return the number of nodes that failed."""
    failures = 0
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            directory = tree.directory(folder)
            demand_shallow(directory, folder.count("/"))
            nodes = sorted(directory.listing(), key=lambda node: node.name)
            omitted = directory.omitted()
        except NotADirectory:  # a presumed container that is none
            continue
        except GlassfsError as error:
            report(folder, error)
            failures += 1
            continue
        if is_recursive:
            click.echo(f"{'' if folder == path else chr(10)}{printable(folder)}:")
        failures += _show(nodes, is_long, is_human)
        failures += report_omitted(omitted, folder[1:])
        if is_recursive:
            waiting += [f"{folder.rstrip('/')}/{node.name}" for node in reversed(nodes) if isinstance(node, Directory)]
    return failures


def _show(nodes: Sequence[Node], is_long: bool, is_human: bool) -> int:
    if not is_long:
        marked = [printable(node.name) + ("/" if isinstance(node, Directory) else "") for node in nodes]
        click.echo("".join(f"{name}\n" for name in marked), nl=False)
        return 0
    failures = 0
    rows = []
    for node in nodes:
        try:
            rows.append(_row(node, is_human))
        except GlassfsError as error:
            report(node.name, error)
            failures += 1
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    for mode, links, user, group, size, when, name, kind in rows:
        line = f"{mode} {links:>{widths[1]}} {user:<{widths[2]}} {group:<{widths[3]}} {size:>{widths[4]}} {when} "
        click.echo(f"{line}{name:<{min(widths[6], WIDEST)}}  {kind}" if kind else f"{line}{name}")
    return failures


def _row(node: Node, is_human: bool) -> tuple[str, ...]:
    origin = node.origin
    size = node.size if isinstance(node, File) else 0
    seconds = origin.mtime_ns // 10**9
    is_recent = 0 <= time.time() - seconds < HALF_A_YEAR
    when = time.strftime("%b %e %H:%M" if is_recent else "%b %e  %Y", time.localtime(seconds))
    name = printable(node.name) + (f" -> {printable(node.target)}" if isinstance(node, Symlink) else "")
    shown_size = human_size(size) if is_human else str(size)
    owners = _owner(pwd.getpwuid, origin.uid), _owner(grp.getgrgid, origin.gid)
    return stat.filemode(node.mode), "1", *owners, shown_size, when, name, described(node)


@cache
def _owner(entry_of: Callable[[int], Sequence[Any]], number: int) -> str:
    """Return the name of a user or group, the first field of its entry; without an entry, the number."""
    try:
        return str(entry_of(number)[0])
    except KeyError:
        return str(number)
