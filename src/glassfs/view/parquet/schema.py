"""The Parquet and Arrow types of NumPy's dtypes, and the footer of a file: the schema, and the positions of the columns
of each group of rows. The docstring of ``glassfs.view.parquet`` has the table of types.

The length of the footer follows from the names, the types and the number of groups: all other values have a fixed
number of bytes (https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).

It may have an Arrow schema, for types that Parquet lacks: an encapsulated message of Arrow's IPC format with a
FlatBuffer (https://arrow.apache.org/docs/format/Columnar.html, Schema.fbs, Message.fbs).

Pure functions. A conversion raises Damaged if a value has no counterpart.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from struct import calcsize, pack, pack_into
from typing import Any, NamedTuple, TypeAlias

from glassfs.codec.thrift import TypeCode, Value, binary, boolean, i8, i32, i64, sequence, struct
from glassfs.content import Converted, Data
from glassfs.errors import Damaged
from glassfs.lazy import NDArray, np
from glassfs.lru import cached_if_short
from glassfs.sizes import PIECE

Metadata: TypeAlias = tuple[tuple[bytes, bytes], ...]

_DIGITS = 9
CREATED_BY = b"glassfs"
_LIST = 3
"""The older equivalent of the logical type LIST."""
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


@dataclass(frozen=True, eq=False)
class ParquetType:
    """Values of one type. ``width`` is their size in the file, ``stored`` in the array; a BOOLEAN is a bit.

    ``convert`` makes values of the file from values of the array; None means that they are the same. ``logical`` is
    Parquet's logical type, ``converted`` the older equivalent. ``unit`` is that of times, else empty.
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
        logical = struct({10: struct({1: i8(bits), 2: boolean(is_signed)})})
        # From UINT_8 and INT_8 on, one for each doubling.
        converted = (15 if is_signed else 11) + (8, 16, 32, 64).index(bits)
    return ParquetType(physical, width, size, _arrow_integer(bits, is_signed), convert, logical, converted)


