"""``glassfs ls``, ``glassfs tree`` and ``glassfs cat``"""

from __future__ import annotations

import grp
import pwd
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import click

from glassfs.cli.common import complain, located, lookup, name_of, opened, report
from glassfs.cli.completion import complete_file, misuse, path_argument, source_argument
from glassfs.cli.layouts import tree_options
from glassfs.content import EncodedImage, Image
from glassfs.errors import Changed, GlassfsError, IsADirectory, NotADirectory
from glassfs.library.shown import described
from glassfs.sizes import PIECE, human_size
from glassfs.source.remote.url import Connection, shown
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Symlink, Tree
from glassfs.tree.omissions import Omission, said
from glassfs.tree.tree import demand_shallow, normal


@click.command()
@source_argument
@path_argument
@click.option("-l", "--long", "is_long", is_flag=True,
              help="Also show modes, owners, sizes, times, and type and shape of arrays.")
@click.option("-R", "--recursive", is_flag=True, help="Also list everything below.")
@click.option("-H", "--human-readable", is_flag=True, help="Print sizes such as 1.5K.")
@tree_options
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
        for sentence in said(omitted, folder[1:]):
            complain(sentence)
        failures += sum(one.is_damage for one in omitted)
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
        click.echo(f"{line}{name:<{min(widths[6], 40)}}  {kind}" if kind else f"{line}{name}")
    return failures


def _row(node: Node, is_human: bool) -> tuple[str, ...]:
    origin = node.origin
    size = node.size if isinstance(node, File) else 0
    seconds = origin.mtime_ns // 10**9
    is_recent = 0 <= time.time() - seconds < 182 * 86_400
    when = time.strftime("%b %e %H:%M" if is_recent else "%b %e  %Y", time.localtime(seconds))
    name = printable(node.name) + (f" -> {printable(node.target)}" if isinstance(node, Symlink) else "")
    shown_size = human_size(size) if is_human else str(size)
    owners = _owner(pwd.getpwuid, origin.access.uid), _owner(grp.getgrgid, origin.access.gid)
    return stat.filemode(node.mode), "1", *owners, shown_size, when, name, described(node)


@cache
def _owner(entry_of: Callable[[int], Sequence[Any]], number: int) -> str:
    """Return the name of a user or group, the first field of its entry; without an entry, the number."""
    try:
        return str(entry_of(number)[0])
    except KeyError:
        return str(number)


INDENT = "    "
MANY = 40


@click.command()
@source_argument
@path_argument
@click.option("-L", "--level", type=click.IntRange(1), help="Maximum depth.")
@click.option(
    "-a", "--all", "show_all", is_flag=True,
    help=f"Show all entries of a directory, not the first {MANY}, and each frame of a video.",
)
@tree_options
def tree(source: str, path: str, level: int | None, show_all: bool, views: str, connection: Connection) -> int:
    """SOURCE is a container or a folder, or the URL of one, PATH a directory inside it. Arrays are shown with type and
    shape.

    SOURCE may include a path into a container, as in 'glassfs tree run.trees/nodes'.
    """
    at = located(source)
    inside = at.inner(path)
    with opened(at.source, views, connection) as tree:
        _, node = lookup(tree, inside, at.shown, is_link_kept=False)
        if not isinstance(node, Directory):
            raise NotADirectory(f"{inside}: is not a directory; show it with 'glassfs ls -l'")
        click.echo(printable(shown(source) if normal(path) == "/" else path))
        return 1 if _show_tree(node, level, show_all) else 0


