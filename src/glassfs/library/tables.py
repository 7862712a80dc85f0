"""Find the table of a path, and the joined tables over what is below it."""

from __future__ import annotations

from itertools import count

from glassfs import content as contents
from glassfs.content import EPISODES
from glassfs.datasets.joined import joined_of, tables_with_rows
from glassfs.errors import Unsuited
from glassfs.library.finding import LibraryPaths
from glassfs.library.stream import stream_of
from glassfs.library.table import Table
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Origin
from glassfs.view.parquet.file import Parquet

SUFFIX = ".parquet"
_numbers = count()


def table_of(node: Node, paths: LibraryPaths, path: str) -> Table | None:
    """Return the table that a file of a view shows, or of the directory beside a Parquet file. Raises Changed if
    replaced.
    """
    if isinstance(node, Directory):
        found = None if path == "/" else paths.beside(path, node, SUFFIX)
    else:
        found = node
    if not isinstance(found, File) or not isinstance(found.content, contents.Table):
        return None
    if isinstance(found.data, Parquet):
        return _table(found, found.content, path)
    return _table(_parquet(found.content, found.origin), found.content, path)


def joined_in(directory: Directory, path: str, name: str) -> Table:
    """Return the joined table called ``name`` over a directory. Raises Unsuited if there is none.

    The table of episodes of a folder may be empty, others have rows.
    """
    table = joined_of(directory, name)
    if table is None or (name != EPISODES and not table.rows):
        others = ", ".join(printable(other) for other in tables_with_rows(directory))
        reason = f"has no table of {printable(name)}" + (f", but of {others}: use joined()" if others else "")
        raise Unsuited(reason, part=printable(path))
    return _table(_parquet(table, directory.origin), table, f"{path}/{name}")


def all_joined_in(directory: Directory, path: str) -> dict[str, Table]:
    """Return the joined tables over a directory that have rows, by name."""
    return {name: joined_in(directory, path, name) for name in tables_with_rows(directory)}


def _parquet(table: contents.Table, origin: Origin) -> File:
    """Return a Parquet file for a table."""
    # The files in a folder may change at any time: each call gets cache keys of its own.
    data = Parquet(table, origin.services.cache, (origin.identity, "table", next(_numbers)))
    return File(f"table{SUFFIX}", 0, origin, data, table)


def _table(file: File, table: contents.Table, path: str) -> Table:
    name = path.lstrip("/")
    return Table(table, lambda: stream_of(file, name), name)
