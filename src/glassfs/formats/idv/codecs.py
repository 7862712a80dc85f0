"""Value codecs: the types of columns (docs/formats/idv.md §7).

A codec is a name with parameters and may be nested, such as a vector of keys of UInt32. Unknown or malformed codecs
raise Damaged without a part; the caller adds the name of the column.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace

from glassfs.errors import Damaged
from glassfs.formats.idv import runs
from glassfs.formats.idv.runs import Item, Take, shown

DENSE_SLOTS = 65_536
"""Larger vectors of known size are shown as their stored elements."""


_DATE_TIME = Item("DateTime", "<M8[100ns]", 8, runs.Times)
_TIME_SPAN = Item("TimeSpan", "<m8[100ns]", 8)
_UTC = Item("DateTimeOffset", "<M8[100ns]", 8, runs.ZonedTimes)
_ZONED = replace(_UTC, parts=(_UTC, Item("DateTimeOffset", "<i2", 2, runs.ZoneOffsets, label=".offset_minutes")))
INT32 = Item("Int32", "<i4", 4)

_ITEMS = {
    b"SByte": Item("SByte", "|i1", 1),
    b"Byte": Item("Byte", "|u1", 1),
    b"Int16": Item("Int16", "<i2", 2),
    b"UInt16": Item("UInt16", "<u2", 2),
    b"Int32": INT32,
    b"UInt32": Item("UInt32", "<u4", 4),
    b"Int64": Item("Int64", "<i8", 8),
    b"UInt64": Item("UInt64", "<u8", 8),
    b"Single": Item("Single", "<f4", 4),
    b"Double": Item("Double", "<f8", 8),
    b"TimeSpan": _TIME_SPAN,
    b"DateTime": _DATE_TIME,
    b"DateTimeOffset": _ZONED,
    b"DataViewRowId": Item("DataViewRowId", "<u8", 16, tail=(2,)),
    b"Boolean": Item("Boolean", "|b1", 1, runs.BitRun),
    b"TextSpan": Item("String", "", 0, runs.Texts),
    b"DvBool": Item("Boolean", "|b1", 1, runs.OldBits),
    b"DvTimeSpan": _TIME_SPAN,
    b"DvDateTime": _DATE_TIME,
    b"DvDateTimeZone": _ZONED,
}
_KEY_TYPES = (b"Byte", b"UInt16", b"UInt32", b"UInt64")


@dataclass(frozen=True)
class Codec:
    """A column's type: single values (``dimensions`` is None) or vectors, in which dimension 0 is unknown."""

    item: Item
    dimensions: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The slots of a vector, 0 if they vary by row; 1 for single values."""
        return 1 if self.dimensions is None else math.prod(self.dimensions)

    @property
    def type_name(self) -> str:
        """The type as ML.NET prints it."""
        name = self.item.type_name
        if self.dimensions is None:
            return name
        if self.dimensions == (0,):
            return f"Vector<{name}>"
        return f"Vector<{name}, {', '.join(str(size or '*') for size in self.dimensions)}>"


def describe(name: bytes, parameters: bytes) -> Codec:
    """Return the codec with this name and parameters. Raises Damaged if it is unknown or its parameters are wrong."""
    if name != b"VBuffer":
        return Codec(_item(name, parameters))
    take = _taker(parameters)
    codec = Codec(_item(*runs.codec(take)), _dimensions(take, len(parameters)))
    if take(-1):
        raise Damaged(f"has parameters that its codec {shown(name)} does not take")
    return codec


def _dimensions(take: Take, size: int) -> tuple[int, ...]:
    rank = _integer(take, 4)
    if not 0 <= rank <= min(1024, size // 4):
        raise Damaged(f"has vectors of {rank} dimensions")
    dimensions = tuple(_integer(take, 4) for _ in range(rank)) or (0,)
    if min(dimensions) < 0 or math.prod(dimensions) >= 1 << 31:
        raise Damaged(f"has vectors of impossible dimensions {list(dimensions[:8])}")
    return dimensions


def _item(name: bytes, parameters: bytes) -> Item:
    if name in (b"Key", b"Key2"):
        return _key(name, _taker(parameters))
    item = _ITEMS.get(name)
    if item is None:
        raise Damaged(f"unknown codec: {shown(name)}")
    if parameters:
        raise Damaged(f"has parameters that its codec {shown(name)} does not take")
    return item


def _key(name: bytes, take: Take) -> Item:
    codec, parameters = runs.codec(take)
    if codec not in _KEY_TYPES or parameters:
        raise Damaged(f"has keys of {shown(codec)}, which is not an unsigned integer")
    item = _ITEMS[codec]
    most = (1 << 8 * item.width) - 1
    if name == b"Key2":
        count = _integer(take, 8, signed=False)
    else:
        is_contiguous, minimum, count = _integer(take, 1), _integer(take, 8), _integer(take, 4)
        if is_contiguous != 1 or minimum != 0:
            raise Damaged("has keys that do not count up from 0")
        count = count or most
    if not 0 < count <= most or take(-1):
        raise Damaged(f"has keys of {count} values, which do not fit {shown(codec)}")
    return replace(item, type_name=f"Key<{item.type_name}, 0-{count - 1}>", count=count)


def _taker(parameters: bytes) -> Take:
    """Return what reads parameters in sequence; for a size of -1 it reads the rest."""
    stream = io.BytesIO(parameters)

    def take(size: int) -> bytes:
        taken = stream.read(size)
        if len(taken) < size:
            raise Damaged("has a codec with truncated parameters")
        return taken

    return take


def _integer(take: Take, size: int, signed: bool = True) -> int:
    return int.from_bytes(take(size), "little", signed=signed)
