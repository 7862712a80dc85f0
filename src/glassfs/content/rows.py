"""The rows of columns: their values, a limited number at a time, and the offsets of rows that differ in length.

``TextRows`` are strings from which views of many rows are written without an object for each. Nothing read is kept.
Any thread. Reading raises Damaged for offsets that do not rise, and what the data raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from math import prod
from typing import Any, NoReturn, overload

from glassfs import work
from glassfs.content import dtypes
from glassfs.content.data import Data
from glassfs.content.model import Array, RaggedText, Records
from glassfs.content.table import Column, Ragged, Table
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.names import text
from glassfs.sizes import PIECE


@dataclass(eq=False)
class TextRows(Sequence["str | None"]):
    """Rows of text, or None: row i has ``lengths[i]`` of the bytes ``raw``, those of all rows one after another.

    ``present`` says which rows are not None; if it is None, all are present. Bytes that are not UTF-8 are backslash
    escapes in the text.
    """

    raw: bytes
    lengths: NDArray[Any]
    present: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> TextRows: ...
    def __getitem__(self, index: int | slice) -> str | TextRows | None:
        if not isinstance(index, slice):
            return next(iter(self[index : index + 1]))
        first, end, _ = index.indices(len(self))
        begin = int(self.lengths[:first].sum())
        lengths = self.lengths[first:end]
        raw = self.raw[begin : begin + int(lengths.sum())]
        return TextRows(raw, lengths, None if self.present is None else self.present[first:end])

    def __iter__(self) -> Iterator[str | None]:
        ends = [0, *self.lengths.cumsum().tolist()]
        present = [True] * len(self) if self.present is None else self.present.tolist()
        for is_present, (start, end) in zip(present, pairwise(ends), strict=True):
            yield self.raw[start:end].decode("utf-8", "backslashreplace") if is_present else None

    def with_lengths(self) -> bytes:
        """Return the rows that are present, each as UTF-8 after its length, which is a 32-bit integer."""
        lengths = self.lengths if self.present is None else self.lengths[self.present]
        if self.raw.isascii():
            return with_lengths(self.raw, lengths)
        rows = [row.encode() for row in self if row is not None]
        return b"".join([len(row).to_bytes(4, "little") + row for row in rows])


def with_lengths(raw: bytes, lengths: NDArray[Any]) -> bytes:
    """Return rows of bytes, that have these lengths and stand one after another, each after its length."""
    # Lengths and bytes are put in place by a mask, as a loop over short rows in Python takes longer.
    made = np.empty(4 * len(lengths) + len(raw), np.uint8)
    is_raw = np.ones(len(made), bool)
    places = lengths.cumsum() - lengths + 4 * np.arange(len(lengths))
    for array, heads in ((is_raw, 0), (made, lengths)):
        np.ndarray((max(0, len(made) - 3),), "<u4", array.data, 0, (1,))[places] = heads
    made[is_raw] = np.frombuffer(raw, np.uint8)
    return made.tobytes()


def padded(raw: bytes, width: int, padding: str, missing: bytes = b"") -> TextRows:
    """Return the rows of strings of ``width`` bytes that end at the first zero (``end``), or before the last ``zeros``
    or ``spaces``. Rows that are ``missing`` are None, unless that is empty.
    """
    # Rows are short and many. A step over one byte of all rows is several times as fast as one over all bytes of a row.
    matrix = np.frombuffer(raw, np.uint8).reshape(-1, width)
    turned = np.ascontiguousarray(matrix.T)
    counted = np.arange(1, width + 1, dtype=np.int32)[:, np.newaxis]
    if padding == "end":
        lengths = width - ((turned == 0) * counted[::-1]).max(0)
    else:
        is_space = turned == (ord(" ") if padding == "spaces" else 0)
        lengths = (((turned != 0) & ~is_space) * counted).max(0)
    lengths = lengths.astype(np.int64)
    present = None
    if 0 < len(missing) <= width:
        is_equal = (turned[: len(missing)] == np.frombuffer(missing, np.uint8)[:, np.newaxis]).all(0)
        present = ~(is_equal & (lengths == len(missing)))
        lengths *= present
    return TextRows(matrix[np.arange(width) < lengths[:, np.newaxis]].tobytes(), lengths, present)


def coded(numbers: NDArray[Any], texts: Sequence[str | None]) -> TextRows:
    """Return the text of each number, which is its index in ``texts``. Raises IndexError for another number."""
    rows = [b"" if one is None else one.encode("utf-8", "backslashreplace") for one in texts]
    lengths = np.array([len(row) for row in rows], np.int64)[numbers]
    present = np.array([one is not None for one in texts], bool)[numbers]
    raw = b"".join([rows[number] for number in numbers.tolist()])
    return TextRows(raw, lengths, None if present.all() else present)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads but JSON does not have (``json.loads(parse_constant=…)``)."""
    raise ValueError(f"{name} is not a JSON number")