def _time(is_point: bool, unit: str, count: int) -> ParquetType:
    plain = ParquetType(Physical.INT64, 8, 8, _arrow_integer(64, True))
    divisor = 1
    if (unit, count) == ("ns", 100):  # 64 bits of nanoseconds do not hold the years 1 to 9999 of .NET
        target, factor, divisor = "us", 1, 10
    elif unit in ("ns", "us", "ms"):
        target, factor = unit, count  # NumPy counts in multiples of a unit, Parquet does not
    elif unit in ("s", "m", "h", "D", "W"):
        target, factor = "s", int(np.array(count, f"<m8[{unit}]") // np.array(1, "<m8[s]"))
    else:  # units of the calendar have no length
        return plain
    if is_point and target == "s":  # the coarsest unit of Parquet is milliseconds
        target, factor = "ms", 1000 * factor
    convert = None if factor == divisor == 1 else partial(_scaled, factor, divisor)
    number = ArrowNumber.TIMESTAMP if is_point else ArrowNumber.DURATION
    arrow = ArrowType(number, (("<h", ("s", "ms", "us", "ns").index(target)),))
    logical = _timestamp(target, False) if is_point else None
    return replace(plain, arrow=arrow, convert=convert, logical=logical, unit=target)


def _timestamp(unit: str, is_utc: bool) -> Value:
    number = {"ms": 1, "us": 2, "ns": 3}[unit]
    return struct({8: struct({1: boolean(is_utc), 2: struct({number: struct({})})})})


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


# The footer.


class Repetition(IntEnum):
    """The enum ``FieldRepetitionType``."""

    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


class SchemaColumn(NamedTuple):
    """A column in the schema: values in ``lists`` lists around each other."""

    name: bytes
    kind: ParquetType
    is_nullable: bool = False
    lists: int = 0

    @property
    def path(self) -> tuple[bytes, ...]:
        """Its name, and the names below it in lists."""
        return (self.name, *(b"list", b"element") * self.lists)


class ColumnChunk(NamedTuple):
    """The position of a column of a group of rows, its size in bytes and its number of values, nulls counted."""

    start: int
    size: int
    entries: int


_ENCODINGS = sequence(TypeCode.I32, [i32(Encoding.PLAIN), i32(Encoding.RLE)])


def length(fields: Sequence[SchemaColumn], groups: int, metadata: Metadata = ()) -> int:
    """Return the length of the footer of a file with ``groups`` groups."""
    some = group(fields, 0, [ColumnChunk(0, 0, 0)] * len(fields))
    return len(footer(fields, 0, [some] * groups, metadata))


def footer(fields: Sequence[SchemaColumn], rows: int, groups: Sequence[Value], metadata: Metadata = ()) -> bytes:
    """Return the footer. ``groups`` are results of ``group``, ``metadata`` the keys and values for other programs."""
    written = {
        1: i32(2),
        2: sequence(TypeCode.STRUCT, list(_schema(fields))),
        3: i64(rows, _DIGITS),
        4: sequence(TypeCode.STRUCT, groups),
    }
    if any(field.kind.arrow.is_arrow_only for field in fields):
        # Parquet has no durations and no names of zones. pyarrow and polars look into this schema, others see integers.
        message = base64.b64encode(_arrow_message(fields))
        metadata = (*metadata, (b"ARROW:schema", message))
    if metadata:
        written[5] = sequence(TypeCode.STRUCT, [struct({1: binary(key), 2: binary(value)}) for key, value in metadata])
    written[6] = binary(CREATED_BY)
    return struct(written).payload


def _schema(fields: Sequence[SchemaColumn]) -> Iterator[Value]:
    yield struct({4: binary(b"schema"), 5: i32(len(fields))})
    for field in fields:
        repetition = Repetition.OPTIONAL if field.is_nullable else Repetition.REQUIRED
        *above, own = field.path
        for name in above[::2]:
            # A list is a group with a repeated group in it, which has the element: readers
            # tell a null list from an empty one by the outer group.
            lists = struct({3: struct({})})
            yield struct({3: i32(repetition), 4: binary(name), 5: i32(1), 6: i32(_LIST), 10: lists})
            yield struct({3: i32(Repetition.REPEATED), 4: binary(b"list"), 5: i32(1)})
        kind = field.kind
        element = {1: i32(kind.physical)}
        if kind.physical == Physical.FIXED:
            element[2] = i32(kind.width)
        element[3] = i32(repetition)
        element[4] = binary(own)
        if kind.converted is not None:
            element[6] = i32(kind.converted)
        if kind.logical is not None:
            element[10] = kind.logical
        yield struct(element)


def group(fields: Sequence[SchemaColumn], rows: int, chunks: Sequence[ColumnChunk]) -> Value:
    """Return a group of ``rows`` rows, with a chunk for each field."""
    columns = [_chunk(field, chunk) for field, chunk in zip(fields, chunks, strict=True)]
    size = sum(chunk.size for chunk in chunks)
    return struct({1: sequence(TypeCode.STRUCT, columns), 2: i64(size, _DIGITS), 3: i64(rows, _DIGITS)})


def _chunk(field: SchemaColumn, chunk: ColumnChunk) -> Value:
    metadata = {
        1: i32(field.kind.physical),
        2: _ENCODINGS,
        3: sequence(TypeCode.BINARY, [binary(name) for name in field.path]),
        4: i32(0),
        5: i64(chunk.entries, _DIGITS),
        6: i64(chunk.size, _DIGITS),
        7: i64(chunk.size, _DIGITS),
        9: i64(chunk.start, _DIGITS),
    }
    return struct({2: i64(chunk.start, _DIGITS), 3: struct(metadata)})


def _arrow_message(fields: Sequence[SchemaColumn]) -> bytes:
    """Return the message for the schema."""
    schema = _table({0: ("<h", 0), 1: _vector([_arrow_field(field) for field in fields])})
    version, header_type = 4, 1  # V5, Schema
    root = _table({0: ("<h", version), 1: ("<B", header_type), 2: schema, 3: ("<q", 0)})
    buffer = _aligned(pack("<I4x", 8) + root)
    return b"\xff\xff\xff\xff" + pack("<I", len(buffer)) + buffer


def _arrow_field(field: SchemaColumn) -> bytes:
    *above, own = field.path

    def made(name: bytes, kind: ArrowType, *children: bytes) -> bytes:
        scalars = [_string(scalar) if isinstance(scalar, bytes) else scalar for scalar in kind.scalars]
        return _table({
            0: _string(name), 1: ("<B", field.is_nullable), 2: ("<B", kind.number), 3: _table(dict(enumerate(scalars))),
            5: _vector(children),
        })

    found = made(own, field.kind.arrow)
    for name in reversed(above[::2]):
        found = made(name, ArrowType(ArrowNumber.LIST), found)
    return found


# What a FlatBuffer refers to is at a distance from the reference. So each table, vector and string is bytes that begin
# with it, and that may stand at any multiple of eight: those that it refers to follow it.


def _table(slots: Mapping[int, Scalar | bytes]) -> bytes:
    """Return a table of scalars and of references, then its vtable, then what it refers to."""
    places, size = [0] * (max(slots, default=-1) + 1), 4
    # Slots stand in the table in the order of the mapping, each at a multiple of its own width.
    for slot, value in slots.items():
        width = 4 if isinstance(value, bytes) else calcsize(value[0])
        size += -size % width
        places[slot] = size
        size += width
    made = bytearray(_aligned(bytes(size)))
    pack_into("<i", made, 0, -len(made))
    made += pack(f"<HH{len(places)}H", 4 + 2 * len(places), size, *places)
    for slot, value in slots.items():
        if isinstance(value, bytes):
            _refer(made, places[slot], value)
        else:
            pack_into(value[0], made, places[slot], value[1])
    return bytes(made)


def _vector(children: Sequence[bytes]) -> bytes:
    made = bytearray(pack("<I", len(children)) + bytes(4 * len(children)))
    for number, child in enumerate(children):
        _refer(made, 4 + 4 * number, child)
    return bytes(made)


def _string(text: bytes) -> bytes:
    return pack("<I", len(text)) + text + b"\0"


def _refer(made: bytearray, place: int, target: bytes) -> None:
    """Append what is referred to, and write its distance at a place."""
    made += bytes(-len(made) % 8)
    pack_into("<I", made, place, len(made) - place)
    made += target


def _aligned(made: bytes) -> bytes:
    return made + bytes(-len(made) % 8)
