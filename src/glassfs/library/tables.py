"""Find the table of a path, and the table of the episodes below it."""

from __future__ import annotations

import io
from itertools import count

from glassfs import content as contents
from glassfs.errors import Unsuited
from glassfs.library.finding import Paths
from glassfs.library.stream import stream_of
from glassfs.library.table import Table
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node
from glassfs.tree.sources.joined import episodes_of
from glassfs.view.parquet.file import Parquet

SUFFIX = ".parquet"
_numbers = count()


def table_of(node: Node, paths: Paths, path: str) -> Table | None:
    """Return the table of a Parquet file of a view, or of the directory beside one. Raises Changed if replaced."""
    if isinstance(node, Directory):
        found = None if path == "/" else paths.beside(path, node, SUFFIX)
    else:
        found = node
    if not isinstance(found, File) or not isinstance(found.content, contents.Table):
        return None
    file, name = found, path.lstrip("/")
    return Table(found.content, lambda: stream_of(file, name), name)


def episodes_in(directory: Directory, paths: Paths, path: str) -> Table:
    """Return the table of all episodes in and below a directory. Raises Unsuited if there are none."""
    table = episodes_of(directory)
    if table is None:
        raise Unsuited("has no table of episodes", part=printable(path))
    origin = directory.origin
    # The files in a folder may change at any time: each call gets cache keys of its own.
    data = Parquet(table, origin.services.cache, (origin.identity, "episodes", next(_numbers)))
    file = File(f"episodes{SUFFIX}", 0, origin, data, table)

    def stream() -> io.BufferedReader:
        return stream_of(file, f"{path}/{file.name}".lstrip("/"))

    return Table(table, stream, f"{path}/episodes".lstrip("/"))
