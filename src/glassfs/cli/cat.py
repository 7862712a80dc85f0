"""``glassfs cat``"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from glassfs.cli.common import Located, complain, located, lookup, name_of, opened, report, views_option
from glassfs.cli.completion import complete_paths, connection_option, misuse
from glassfs.errors import GlassfsError, IsADirectory
from glassfs.sizes import PIECE
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import is_url
from glassfs.tree import File, Tree


@click.command()
@click.argument("words", metavar="SOURCE PATH...", nargs=-1, required=True, shell_complete=complete_paths)
@views_option
@connection_option
def command(words: tuple[str, ...], views: str, connection: Connection) -> int:
    """SOURCE is a container or a folder, or the URL of one, each PATH a file inside it.

    SOURCE and PATH may be written as one, as in 'glassfs cat run.trees/nodes/time.npy'.
    """
    buffer = memoryview(bytearray(PIECE))
    is_whole = True
    for source, paths in _grouped(words):
        with opened(source, views, connection) as tree:
            for path in paths:
                is_whole &= _written(tree, path or "/", name_of(source), buffer)
    return 0 if is_whole else 1


def _grouped(words: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each source with the paths wanted from it."""
    first = located(words[0])
    if first.path == "/":
        if len(words) == 1:
            raise misuse(_how_to(first))
        yield first.source, words[1:]
        return
    for at in map(located, words):
        yield at.source, (at.path,)


def _how_to(at: Located) -> str:
    from glassfs.source.remote.options import meant_by

    if not is_url(at.source) and not os.path.exists(at.source):
        meant = meant_by(at.source)
        return f"{at.source}: no such file{meant or '; name a container or a folder, and a path inside it'}"
    return f"{at.shown}: name a path inside it; 'glassfs ls {at.shown}' shows what is there"


def _written(tree: Tree, path: str, source: str, buffer: memoryview) -> bool:
    """Write a file to standard output, or report why that failed; return whether it succeeded."""
    try:
        file = _file(tree, path, source)
    except GlassfsError as error:
        complain(str(error))
        return False
    position = 0
    while True:
        try:
            count = file.read_into(buffer, position)
        except (GlassfsError, OSError) as error:
            report(path, error, source)
            return False
        if not count:
            return True
        sys.stdout.buffer.write(buffer[:count])
        position += count


def _file(tree: Tree, path: str, source: str) -> File:
    _, node = lookup(tree, path, source, is_link_kept=False)
    if not isinstance(node, File):
        raise IsADirectory(f"{path}: is a directory; list it with 'glassfs ls {source} {path}'")
    return node
