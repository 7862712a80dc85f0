"""Tables: rows, columns, and conversion to pandas, Arrow and polars. Any thread.

Libraries read the table as a Parquet file, which is encoded while they read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from glassfs import content as contents
from glassfs import installing
from glassfs.content.table import Column
from glassfs.errors import Damaged, GlassfsError, NoSuchEntry, TooLarge
from glassfs.library.shown import cell
from glassfs.library.stream import Raw
from glassfs.names import text
from glassfs.terminal import printable
from glassfs.threads import DaemonPool

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

SHOWN_ROWS = 10
Frame = TypeVar("Frame")

SHOWN_COLUMNS = 50
SHOWN_CHARACTERS = 80
ROWS_AT_ONCE = 4096
AT_ONCE = 1 << 20
"""Bytes of a column read at once, if no row is larger."""
ALL_AT_ONCE = 16 << 20
"""Bytes of all columns of a table read at once."""
LARGEST_ROW = 8 << 20
"""Bytes of a value in a row; as a list it takes many times as much."""
SHOWN_VALUES = 4 * SHOWN_CHARACTERS + 4
"""Values, or bytes of a text, that exceed any cell: a character may take four bytes."""
OFFSET_COST = 64
"""Bytes of an offset as a Python integer, with its reference."""
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
        """Yield the rows as dicts from column names to values. Missing values are None."""
        if self._table.records is not None:
            yield from _records(self._table.records)
            return
        columns = self._table.columns()
        at_once = min(AT_ONCE, ALL_AT_ONCE // max(1, len(columns)))
        values = {text(column.name): _values(column, self._table.rows, at_once) for column in columns}
        for row in zip(*values.values(), strict=True):
            yield dict(zip(values, row, strict=True))

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of a column. Raises NoSuchEntry, which is a KeyError."""
        for column in self._table.columns():
            if text(column.name) == name:
                return list(_values(column, self._table.rows, AT_ONCE))
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
            yield from islice(_records(self._table.records), SHOWN_ROWS)
            return
        count = min(self._table.rows, SHOWN_ROWS)
        values = {text(column.name): _values(column, count, AT_ONCE, is_cut=True) for column in columns}
        for row in zip(*(islice(column, count) for column in values.values()), strict=True):
            yield dict(zip(values, row, strict=True))


def _short(value: Any, most: int = SHOWN_CHARACTERS) -> str:
    shown = str(value)
    return printable(shown if len(shown) <= most else f"{shown[:most - 1]}…")


def _missing(method: str, wanted: str, extra: str) -> ImportError:
    return ImportError(f"{method}() needs {wanted}: {installing.command(extra)}", name=extra)


def _records(records: contents.Records) -> Iterator[Any]:
    for block in range(records.blocks):
        yield from records.block(block)


def _values(column: Column, rows: int, at_once: int, is_cut: bool = False) -> Iterator[Any]:
    """Yield a plain Python value for each row; with ``is_cut``, only the beginning of long ones.

    About ``at_once`` bytes are read at a time. Raises Damaged, or TooLarge for too large a row.
    """
    content = column.content
    if isinstance(content, contents.Array):
        return _of_array(content, rows, at_once, is_cut)
    if isinstance(content, contents.RaggedText):
        runs = _runs(content.text, content.offsets, content.offset_dtype, rows, at_once, is_cut)
        return (run.decode("utf-8", "replace") for run in runs)
    if isinstance(content, contents.Ragged):
        return _of_ragged(content, rows, at_once, is_cut)
    return _records(content)


def _of_array(array: contents.Array, rows: int, at_once: int, is_cut: bool) -> Iterator[Any]:
    import numpy as np

    dtype = np.dtype(array.dtype)
    shape = array.shape if isinstance(array.shape, tuple) else array.shape()
    inner = shape[1:]
    row = dtype.itemsize * prod(inner)
    if is_cut and row > SHOWN_VALUES * dtype.itemsize:
        for number in range(rows):
            yield _plain(np.frombuffer(array.data.read(number * row, SHOWN_VALUES * dtype.itemsize), dtype))
        return
    taken = max(1, dtype.itemsize) * prod(max(1, length) for length in inner)  # lists may be empty
    _demand_small(taken)
    most = _rows_at_once(taken, at_once)
    for start in range(0, rows, most):
        count = min(most, rows - start)
        some = np.frombuffer(array.data.read(start * row, count * row), dtype) if row else np.empty(0, dtype)
        yield from _plain(some.reshape(count, *inner))


def _of_ragged(ragged: contents.Ragged, rows: int, at_once: int, is_cut: bool) -> Iterator[Any]:
    import numpy as np

    dtype = np.dtype(ragged.dtype)
    for run in _runs(ragged.values, ragged.offsets, ragged.offset_dtype, rows, at_once, is_cut, dtype.itemsize):
        yield run if dtype.kind == "V" else np.frombuffer(run, dtype).tolist()


def _runs(
    data: contents.Data, offsets: contents.Data, offset_dtype: str, rows: int, at_once: int, is_cut: bool,
    item: int = 1,
) -> Iterator[bytes]:
    """Yield the bytes of each row. Raises Damaged if the offsets are not ascending within the data."""
    import numpy as np

    dtype = np.dtype(offset_dtype)
    most = _rows_at_once(OFFSET_COST, at_once)
    for start in range(0, rows, most):
        count = min(most, rows - start)
        stored = offsets.read(start * dtype.itemsize, (count + 1) * dtype.itemsize)
        bounds = [item * int(offset) for offset in np.frombuffer(stored, dtype)]
        for begin, end in pairwise(bounds):
            if not 0 <= begin <= end <= data.size:
                raise Damaged("has offsets that descend or exceed its data")
            size = min(end - begin, SHOWN_VALUES * item) if is_cut else end - begin
            _demand_small(size)
            yield data.read(begin, size)


def _plain(values: NDArray[Any]) -> list[Any]:
    found: list[Any] = values.tolist() if values.dtype.kind in "biuf" else list(values)
    return found


def _rows_at_once(row: int, at_once: int) -> int:
    return max(1, min(ROWS_AT_ONCE, at_once // row))


def _demand_small(size: int) -> None:
    if size > LARGEST_ROW:
        raise TooLarge(f"has a row of {size} bytes, which is too large to be a value in a list")
