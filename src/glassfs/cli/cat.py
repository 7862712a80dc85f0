"""``glassfs cat``"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from glassfs.cli.common import (
    Located,
    complain,
    connection_option,
    located,
    lookup,
    name_of,
    opened,
    report,
    views_option,
)
from glassfs.cli.complete import complete_paths
from glassfs.errors import GlassfsError, IsADirectory
from glassfs.source.remote.connection import Connection
from glassfs.source.remote.url import is_url
from glassfs.tree import File, Symlink, Tree

CHUNK = 1 << 20


@click.command()
@click.argument("places", metavar="SOURCE PATH...", nargs=-1, required=True, shell_complete=complete_paths)
@views_option
@connection_option
def command(places: tuple[str, ...], views: str, connection: Connection) -> int:
    """SOURCE is a container or a folder, or the URL of one, each PATH a file inside it.

    SOURCE and PATH may be written as one, as in 'glassfs cat run.trees/nodes/time.npy'.
    """
    buffer = memoryview(bytearray(CHUNK))
    is_whole = True
    for source, paths in _grouped(places):
        with opened(source, views, connection) as tree:
            for path in paths:
                is_whole &= _written(tree, path or "/", name_of(source), buffer)
    return 0 if is_whole else 1


def _grouped(places: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each source with the paths wanted from it."""
    first = located(places[0])
    if first.path == "/":
        if len(places) == 1:
            raise click.UsageError(_how_to(first), click.get_current_context())
        yield first.source, places[1:]
        return
    for place in map(located, places):
        yield place.source, (place.path,)


def _how_to(place: Located) -> str:
    from glassfs.source.remote.options import meant_by

    if not is_url(place.source) and not os.path.exists(place.source):
        meant = meant_by(place.source)
        return f"{place.source}: no such file{meant or '; name a container or a folder, and a path inside it'}"
    return f"{place.shown}: name a path inside it; 'glassfs ls {place.shown}' shows what is there"


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
    node = lookup(tree, path, source)
    if isinstance(node, Symlink):
        raise IsADirectory(f"{path}: is a symbolic link to {node.target}")
    if not isinstance(node, File):
        raise IsADirectory(f"{path}: is a directory; list it with 'glassfs ls {source} {path}'")
    return node
