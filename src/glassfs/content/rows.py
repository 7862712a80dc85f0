"""The rows of columns: their values, a limited number at a time, and the offsets of rows that differ in length.

Nothing read is kept. Any thread. Reading raises Damaged for offsets that do not rise, and what the data raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from math import prod
from typing import Any

from glassfs.content import dtypes
from glassfs.content.data import Data
from glassfs.content.model import Array, RaggedText, Records
from glassfs.content.table import Column, Ragged, Table
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.names import text
from glassfs.sizes import PIECE

LARGEST_ROW = 8 << 20
"""Bytes of a value in a row; as a list it takes many times as much."""


class Offsets:
    """The numbers of the values at which rows begin, and the end: ``rows + 1`` offsets into ``total`` values."""

    def __init__(self, data: Data, dtype: str, rows: int, total: int) -> None:
        self._data, self._dtype, self.rows, self.total = data, dtype, rows, total
        self._width = int(dtype[2:])

    def at(self, row: int) -> int:
        """Return the offset of one row. Raises Damaged if it exceeds the values."""
        offset = 0
        if row or self.rows:
            stored = self._data.read(row * self._width, self._width)
            offset = int.from_bytes(stored, "little", signed=self._dtype[1] == "i")
        # A file may have any offsets: one is used only if it is in its place, the first one 0 and the last one the end.
        is_right = 0 <= offset <= self.total and (row > 0 or offset == 0) and (row < self.rows or offset == self.total)
        if not is_right:
            raise _damage()
        return offset

    def of(self, first: int, end: int) -> NDArray[Any]:
        """Return the offsets of the rows ``[first, end]``. Raises Damaged unless they rise within the values."""
        raw = self._data.read(first * self._width, (end - first + 1) * self._width)
        offsets = np.frombuffer(raw, self._dtype)
        if (offsets[1:] < offsets[:-1]).any() or (first == 0 and offsets[0] != 0) or offsets[-1] > self.total:
            raise _damage()
        if offsets[0] < 0 or (end == self.rows and offsets[-1] != self.total):
            raise _damage()
        return offsets.astype(np.int64)

    def empty(self, first: int, end: int) -> int:
        """Count the rows ``[first, end)`` that have no value."""
        found = 0
        for row in range(first, end, step := PIECE // self._width):
            offsets = self.of(row, min(row + step, end))
            found += int((offsets[1:] == offsets[:-1]).sum())
        return found


class EvenOffsets(Offsets):
    """Offsets of rows that all have ``length`` values."""

    def __init__(self, length: int, rows: int) -> None:
        self._length, self.rows, self.total = length, rows, length * rows

    def at(self, row: int) -> int:
        return row * self._length

    def of(self, first: int, end: int) -> NDArray[Any]:
        return np.arange(first, end + 1, dtype=np.int64) * self._length

    def empty(self, first: int, end: int) -> int:
        return 0 if self._length else end - first


def _damage() -> Damaged:
    return Damaged("the offsets of its rows do not rise from 0 to its end")


def offsets_of(content: RaggedText | Ragged, item: int = 1) -> Offsets:
    """Return the offsets of a content whose values have ``item`` bytes. Raises Damaged if there are not enough."""
    rows, size = content.rows, content.offsets.size
    if size != (rows + 1) * int(content.offset_dtype[2:]):
        raise Damaged(f"has {size} bytes of offsets, but {rows} rows", part=content.key.decode("utf-8", "replace"))
    total = (content.text if isinstance(content, RaggedText) else content.values).size // item
    return Offsets(content.offsets, content.offset_dtype, rows, total)


def rows_of(table: Table, first: int = 0, count: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield ``count`` rows from number ``first`` on, or all: dicts from names of columns to plain Python values.

    Missing values are None. Only what is needed is read, but of records also the blocks before ``first``. Raises
    Damaged, or TooLarge for too large a row.
    """
    end = table.rows if count is None else min(table.rows, first + count)
    if table.records is not None:
        yield from islice(of_records(table.records), first, None if count is None else end)
        return
    columns = table.columns()
    at_once = min(PIECE, 16 * PIECE // max(1, len(columns)))
    found = {text(column.name): values(column, end, at_once, first=first) for column in columns}
    for row in zip(*found.values(), strict=True):
        yield dict(zip(found, row, strict=True))


def values(column: Column, end: int, at_once: int, first: int = 0) -> Iterator[Any]:
    """Yield a plain Python value for each of the rows ``[first, end)``.

    About ``at_once`` bytes are read at a time. Raises Damaged, or TooLarge for too large a row.
    """
    content = column.content
    if isinstance(content, Array):
        return _of_array(content, first, end, at_once)
    if isinstance(content, RaggedText):
        texts = _runs(content.text, offsets_of(content), 1, first, end, at_once)
        return (raw.decode("utf-8", "replace") for raw in texts)
    if isinstance(content, Ragged):
        return _of_ragged(content, first, end, at_once)
    return islice(of_records(content), first, end)


def of_records(records: Records) -> Iterator[Any]:
    for block in range(records.blocks):
        yield from records.block(block)


def array_rows(array: Array, first: int, end: int) -> NDArray[Any]:
    """Return the rows ``[first, end)`` of an array."""
    dtype, inner = dtypes.parsed(array.dtype), array.resolved_shape[1:]
    row, count = dtype.itemsize * prod(inner), end - first
    found = np.frombuffer(array.data.read(first * row, count * row), dtype) if row else np.empty(0, dtype)
    return found.reshape(count, *inner)


def runs(data: Data, bounds: Sequence[int]) -> list[bytes]:
    """Return the bytes between each two consecutive ``bounds``, which rise, after reading all at once."""
    begin = bounds[0]
    raw = data.read(begin, bounds[-1] - begin)
    return [raw[start - begin : end - begin] for start, end in pairwise(bounds)]


def _of_array(array: Array, first: int, end: int, at_once: int) -> Iterator[Any]:
    dtype, inner = dtypes.parsed(array.dtype), array.resolved_shape[1:]
    # A row becomes nested lists of Python, which take memory even where they have no values in them.
    taken = max(1, dtype.itemsize) * prod(max(1, length) for length in inner)  # lists may be empty
    _demand_small(taken)
    step = _rows_at_once(taken, at_once)
    for start in range(first, end, step):
        found = array_rows(array, start, min(start + step, end))
        yield from found.tolist() if dtype.kind in "biuf" else found


def _of_ragged(ragged: Ragged, first: int, end: int, at_once: int) -> Iterator[Any]:
    dtype = np.dtype(ragged.dtype)
    for run in _runs(ragged.values, offsets_of(ragged, dtype.itemsize), dtype.itemsize, first, end, at_once):
        yield run if dtype.kind == "V" else np.frombuffer(run, dtype).tolist()


def _runs(data: Data, offsets: Offsets, item: int, first: int, end: int, at_once: int) -> Iterator[bytes]:
    """Yield the bytes of each row."""
    step = _rows_at_once(64, at_once)  # bytes of an offset as a Python integer, with its reference
    for start in range(first, end, step):
        bounds: list[int] = (offsets.of(start, min(start + step, end)) * item).tolist()
        if bounds[-1] - bounds[0] <= at_once:
            yield from runs(data, bounds)
            continue
        for begin, after in pairwise(bounds):  # rows of so many bytes are read singly
            _demand_small(after - begin)
            yield data.read(begin, after - begin)


def _rows_at_once(row: int, at_once: int) -> int:
    return max(1, min(4096, at_once // row))


def _demand_small(size: int) -> None:
    if size > LARGEST_ROW:
        raise TooLarge(f"has a row of {size} bytes, which is too large to be a value in a list")