LARGEST_ROW = 8 << 20
"""Bytes of a value in a row; as a list it takes many times as much."""


class Offsets:
    """The numbers of the values at which rows begin, and the end: ``rows + 1`` offsets into ``total`` values."""

    def __init__(self, data: Data, dtype: str, rows: int, total: int) -> None:
        self._data, self._dtype, self.rows, self.total = data, dtype, rows, total
        self._width = int(dtype[2:])

    def at(self, row: int) -> int:
        """Return the offset of one row. Raises Damaged if it exceeds the values."""
        return int(self.of(row, row)[0])

    def of(self, first: int, end: int) -> NDArray[Any]:
        """Return the offsets of the rows ``[first, end]``. Raises Damaged unless they rise within the values."""
        raw = self._data.read(first * self._width, (end - first + 1) * self._width)
        offsets = np.frombuffer(raw, self._dtype)
        # A file may have any offsets: they are used only if the first one is 0 and the last one the end.
        is_right = (first > 0 or offsets[0] == 0) and (end < self.rows or offsets[-1] == self.total)
        if not is_right or (offsets[1:] < offsets[:-1]).any() or not 0 <= offsets[0] <= offsets[-1] <= self.total:
            raise Damaged("the offsets of its rows do not rise from 0 to its end")
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

    def of(self, first: int, end: int) -> NDArray[Any]:
        return np.arange(first, end + 1, dtype=np.int64) * self._length

    def empty(self, first: int, end: int) -> int:
        return 0 if self._length else end - first


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
        texts = runs(content.text, offsets_of(content), 1, first, end, at_once)
        return (raw.decode("utf-8", "replace") for raw in chain.from_iterable(texts))
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
    for run in chain.from_iterable(
        runs(ragged.values, offsets_of(ragged, dtype.itemsize), dtype.itemsize, first, end, at_once),
    ):
        yield run if dtype.kind == "V" else np.frombuffer(run, dtype).tolist()


def runs(data: Data, offsets: Offsets, item: int, first: int, end: int, at_once: int) -> Iterator[list[bytes]]:
    """Yield the bytes of the rows ``[first, end)``, of as many at a time as have ``at_once`` bytes, or of one.

    Raises TooLarge for too large a row.
    """
    step = _rows_at_once(64, at_once)  # bytes of an offset as a Python integer, with its reference
    for start in range(first, end, step):
        work.check()
        bounds: list[int] = (offsets.of(start, min(start + step, end)) * item).tolist()
        begin = bounds[0]
        if bounds[-1] - begin <= at_once:
            raw = data.read(begin, bounds[-1] - begin)
            yield [raw[a - begin : b - begin] for a, b in pairwise(bounds)]
            continue
        for begin, after in pairwise(bounds):  # rows of so many bytes are read singly
            _demand_small(after - begin)
            yield [data.read(begin, after - begin)]


def _rows_at_once(row: int, at_once: int) -> int:
    return max(1, min(4096, at_once // row))


def _demand_small(size: int) -> None:
    if size > LARGEST_ROW:
        raise TooLarge(f"has a row of {size} bytes, which is too large to be a value in a list")
