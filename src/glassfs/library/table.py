"""Tables: rows, columns, and conversion to pandas, Arrow and polars. Any thread.

Libraries read the table as a Parquet file, which is encoded while they read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from glassfs import content as contents
from glassfs import installing
from glassfs.content.rows import of_records, rows_of, values
from glassfs.content.table import Column
from glassfs.errors import GlassfsError, NoSuchEntry
from glassfs.library.shown import cell
from glassfs.library.stream import Raw
from glassfs.names import text
from glassfs.sizes import PIECE
from glassfs.terminal import printable
from glassfs.threads import DaemonPool

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

SHOWN_ROWS = 10
Frame = TypeVar("Frame")

SHOWN_COLUMNS = 50
SHOWN_CHARACTERS = 80
SHOWN_VALUES = 4 * SHOWN_CHARACTERS + 4
"""Values, or bytes of a text, that exceed any cell: a character may take four bytes."""
_readers = DaemonPool("tables")


class Table:
    """A table. ``len(table)`` is the number of rows, ``columns`` their names, and iteration yields rows as dicts.

    Nothing read is cached. Reading raises ``glassfs.errors.Damaged`` for damaged data, and ``TooLarge`` if a row has
    too many values for a list.
    """

    def __init__(self, table: contents.Table, parquet: Callable[[], io.BufferedReader], name: str) -> None:
        self._table = table
        self._parquet = parquet
        self._name = name

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
        return self._read_by(partial(pd.read_parquet, engine="pyarrow"))

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table. Raises ImportError if pyarrow is not installed."""
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise _missing("to_arrow", "pyarrow", "arrow") from error
        return self._read_by(parquet.read_table)

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame. Raises ImportError if polars is not installed."""
        try:
            import polars as pl
        except ImportError as error:
            raise _missing("to_polars", "polars", "polars") from error
        with self._parquet() as file:
            return pl.read_parquet(file.read())  # as polars would, but with a KeyboardInterrupt after Ctrl-C

    def _read_by(self, library: Callable[[io.BufferedReader], Frame]) -> Frame:
        """Return what a library makes of the Parquet file.

        It is called on another thread, as pyarrow does not react to Ctrl-C before it has read the file. On Ctrl-C the
        reads are canceled.
        """
        with self._parquet() as file:
            reading = _readers.submit(partial(library, file))
            try:
                return reading.result()
            finally:
                raw = file.raw
                if not reading.done() and isinstance(raw, Raw):
                    raw.cancel()

    def __repr__(self) -> str:
        try:
            names = self.columns
        except GlassfsError as error:
            return f"<glassfs.Table {printable(self._name)!r}: {printable(str(error))}>"
        some = ", ".join([*map(_short, names[:SHOWN_COLUMNS]), *(["…"] if len(names) > SHOWN_COLUMNS else [])])
        return f"<glassfs.Table {printable(self._name)!r}: {len(self)} rows of {some}>"

    def _repr_html_(self) -> str:
        rows, more = [], ""
        try:
            columns = self._table.columns()
            if len(columns) > SHOWN_COLUMNS:
                more = f"<p>{len(columns)} columns</p>"
            names = [text(column.name) for column in columns[:SHOWN_COLUMNS]]
            rows.append("".join(f"<th>{cell(_short(name))}</th>" for name in names))
            for row in self._first(columns[:SHOWN_COLUMNS]):
                rows.append("".join(f"<td>{cell(_short(row.get(name)))}</td>" for name in names))
            if len(self) > SHOWN_ROWS:
                more += f"<p>{len(self)} rows</p>"
        except GlassfsError as error:
            more = f"<p>{cell(_short(error, 1000))}</p>"
        head, body = "".join(rows[:1]), "".join(f"<tr>{row}</tr>" for row in rows[1:])
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _first(self, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
        """Yield the rows to be shown, with long values cut."""
        if self._table.records is not None:
            yield from islice(of_records(self._table.records), SHOWN_ROWS)
            return
        count = min(self._table.rows, SHOWN_ROWS)
        found = {text(column.name): values(column, count, PIECE, SHOWN_VALUES) for column in columns}
        for row in zip(*(islice(column, count) for column in found.values()), strict=True):
            yield dict(zip(found, row, strict=True))


def _short(value: Any, most: int = SHOWN_CHARACTERS) -> str:
    shown = str(value)
    return printable(shown if len(shown) <= most else f"{shown[:most - 1]}…")


def _missing(method: str, wanted: str, extra: str) -> ImportError:
    return ImportError(f"{method}() needs {wanted}: {installing.command(extra)}", name=extra)