def _entries(
    directory: Directory, indent: str, show_all: bool, damaged: list[Omission],
) -> Iterator[tuple[Node | None, str, str]]:
    """Yield each entry, what precedes it on its line, and the indent of what is below it; None for those left out.

    Append those that damage hides.
    """
    demand_shallow(directory, len(indent) // len(INDENT))
    nodes: Sequence[Node] = directory.listing()
    # A sequence of another type makes its nodes on access, and sorting it would make them all.
    if isinstance(nodes, (list, tuple)):  # a lazy series is in order already
        nodes = sorted(nodes, key=lambda node: node.name)
    count = len(nodes) if show_all else min(MANY, len(nodes))
    omitted = directory.omitted()
    damaged += [one for one in omitted if one.is_damage]
    for number in range(count):
        # The corner is for the last line, which may be the number of others or what is omitted.
        is_last = number + 1 == len(nodes) and not omitted
        yield nodes[number], f"{indent}{'└── ' if is_last else '├── '}", f"{indent}{INDENT if is_last else '│   '}"
    if count < len(nodes):
        yield None, f"{indent}{'├' if omitted else '└'}── … {len(nodes) - count:,} more", ""
    sentences = said(omitted)
    for number, sentence in enumerate(sentences, 1):
        yield None, f"{indent}{'└' if number == len(sentences) else '├'}── {sentence}", ""


def _show_tree(directory: Directory, deepest: int | None, show_all: bool) -> int:
    """Show everything below a directory, at any depth; return the number of damaged directories and members."""
    failures = 0
    damaged: list[Omission] = []
    levels = [(directory, _entries(directory, "", show_all, damaged))]
    while levels:
        above, entries = levels[-1]
        try:
            node, start, below = next(entries)
        except StopIteration:
            levels.pop()
            continue
        except GlassfsError as error:
            levels.pop()
            # A presumed container that is none loses nothing.
            if not (isinstance(error, Changed) and above.is_presumed):
                report(above.name, error)
                failures += 1
            continue
        frames = 0 if node is None or show_all else _frames(node)
        click.echo(start + (_label(node) if node else "") + (f"  {frames:,} frames" if frames else ""))
        if isinstance(node, Directory) and not frames and len(levels) != deepest:
            levels.append((node, _entries(node, below, show_all, damaged)))
    return failures + len(damaged)


def _frames(node: Node) -> int:
    """Return the number of images if a directory is a video: it has nothing but numbered images."""
    with suppress(GlassfsError):  # the caller reports it
        nodes: Sequence[Node] = node.listing() if isinstance(node, Directory) and not node.is_presumed else ()
        # In a lazy series all are like the first one.
        if len(nodes) > 1 and all(map(_is_frame, nodes if isinstance(nodes, (list, tuple)) else [nodes[0]])):
            return len(nodes)
    return 0


def _is_frame(node: Node) -> bool:
    is_image = isinstance(node, File) and isinstance(node.content, (Image, EncodedImage))
    return is_image and node.name.partition(".")[0].isdecimal()


def _label(node: Node) -> str:
    name = printable(node.name)
    if isinstance(node, Symlink):
        return f"{name} -> {printable(node.target)}"
    if not isinstance(node, File):
        return f"{name}/"
    # Do not wait for a size that takes a pass over the data.
    size = human_size(node.size) if node.data.is_sized else ""
    return "  ".join(filter(None, (name, size, described(node))))


@click.command()
@click.argument("words", metavar="SOURCE PATH...", nargs=-1, required=True, shell_complete=complete_file)
@tree_options
def cat(words: tuple[str, ...], views: str, connection: Connection) -> int:
    """SOURCE is a container or a folder, or the URL of one, each PATH a file inside it.

    SOURCE and PATH may be written as one, as in 'glassfs cat run.trees/nodes/time.npy'.
    """
    is_whole = True
    for source, paths in _grouped(words):
        with opened(source, views, connection) as tree:
            for path in paths:
                is_whole &= _written(tree, path or "/", name_of(source))
    return 0 if is_whole else 1


def _grouped(words: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each source with the paths wanted from it."""
    first = located(words[0])
    if first.path == "/":
        if len(words) == 1:
            raise misuse(f"{first.shown}: name a path inside it; 'glassfs ls {first.shown}' shows what is there")
        yield first.source, words[1:]
        return
    for at in map(located, words):
        yield at.source, (at.path,)


def _written(tree: Tree, path: str, source: str) -> bool:
    """Write a file to standard output, or report why that failed; return whether it succeeded."""
    try:
        _, file = lookup(tree, path, source, is_link_kept=False)
        if not isinstance(file, File):
            raise IsADirectory(f"{path}: is a directory; list it with 'glassfs ls {source} {path}'")
    except GlassfsError as error:
        complain(str(error))
        return False
    buffer = memoryview(bytearray(PIECE))
    try:
        for position in range(0, file.data.size, PIECE):
            sys.stdout.buffer.write(buffer[: file.read_into(buffer, position)])
    except BrokenPipeError:
        raise
    except (GlassfsError, OSError) as error:
        report(path, error, source)
        return False
    return True
