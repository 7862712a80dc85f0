"""Tables as CSV (RFC 4180), for spreadsheets, R and programs that read nothing else. UTF-8, lines end with CR LF.

The first line has the names of the columns, those of the Parquet view. Values are exact:

| value | cell |
|---|---|
| missing, not a time | empty |
| integers, floats | the fewest digits that identify the number in its own dtype; ``NaN``, ``Infinity``, ``-Infinity`` |
| booleans | ``true``, ``false`` |
| times | ISO 8601, with Z if they are of UTC; of 100 ns with seven digits after the seconds |
| durations | seconds, all digits of the unit; of months and years their number |
| complex numbers | ``1.5-2j`` |
| text | unchanged, but NUL and bytes that are not UTF-8 are U+FFFD: many readers stop at NUL |
| other bytes | Base64 |
| lists | JSON, as in ``glassfs.view.json``: NaN is a string, a missing value null |

All rows are written in one pass when the size is first needed, some rows at a time, in limited memory. Weights are
estimates of the bytes that cells take until they are lines. A pass is for one thread. Conversions of times raise
Damaged beyond 64 bits.
"""

from __future__ import annotations

import csv
import io
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Array, Data, Records, Stream, Table
from glassfs.content.allowance import held
from glassfs.content.rows import Offsets, array_rows, runs
from glassfs.content.table import demand_columns
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.view import json
from glassfs.view.contract import Key, Shown, View
from glassfs.view.parquet import ColumnPlan, plans_of
from glassfs.view.parquet.schema import BYTES, TEXT

