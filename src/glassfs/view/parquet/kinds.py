"""The Parquet and Arrow types of NumPy's dtypes. The docstring of ``glassfs.view.parquet`` has the table.

Pure functions. A conversion raises Damaged if a value has no counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from glassfs.codec import thrift
from glassfs.codec.thrift import Value, struct
from glassfs.content import Converted, Data
from glassfs.errors import Damaged
from glassfs.lazy import NDArray, np
from glassfs.lru import cached_if_short
from glassfs.sizes import PIECE

UTF8 = 0
"""The older equivalent of the logical type STRING, in ``ConvertedType`` of parquet.thrift, which DuckDB needs."""
_DTYPE = re.compile(r"([<|])([a-zA-Z])(\d+)(?:\[(\d*)([a-zA-Z]+)\])?")


class Physical(IntEnum):
    """The enum ``Type`` of parquet.thrift."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED = 7


class Encoding(IntEnum):
    """The enum of this name in parquet.thrift, of which these are needed."""

    PLAIN = 0
    RLE = 3


class ArrowNumber(IntEnum):
    """The union ``Type`` of Arrow's Schema.fbs."""

    INT = 2
    FLOATING_POINT = 3
    BINARY = 4
    UTF8 = 5
    BOOL = 6
    TIMESTAMP = 10
    LIST = 12
    FIXED_SIZE_BINARY = 15
    DURATION = 18


Scalar: TypeAlias = tuple[str, int]
"""A value in a table of a FlatBuffer: its struct format, and the value. A string is bytes."""


class ArrowType(NamedTuple):
    """A type of Arrow: its number, and the values of its table."""

    number: ArrowNumber
    scalars: tuple[Scalar | bytes, ...] = ()

    @property
    def is_arrow_only(self) -> bool:
        """Whether Parquet lacks this type, or a part of it: durations, and names of time zones."""
        return self.number == ArrowNumber.DURATION or any(isinstance(scalar, bytes) for scalar in self.scalars)


# Units of time: the unit in the file, a factor and a divisor. Units of the calendar have none.
_UNITS = {
    "ns": ("ns", 1, 1), "us": ("us", 1, 1), "ms": ("ms", 1, 1), "s": ("s", 1, 1), "m": ("s", 60, 1),
    "h": ("s", 3600, 1), "D": ("s", 86_400, 1), "W": ("s", 604_800, 1),
}
_TICKS = ("us", 1, 10)  # 100 ns: 64 bits of nanoseconds do not hold the years 1 to 9999 of .NET


