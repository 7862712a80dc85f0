"""Values as cells of CSV.

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

Pure functions. Conversions of times raise Damaged beyond 64 bits.
"""

from __future__ import annotations

import csv
import io
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.view import json
from glassfs.view.parquet.kinds import kind_of

_BARE_KINDS = "biufm"
"""NumPy's kinds whose cells are also JSON, except for these:"""
_QUOTED = {"": "null", "NaN": '"NaN"', "Infinity": '"Infinity"', "-Infinity": '"-Infinity"'}
_SECONDS = {
    "W": (604_800, 0), "D": (86_400, 0), "h": (3600, 0), "m": (60, 0), "s": (1, 0), "ms": (1, 3), "us": (1, 6),
    "ns": (1, 9), "ps": (1, 12), "fs": (1, 15), "as": (1, 18),
}
"""The length of a unit: a number, and its digits after the seconds."""
_TICKS = 10_000_000
"""Units of 100 ns in a second: NumPy writes them as nanoseconds, 64 bits of which do not hold the years 1 to 9999."""


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
    if values.dtype.kind in _BARE_KINDS:
        tokens = [_QUOTED.get(value) or str(value) for value in found]
    else:
        is_time = values.dtype.kind == "M"
        tokens = ["null" if is_time and value == "" else json.line(value).decode() for value in found]
    return f"[{', '.join(tokens)}]"


def _floats(values: NDArray[Any]) -> list[Any]:
    # As Python's floats, short numbers of fewer bits would have many digits.
    cells: list[Any] = values.tolist() if values.dtype.itemsize == 8 else list(map(str, values))
    for number in np.flatnonzero(~np.isfinite(values)):
        cells[number] = json.name_of(float(values[number]))
    return cells


def _times(values: NDArray[Any]) -> list[Any]:
    unit, count = np.datetime_data(values.dtype)
    if unit == "generic" or (values.dtype.kind == "m" and unit not in _SECONDS):
        cells: list[Any] = values.view("<i8").tolist()
    elif values.dtype.kind == "m":
        cells = _seconds(values.view("<i8").tolist(), unit, count)
    else:
        cells = _points(values, unit, count)
    for number in np.flatnonzero(np.isnat(values)):
        cells[number] = ""
    return cells


def _seconds(values: list[int], unit: str, count: int) -> list[Any]:
    factor, digits = _SECONDS[unit]
    factor *= count
    while digits and factor % 10 == 0:
        factor, digits = factor // 10, digits - 1
    if not digits:
        return [factor * value for value in values]
    base = 10**digits
    # Whole numbers of Python: no digit is rounded, and the sign is that of the whole value.
    parts = ((value < 0, *divmod(abs(factor * value), base)) for value in values)
    return [f"{'-' * is_negative}{whole}.{rest:0{digits}d}" for is_negative, whole, rest in parts]


def _points(values: NDArray[Any], unit: str, count: int) -> list[Any]:
    if (unit, count) == ("ns", 100):
        # The dates of .NET.
        ticks = values.view("<i8")
        whole = np.datetime_as_string((ticks // _TICKS).view("<M8[s]")).tolist()
        return [f"{second}.{rest:07d}" for second, rest in zip(whole, (ticks % _TICKS).tolist(), strict=True)]
    if count > 1 or unit in ("W", "h", "m"):  # NumPy writes these without minutes or seconds
        kind = kind_of(values.dtype.str)
        if kind is not None and kind.convert is not None:
            target = unit if unit in ("us", "ns") else "ms"
            values = np.frombuffer(kind.convert(values.tobytes()), f"<M8[{target}]")
    return list(np.datetime_as_string(values).tolist())