CELL = 256
"""Weight of a cell, and of a value in a list."""
TEXT_WEIGHT = 32
"""Weight of a byte of text or Base64."""
MEMORY = 32 << 20
"""A pass may take this memory in bytes, or half of the cache if that is more."""
MOST_VALUES = 1 << 30
"""Limit of values in a table: a pass over more would take about half an hour."""
_NOT_JSON = ("NaN", "Infinity", "-Infinity")
_DIGITS = {"W": 0, "D": 0, "h": 0, "m": 0, "s": 0, "ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}
"""Digits after the seconds, of units with a length in seconds."""
_TICKS = 10_000_000
"""Units of 100 ns in a second: NumPy writes them as nanoseconds, 64 bits of which do not hold the years 1 to 9999."""


class CsvPass:
    """One pass over the rows of a table. Each column makes its cells a step ahead, at least PIECE bytes in all."""

    def __init__(self, table: Table, cache: BlockCache) -> None:
        self._rows = table.rows
        self._plans = plans_of(table)
        self._names = [name.decode() for plan in self._plans for name in plan.names]
        in_runs = sum(plan.offsets.total * _weight(plan) for plan in self._plans if plan.offsets and not plan.slots)
        self._weight = CELL * self._rows * max(1, len(self._names)) + in_runs
        """That of all cells."""
        if self._weight > CELL * MOST_VALUES:
            raise TooLarge(f"a table of {self._weight // CELL} values is too large for CSV; use the view parquet")
        self._limit = max(cache.budget // 2, MEMORY)
        self._step = max(PIECE, min(16 * PIECE, cache.budget // 16)) // max(1, len(self._names))
        """The weight of cells of a column that are made at a time, unless one is heavier."""
        self._rows_at_once = max(1, self._step // CELL)
        self._taken = Counter[int]()
        self._total = 0

    @property
    def cost(self) -> int:
        """The most memory in bytes that the pass takes."""
        records = (plan.values for plan in self._plans if isinstance(plan.values, Records))
        blocks = sum(max(map(one.cost, range(one.blocks)), default=0) for one in records)
        return min(self._limit, self._weight + blocks)

    def lines(self) -> Iterator[bytes]:
        """Yield the names of the columns, then all rows."""
        yield encoded([self._names])
        columns = chain.from_iterable(self._cells(number, plan) for number, plan in enumerate(self._plans))
        yield from encoded_pieces(zip(*columns, strict=True))

    def _cells(self, number: int, plan: ColumnPlan) -> Iterator[Iterable[Any]]:
        """Yield the cells of each of the columns that one becomes."""
        if isinstance(plan.values, Records):
            yield self._of_records(number, plan.values)
        elif plan.offsets is not None and not plan.slots:
            yield self._of_runs(number, plan, plan.values, plan.offsets)
        else:
            assert isinstance(plan.column.content, Array)
            # The columns of a vector are asked for the same rows one after another.
            made = lru_cache(1)(partial(self._of_array, plan.column.content, plan.slots or 1, plan.column.zone))
            for slot in range(plan.slots or 1):
                starts = range(0, self._rows, self._rows_at_once)
                yield chain.from_iterable(map(itemgetter(slot), map(made, starts)))

    def _of_array(self, content: Array, width: int, zone: str, first: int) -> list[list[Any]]:
        """Return some rows, one list for each column."""
        work.check()
        end = min(self._rows, first + self._rows_at_once)
        values = array_rows(content, first, end).reshape(end - first, width)
        found = [scalars(values[:, slot]) for slot in range(width)]
        return [[cell and f"{cell}Z" for cell in column] for column in found] if zone else found

    def _of_runs(self, number: int, plan: ColumnPlan, data: Data, offsets: Offsets) -> Iterator[str]:
        shown = {TEXT: text, BYTES: base64}
        show: Callable[[bytes], str] = shown.get(plan.kind) or partial(numbers, plan.kind.dtype)
        item, weight = plan.kind.stored or 1, _weight(plan)
        for some in runs(data, offsets, item, 0, self._rows, max(1, self._step * item // weight)):
            self._take(number, weight * sum(map(len, some)) // item)
            yield from map(show, some)

    def _of_records(self, number: int, records: Records) -> Iterator[Any]:
        """Yield the cells of records. Raises Damaged unless there are as many as the table has rows."""
        count = 0
        for block_number in range(records.blocks):
            block = list(records.block(block_number))
            count += len(block)
            if count > self._rows:
                raise _damage(records, f"has more rows than the {self._rows} of its table")
            self._take(number, min(records.cost(block_number), sum(map(held, block))))  # rows may share values
            yield from map(cell, block)
            del block  # before there is another one
        if count < self._rows:
            raise _damage(records, f"has {count} rows, but its table has {self._rows}")

    def _take(self, number: int, weight: int) -> None:
        """Note what a column takes now. Raises TooLarge if all take too much."""
        self._total += weight - self._taken[number]
        self._taken[number] = weight
        if self._total > self._limit:
            reason = f"its rows take more than {self._limit >> 20} MiB of memory as CSV"
            raise TooLarge(f"{reason}; use the view parquet, or a larger cache_size")


def _weight(plan: ColumnPlan) -> int:
    """Return the weight of a value in a run."""
    return TEXT_WEIGHT if plan.kind in (TEXT, BYTES) else CELL


def _damage(records: Records, reason: str) -> Damaged:
    return Damaged(reason, part=records.key.decode("utf-8", "replace"))


def encoded(rows: Iterable[Iterable[Any]]) -> bytes:
    """Return lines of CSV for rows of cells: texts and finite numbers."""
    return b"".join(encoded_pieces(rows))


def encoded_pieces(rows: Iterable[Iterable[Any]]) -> Iterator[bytes]:
    """Yield lines of CSV in pieces, as the texts of rows may be long."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    for row in rows:
        writer.writerow(row)
        if text.tell() > PIECE:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def cell(value: Any) -> Any:
    """Return the cell of a Python value: None, a number, text, or a list of these."""
    if value is None:
        return ""
    if isinstance(value, (str, bytes)):
        return json.as_text(value).replace("\0", "\ufffd")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return value if math.isfinite(value) else json.name_of(value)
    if isinstance(value, int):
        return value
    is_time = isinstance(value, (np.datetime64, np.timedelta64))
    return scalars(np.array([value]))[0] if is_time else json.line(value).decode()


def scalars(values: NDArray[Any]) -> list[Any]:
    """Return the cells of an array of one dimension."""
    kind = values.dtype.kind
    if kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if kind in "iu":
        return list(values.tolist())
    if kind == "f":
        return _floats(values)
    if kind == "c":
        return [str(value).strip("()") for value in values]
    if kind in "mM":
        return _times(values)
    if kind in "SU":
        return list(map(cell, values.tolist()))
    return [base64(value.tobytes()) for value in values]


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\0", "\ufffd")


def base64(raw: bytes) -> str:
    return b64encode(raw).decode()


def numbers(dtype: str, raw: bytes) -> str:
    """Return a list of numbers as JSON."""
    values = np.frombuffer(raw, dtype)
    found = scalars(values)
    is_time, is_bare = values.dtype.kind in "mM", values.dtype.kind in "biufm"
    tokens = [
        "null" if is_time and value == "" else str(value) if is_bare and value not in _NOT_JSON
        else json.line(value).decode() for value in found
    ]
    return f"[{', '.join(tokens)}]"


def _floats(values: NDArray[Any]) -> list[Any]:
    # As Python's floats, short numbers of fewer bits would have many digits.
    cells: list[Any] = values.tolist() if values.dtype.itemsize == 8 else list(map(str, values))
    for number in np.flatnonzero(~np.isfinite(values)):
        cells[number] = json.name_of(float(values[number]))
    return cells


def _times(values: NDArray[Any]) -> list[Any]:
    (unit, count), numbers = np.datetime_data(values.dtype), values.view("<i8")
    is_point = values.dtype.kind == "M"
    if is_point and (unit, count) == ("ns", 100):
        # The dates of .NET.
        whole = np.datetime_as_string((numbers // _TICKS).view("<M8[s]")).tolist()
        cells = [f"{second}.{rest:07d}" for second, rest in zip(whole, (numbers % _TICKS).tolist(), strict=True)]
    elif is_point and unit != "generic":
        cells = np.datetime_as_string(values).tolist()
    else:
        cells = _seconds(numbers.tolist(), unit, count) if unit in _DIGITS else numbers.tolist()
    for number in np.flatnonzero(np.isnat(values)):
        cells[number] = ""
    return cells


def _seconds(values: list[int], unit: str, count: int) -> list[Any]:
    digits = _DIGITS[unit]
    factor = count if digits else int(np.array(count, f"<m8[{unit}]") // np.array(1, "<m8[s]"))
    while digits and factor % 10 == 0:
        factor, digits = factor // 10, digits - 1
    if not digits:
        return [factor * value for value in values]
    base = 10**digits
    # Whole numbers of Python: no digit is rounded, and the sign is that of the whole value.
    parts = ((value < 0, *divmod(abs(factor * value), base)) for value in values)
    return [f"{'-' * is_negative}{whole}.{rest:0{digits}d}" for is_negative, whole, rest in parts]


def show(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    demand_columns(table)
    made = Stream(cache, key, lambda: CsvPass(table, cache).lines(), lambda: CsvPass(table, cache).cost)
    yield Shown(made, ".csv")


VIEW = View("csv", "tables, for spreadsheets, R and others that read text", (Table,), show)