@dataclass(frozen=True, eq=False)
class ParquetType:
    """Values of one type. ``width`` is their size in the file, ``stored`` in the array; a BOOLEAN is a bit.

    ``convert`` makes values of the file from values of the array; None means that they are the same. ``logical`` is
    Parquet's logical type, ``converted`` the older equivalent. ``unit`` is that of times.
    """

    physical: Physical
    width: int
    stored: int
    arrow: ArrowType
    convert: Callable[[bytes], Any] | None = None
    logical: Value | None = None
    converted: int | None = None
    dtype: str = ""
    unit: str = ""

    @property
    def is_bits(self) -> bool:
        return self.physical == Physical.BOOLEAN

    @property
    def is_time(self) -> bool:
        return bool(self.unit)

    def in_zone(self, zone: str) -> ParquetType:
        """Return the type of timestamps of UTC that programs show in a time zone; other types are returned unchanged.
        """
        if self.arrow.number != ArrowNumber.TIMESTAMP:
            return self
        arrow = ArrowType(ArrowNumber.TIMESTAMP, (*self.arrow.scalars, zone.encode()))
        return replace(self, logical=_timestamp(self.unit, True), arrow=arrow)

    def shown(self, data: Data) -> Data:
        """Return the values of an array as values of the file, but BOOLEAN as bytes."""
        if self.convert is None:
            return data
        return Converted(data, self.stored, self.width, data.size // self.stored * self.width, self.convert)


TEXT = ParquetType(
    Physical.BYTE_ARRAY, 0, 0, ArrowType(ArrowNumber.UTF8), logical=struct({1: struct({})}), converted=UTF8,
)
BYTES = ParquetType(Physical.BYTE_ARRAY, 0, 0, ArrowType(ArrowNumber.BINARY))


@cached_if_short(1024)
def kind_of(dtype: str) -> ParquetType | None:
    """Return the kind of a dtype, always the same object; None if Parquet has none: for no bytes, or for very many."""
    match = _DTYPE.fullmatch(dtype)
    if match is None:
        return None
    letter, size, count, unit = match[2], int(match[3]), match[4], match[5]
    # What Parquet has no type for, such as complex numbers and text of fixed length, is shown as its bytes: readers
    # have ways to take them apart, and the size stays a formula.
    if letter == "b":
        kind = ParquetType(Physical.BOOLEAN, 1, 1, ArrowType(ArrowNumber.BOOL))
    elif letter in "iu" and size in (1, 2, 4, 8):
        kind = _integer(letter == "i", size)
    elif letter in "mM" and size == 8 and unit is not None:
        kind = _time(letter == "M", unit, int(count or 1))
    elif letter == "f" and size in (2, 4, 8):
        logical = struct({15: struct({})}) if size == 2 else None
        physical = {2: Physical.FIXED, 4: Physical.FLOAT, 8: Physical.DOUBLE}[size]
        arrow = ArrowType(ArrowNumber.FLOATING_POINT, (("<h", size // 4),))
        kind = ParquetType(physical, size, size, arrow, logical=logical)
    else:
        width = size * 4 if letter == "U" else size
        if not 0 < width <= PIECE:
            return None
        kind = ParquetType(Physical.FIXED, width, width, ArrowType(ArrowNumber.FIXED_SIZE_BINARY, (("<i", width),)))
    return replace(kind, dtype=dtype)


def _arrow_integer(bits: int, is_signed: bool) -> ArrowType:
    return ArrowType(ArrowNumber.INT, (("<i", bits), ("<B", is_signed)))


def _integer(is_signed: bool, size: int) -> ParquetType:
    bits = 8 * size
    physical, width = (Physical.INT64, 8) if size == 8 else (Physical.INT32, 4)
    convert = None if width == size else partial(_cast, f"<{'i' if is_signed else 'u'}{size}", "<i4")
    logical = converted = None
    if size < 4 or not is_signed:
        logical = struct({10: struct({1: thrift.i8(bits), 2: thrift.boolean(is_signed)})})
        # From UINT_8 and INT_8 on, one for each doubling.
        converted = (15 if is_signed else 11) + (8, 16, 32, 64).index(bits)
    return ParquetType(physical, width, size, _arrow_integer(bits, is_signed), convert, logical, converted)


def _time(is_point: bool, unit: str, count: int) -> ParquetType:
    plain = ParquetType(Physical.INT64, 8, 8, _arrow_integer(64, True))
    found = _TICKS if (unit, count) == ("ns", 100) else _UNITS.get(unit)
    if found is None:
        return plain
    target, factor, divisor = found
    # NumPy counts in multiples of a unit, Parquet does not: ``M8[7D]`` becomes seven times as many days.
    if divisor == 1:
        factor *= count
    if is_point and target == "s":  # the coarsest unit of Parquet is milliseconds
        target, factor = "ms", 1000 * factor
    convert = None if factor == divisor == 1 else partial(_scaled, factor, divisor)
    number = ArrowNumber.TIMESTAMP if is_point else ArrowNumber.DURATION
    arrow = ArrowType(number, (("<h", ("s", "ms", "us", "ns").index(target)),))
    logical = _timestamp(target, False) if is_point else None
    return replace(plain, arrow=arrow, convert=convert, logical=logical, unit=target)


def _timestamp(unit: str, is_utc: bool) -> Value:
    number = {"ms": 1, "us": 2, "ns": 3}[unit]
    return struct({8: struct({1: thrift.boolean(is_utc), 2: struct({number: struct({})})})})


def _cast(source: str, target: str, raw: bytes) -> Any:
    return np.frombuffer(raw, source).astype(target).data.cast("B")


def _scaled(factor: int, divisor: int, raw: bytes) -> Any:
    """Convert times to another unit, rounded down. NumPy's "not a time" is unchanged."""
    times: NDArray[Any] = np.frombuffer(raw, "<i8")
    missing = times == np.iinfo("<i8").min
    # NumPy would wrap silently, and a date in the year 10000 would become one in the past.
    limit = ((1 << 63) - 1) // factor
    if factor > 1 and ((times > limit) | (times < -limit) & ~missing).any():
        raise Damaged("has a time that does not fit into 64 bits of the unit that Parquet has")
    scaled = times // divisor if divisor > 1 else np.where(missing, 0, times) * factor
    scaled[missing] = np.iinfo("<i8").min
    return scaled.astype("<i8", copy=False).data.cast("B")
