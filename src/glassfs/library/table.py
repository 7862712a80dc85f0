"""Tables, also joined ones over a directory: rows, columns, conversion to pandas, Arrow and polars. Any thread.

Libraries get the table as a Parquet file in memory: while they read an open one they do not react to Ctrl-C.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from glassfs import content as contents
from glassfs.content import ARRAYS, EPISODES
from glassfs.content.rows import rows_of, values
from glassfs.datasets.joined import joined_of, tables_with_rows
from glassfs.errors import GlassfsError, NoSuchEntry, Unsuited
from glassfs.library.finding import LibraryPaths
from glassfs.library.stream import bytes_of
from glassfs.names import text
from glassfs.sizes import PIECE
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node, Origin
from glassfs.view.parquet import Parquet

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

COLUMNS, CHARACTERS = 50, 80
"""Columns, and characters of their names, that are shown."""
SUFFIX = ".parquet"
_numbers = count()


class Table:
    """A table. ``len(table)`` is the number of rows, ``columns`` their names, and iteration yields rows as dicts.

    Nothing read is cached. Reading raises ``glassfs.errors.Damaged`` for damaged data, and ``TooLarge`` if a row has
    too many values for a list.
    """

    def __init__(self, table: contents.Table, parquet: File, path: str) -> None:
        self._table = table
        self._parquet = parquet
        self._name = path.lstrip("/")

    def __len__(self) -> int:
        return self._table.rows

    def __bool__(self) -> bool:
        return True

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [text(column.name) for column in self._table.columns()]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the rows as dicts from column names to values. Missing values are None."""
        return rows_of(self._table)

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of a column. Raises NoSuchEntry, which is a KeyError."""
        for column in self._table.columns():
            if text(column.name) == name:
                return list(values(column, self._table.rows, PIECE))
        raise NoSuchEntry("there is no such column", self._name, printable(name))

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame. Raises ImportError if pandas or pyarrow is not installed."""
        try:
            import pandas as pd
            import pyarrow as pa  # noqa: F401
        except ImportError as error:
            raise _missing("to_pandas", "pandas and pyarrow", "pandas") from error
        return pd.read_parquet(io.BytesIO(bytes_of(self._parquet)), engine="pyarrow")

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table. Raises ImportError if pyarrow is not installed."""
        try:
            from pyarrow import BufferReader, parquet
        except ImportError as error:
            raise _missing("to_arrow", "pyarrow", "arrow") from error
        table: pa.Table = parquet.read_table(BufferReader(bytes_of(self._parquet)))
        return table

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame. Raises ImportError if polars is not installed."""
        try:
            import polars as pl
        except ImportError as error:
            raise _missing("to_polars", "polars", "polars") from error
        return pl.read_parquet(bytes_of(self._parquet))

    def __repr__(self) -> str:
        try:
            names = self.columns
        except GlassfsError as error:
            return f"<glassfs.Table {printable(self._name)!r}: {printable(str(error))}>"
        some = ", ".join([*map(_short, names[:COLUMNS]), *(["…"] if len(names) > COLUMNS else [])])
        return f"<glassfs.Table {printable(self._name)!r}: {len(self)} rows of {some}>"


def _short(name: str) -> str:
    return printable(name if len(name) <= CHARACTERS else f"{name[:CHARACTERS - 1]}…")


def _missing(method: str, wanted: str, extra: str) -> ImportError:
    return ImportError(f"{method}() needs {wanted}: install glassfs[{extra}]", name=extra)


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
    file = found if isinstance(found.data, Parquet) else _parquet(found.content, found.origin)
    return Table(found.content, file, path)


def joined_in(directory: Directory, path: str, name: str, may_be_empty: bool = False) -> Table:
    """Return the joined table called ``name`` over a directory. Raises Unsuited if there is none.

    The table of episodes of a folder may be empty, others have rows unless they ``may_be_empty``.
    """
    table = joined_of(directory, name)
    if table is None or not (may_be_empty or name == EPISODES or table.rows):
        others = ", ".join(printable(other) for other in tables_with_rows(directory))
        reason = f"has no table of {printable(name)}" + (f", but of {others}: use joined()" if others else "")
        raise Unsuited(reason, part=printable(path))
    return Table(table, _parquet(table, directory.origin), f"{path}/{name}")


def all_joined_in(directory: Directory, path: str) -> dict[str, Table]:
    """Return the joined tables over a directory that have rows, by name."""
    # Finding whether there are any arrays may take as long as finding all of them.
    return {name: joined_in(directory, path, name, name == ARRAYS) for name in tables_with_rows(directory)}


def _parquet(table: contents.Table, origin: Origin) -> File:
    """Return a Parquet file for a table."""
    # The files in a folder may change at any time: each call gets cache keys of its own.
    data = Parquet(table, origin.services.cache, (origin.identity, "table", next(_numbers)))
    return File(f"table{SUFFIX}", 0, origin, data, table)
