"""Tables for people: rows, columns, and what libraries for tables make of them.

Whatever library it is gets the table as a Parquet file, which is made as it reads. Any thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from html import escape
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from glassfs import content as contents
from glassfs.content.table import Column
from glassfs.errors import Damaged, NoSuchEntry
from glassfs.terminal import printable
from glassfs.view.names import text

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

SHOWN_ROWS = 10
ROWS_AT_ONCE = 4096


class Table:
    """Rows of columns. ``len(table)`` is how many there are, ``columns`` has the names, and iterating gives dicts.

    Nothing is kept of what was read. Reading raises ``glassfs.errors.Damaged`` where what is stored is.
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
        """The rows, each with its values by the names of the columns. What is not there is None."""
        if self._table.records is not None:
            yield from _records(self._table.records)
            return
        values = {text(column.name): _values(column, self._table.rows) for column in self._table.columns()}
        for row in zip(*values.values(), strict=True):
            yield dict(zip(values, row, strict=True))

    def __getitem__(self, name: str) -> list[Any]:
        """The values of a column. Raises NoSuchEntry, which is a KeyError."""
        for column in self._table.columns():
            if text(column.name) == name:
                return list(_values(column, self._table.rows))
        raise NoSuchEntry("there is no such column", self._name, printable(name))

    def to_pandas(self) -> pd.DataFrame:
        """A data frame. Raises ImportError where pandas or pyarrow is not installed."""
        try:
            import pandas as pd
            import pyarrow as pa  # noqa: F401
        except ImportError as error:
            raise _missing("to_pandas", "pandas and pyarrow", "pandas") from error
        with self._parquet() as file:
            return pd.read_parquet(file, engine="pyarrow")

    def to_arrow(self) -> pa.Table:
        """A table of Arrow. Raises ImportError where pyarrow is not installed."""
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise _missing("to_arrow", "pyarrow", "arrow") from error
        with self._parquet() as file:
            return parquet.read_table(file)

    def to_polars(self) -> pl.DataFrame:
        """A data frame. Raises ImportError where polars is not installed."""
        try:
            import polars as pl
        except ImportError as error:
            raise _missing("to_polars", "polars", "polars") from error
        with self._parquet() as file:
            return pl.read_parquet(file)

    def __repr__(self) -> str:
        columns = ", ".join(map(printable, self.columns))
        return f"<glassfs.Table {printable(self._name)!r}: {len(self)} rows of {columns}>"

    def _repr_html_(self) -> str:
        names = self.columns
        head = "".join(f"<th><bdi>{_cell(name)}</bdi></th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td><bdi>{_cell(row.get(name))}</bdi></td>" for name in names) + "</tr>"
            for row in islice(self, SHOWN_ROWS)
        )
        more = f"<p>{len(self)} rows</p>" if len(self) > SHOWN_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _cell(value: Any) -> str:
    shown = str(value)
    return escape(printable(shown if len(shown) <= 80 else f"{shown[:79]}…"))


def _missing(method: str, wanted: str, extra: str) -> ImportError:
    return ImportError(f"{method}() needs {wanted}: pip install 'glassfs[{extra}]'", name=extra)


def _records(records: contents.Records) -> Iterator[Any]:
    for block in range(records.blocks):
        yield from records.block(block)


def _values(column: Column, rows: int) -> Iterator[Any]:
    """A value a row, as plain as can be."""
    content = column.content
    if isinstance(content, contents.Array):
        return _of_array(content, rows)
    if isinstance(content, contents.RaggedText):
        runs = _runs(content.text, content.offsets, content.offset_dtype, rows)
        return (run.decode("utf-8", "replace") for run in runs)
    if isinstance(content, contents.Ragged):
        return _of_ragged(content, rows)
    return _records(content)


def _of_array(array: contents.Array, rows: int) -> Iterator[Any]:
    import numpy as np

    dtype = np.dtype(array.dtype)
    shape = array.shape if isinstance(array.shape, tuple) else array.shape()
    row = dtype.itemsize
    for length in shape[1:]:
        row *= length
    for start in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - start)
        some = np.frombuffer(array.data.read(start * row, count * row), dtype) if row else np.empty(0, dtype)
        values = some.reshape(count, *shape[1:])
        yield from (values.tolist() if dtype.kind in "biuf" else list(values))


def _of_ragged(ragged: contents.Ragged, rows: int) -> Iterator[Any]:
    import numpy as np

    dtype = np.dtype(ragged.dtype)
    for run in _runs(ragged.values, ragged.offsets, ragged.offset_dtype, rows, dtype.itemsize):
        yield run if dtype.kind == "V" else np.frombuffer(run, dtype).tolist()


def _runs(data: contents.Data, offsets: contents.Data, offset_dtype: str, rows: int, item: int = 1) -> Iterator[bytes]:
    """The bytes of each row. Raises Damaged where the offsets do not rise from 0 on, within the data."""
    import numpy as np

    dtype = np.dtype(offset_dtype)
    for start in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - start)
        stored = offsets.read(start * dtype.itemsize, (count + 1) * dtype.itemsize)
        bounds = [item * int(offset) for offset in np.frombuffer(stored, dtype)]
        for begin, end in pairwise(bounds):
            if not 0 <= begin <= end <= data.size:
                raise Damaged("has offsets that do not rise, or lead beyond its end")
            yield data.read(begin, end - begin)
