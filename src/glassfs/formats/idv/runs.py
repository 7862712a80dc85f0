"""Integers and strings as stored, the types of columns, and runs: values of one type in a block, decoded by range.

Any thread may use this module.

A run is all values of a block of single values, or all stored elements of a block of vectors. Decoding a range takes
memory in proportion to the range. Texts are converted as a whole before the first one is shown. Facts:
docs/formats/idv.md §1, §7, §8.1 to §8.3, §8.5.

A codec is a name with parameters and may be nested, such as a vector of keys of UInt32. Unknown or malformed codecs
raise Damaged without a part; the caller adds the name of the column.
"""

from __future__ import annotations

import codecs
import io
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.codec import leb128
from glassfs.content import Data, Stream
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np

EPOCH = 621_355_968_000_000_000
"""1970-01-01, in ticks of 100 ns since 0001-01-01."""
NO_TIME = -(1 << 63)
LONGEST_TEXT = 24 << 20
"""UTF-16 units of texts that are shown together."""
TEXT_PIECE = 64 << 10
"""Bytes of text that are converted at a time, and texts whose ends are checked at a time."""

Take = Callable[[int], bytes]
"""Returns the next bytes, as many as asked for, or raises Damaged."""


def varint(take: Take, bits: int = 64) -> int:
    """Read an unsigned variable-length integer."""
    try:
        return leb128.read(lambda: take(1)[0], bits)
    except leb128.TooLong as error:
        raise Damaged(str(error)) from error


def string(take: Take) -> bytes:
    """Read a length-prefixed string, normally UTF-8."""
    return take(varint(take, 31))  # as .NET reads the length


def stored_codec(take: Take) -> tuple[bytes, bytes]:
    """Read a codec: its name and parameters."""
    return string(take), take(varint(take))


def shown(name: bytes) -> str:
    """Return a name as quoted in messages."""
    return repr(name[:80].decode("utf-8", "replace"))


class Block(NamedTuple):
    """The decompressed bytes of a block, readable in any range. Messages name ``source`` and ``part``."""

    data: Data
    size: int
    rows: int
    source: str
    part: str
    cache: BlockCache
    key: tuple[Hashable, ...]
    """Identifies the block in the cache."""

    def read(self, offset: int, size: int) -> bytearray:
        self.demand(offset + size)
        buffer = bytearray(size)
        self.data.read_into(memoryview(buffer), offset)
        return buffer

    def integers(self, offset: int, count: int, dtype: str = "<i4") -> NDArray[Any]:
        return np.frombuffer(self.read(offset, count * np.dtype(dtype).itemsize), dtype)

    def integer(self, offset: int) -> int:
        """Return the signed 32-bit integer at ``offset``."""
        return int.from_bytes(self.read(offset, 4), "little", signed=True)

    def demand(self, end: int) -> None:
        """Raise Damaged if the block ends before ``end``."""
        if end > self.size:
            raise self.damage(f"has {self.size} bytes, but its values need {end}")

    def damage(self, reason: str) -> Damaged:
        return Damaged(reason, self.source, self.part)


class ValueRun:
    """``total`` values of one item codec at offset ``base`` of a block. This base class: values shown as stored."""

    fill: Any = 0

    def __init__(self, item: Item, block: Block, base: int, total: int) -> None:
        block.demand(base + self.stored_size(item, total))
        self.item = item
        self.block = block
        self.base = base
        self.total = total

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        """Return the bytes of a run of ``count`` values, or the least it can have."""
        return count * item.width

    def values(self, first: int, count: int) -> NDArray[Any]:
        """Return values ``[first, first + count)`` as shown, ``item.width`` bytes each."""
        return self.block.integers(self.base + first * self.item.width, count, self.item.unit)

    def filled(self, count: int) -> NDArray[Any]:
        """Return ``count`` copies of the value of elements that are not stored."""
        return np.zeros(count, self.item.unit) if self.fill == 0 else np.full(count, self.fill, self.item.unit)


class BitRun(ValueRun):
    """One bit per value, lowest bit first."""

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return -(-count // 8)

    def values(self, first: int, count: int) -> NDArray[Any]:
        start, skipped = divmod(first, 8)
        packed = self.block.integers(self.base + start, -(-(skipped + count) // 8), "u1")
        bits: NDArray[Any] = np.unpackbits(packed, count=skipped + count, bitorder="little")
        return bits[skipped:]


class OldBits(BitRun):
    """Two bits per value, 16 values per 32-bit word: 0 false, 1 true, 2 missing, which ML.NET reads as false."""

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return 4 * -(-count // 16)

    def values(self, first: int, count: int) -> NDArray[Any]:
        pairs = super().values(2 * first, 2 * count).reshape(-1, 2)
        if pairs.all(axis=1).any():
            raise self.block.damage("has a boolean that is not false, true or missing")
        is_true: NDArray[Any] = pairs[:, 0] == 1
        return is_true


class Times(ValueRun):
    """Ticks since the year 1, shown as ticks since 1970. The most negative integer is a missing value."""

    fill = -EPOCH

    def values(self, first: int, count: int) -> NDArray[Any]:
        ticks = self.block.integers(self.base + first * 8, count, "<i8")
        return _since_1970(self.block, ticks, ticks == NO_TIME)


class ZonedTimes(ValueRun):
    """Offsets in minutes followed by local ticks, shown as UTC."""

    fill = -EPOCH

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return count * 10

    def values(self, first: int, count: int) -> NDArray[Any]:
        minutes = self.block.integers(self.base + 2 * first, count, "<i2").astype(np.int64)
        local = self.block.integers(self.base + 2 * self.total + 8 * first, count, "<i8")
        is_missing = (local == NO_TIME) | (minutes == -(1 << 15))
        if (abs(minutes[~is_missing]) > 840).any():
            raise self.block.damage("has a time zone more than 840 minutes from UTC")
        _since_1970(self.block, local, is_missing)  # local times have the same limits
        # Missing values are set to zero first: arithmetic with the most negative number would overflow.
        utc = np.where(is_missing, 0, local) - np.where(is_missing, 0, minutes) * 600_000_000
        return _since_1970(self.block, utc, is_missing)


class ZoneOffsets(ZonedTimes):
    """The offsets of zoned times, after the same checks."""

    fill = 0

    def values(self, first: int, count: int) -> NDArray[Any]:
        super().values(first, count)
        return self.block.integers(self.base + 2 * first, count, "<i2")


def _since_1970(block: Block, ticks: NDArray[Any], is_missing: NDArray[Any]) -> NDArray[Any]:
    if (((ticks < 0) | (ticks > 3_155_378_975_999_999_999)) & ~is_missing).any():
        raise block.damage("has a time outside the years 1 to 9999")
    return np.where(is_missing, NO_TIME, np.where(is_missing, 0, ticks) - EPOCH)


class Texts(ValueRun):
    """The ends of texts, and one string with all of them. Missing texts are None.

    Ends count UTF-16 units, and the string is UTF-8: so the cache keeps it in UTF-16 as well. Invalid bytes are shown
    as U+FFFD. If two texts split a surrogate pair, each gets a lone surrogate.
    """

    fill = ""

    def __init__(self, item: Item, block: Block, base: int, total: int) -> None:
        super().__init__(item, block, base, total)
        if block.integer(base) != total:
            raise block.damage(f"declares {block.integer(base)} texts, but {total} are expected")
        position = base + 4 + 4 * total

        def take(size: int) -> bytes:
            nonlocal position
            position += size
            return bytes(block.read(position - size, size))

        try:
            size = varint(take, 31)
        except Damaged as error:
            raise error.at(block.source, block.part) from error
        self._start, self._end = position, position + size
        block.demand(self._end)
        last = self._check_ends()
        make = partial(_as_utf16, block, self._start, self._end, last)
        self._units = Stream(block.cache, (*block.key, "texts"), make, size=2 * last)
        # No text is shown before all were checked: the last unit is there when the whole string has been converted.
        if last:
            self._units.read(2 * last - 2, 2)
        elif size:
            raise _wrong_end(block)

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return 5 + 4 * count

    @property
    def is_utf8(self) -> bool:
        """Whether the string is valid UTF-8."""
        stored = _stored(self.block, self._start, self._end)
        try:
            return all(text is not None for text in codecs.iterdecode(stored, "utf-8"))
        except UnicodeDecodeError:
            return False

    def values(self, first: int, count: int) -> NDArray[Any]:
        texts = np.empty(count, object)
        if count:
            stored = self.block.integers(self.base + 4 + 4 * first, count, "<u4")
            begin = self._start_of(first)
            bounds = [0, *((stored & 0x7FFFFFFF).astype(np.int64) - begin).tolist()]
            self._demand_short(bounds[-1])
            raw = self._units.read(2 * begin, 2 * bounds[-1])
            text = raw.decode("utf-16-le", "surrogatepass")
            # As many characters as units: none is a pair of surrogates, and slices of the text are right.
            is_plain = len(text) == bounds[-1]
            texts[:] = [
                text[a:b] if is_plain else raw[2 * a : 2 * b].decode("utf-16-le", "surrogatepass")
                for a, b in pairwise(bounds)
            ]
            texts[stored >> 31 != 0] = None
        return texts

    def cost(self, first: int, count: int) -> int:
        """Return the peak memory of ``values``. Raises TooLarge if the texts are too long."""
        units = self._start_of(first + count) - self._start_of(first)
        self._demand_short(units)
        return 160 * count + 16 * units  # while text is split

    def _demand_short(self, units: int) -> None:
        if units > LONGEST_TEXT:
            raise TooLarge(f"has texts of more than {LONGEST_TEXT} characters", self.block.source, self.block.part)

    def _start_of(self, number: int) -> int:
        """Return where a text begins, or where the last one ends, in UTF-16 units."""
        return self.block.integer(self.base + 4 * number) & 0x7FFFFFFF if number else 0

    def _check_ends(self) -> int:
        """Return the last end. Raises Damaged if ends decrease or a missing text is not empty."""
        last = 0
        for first in range(0, self.total, TEXT_PIECE):
            stored = self.block.integers(self.base + 4 + 4 * first, min(TEXT_PIECE, self.total - first), "<u4")
            lengths = np.diff((stored & 0x7FFFFFFF).astype(np.int64), prepend=last)
            if (lengths < 0).any() or lengths[stored >> 31 != 0].any():
                raise self.block.damage("has decreasing text ends, or a missing text that is not empty")
            last = int(stored[-1] & 0x7FFFFFFF)
        return last


def _stored(block: Block, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, TEXT_PIECE):
        yield bytes(block.read(position, min(TEXT_PIECE, end - position)))


def _as_utf16(block: Block, start: int, end: int, last: int) -> Iterator[bytes]:
    """Yield a string in UTF-16. Raises Damaged if it has not ``last`` units."""
    units = 0
    for text in codecs.iterdecode(_stored(block, start, end), "utf-8", "replace"):
        raw = text.encode("utf-16-le")
        units += len(raw) // 2
        if units > last:
            break
        yield raw
    if units != last:
        raise _wrong_end(block)


def _wrong_end(block: Block) -> Damaged:
    return block.damage("has texts that do not end with their string")


@dataclass(frozen=True)
class Item:
    """A primitive type: its ML.NET name, NumPy dtype (``""`` for text), and the runs that it is stored in.

    A value is ``width`` bytes: an array of shape ``tail`` of the dtype. ``parts`` are the items that show it where one
    array cannot, each with its ``label``. ``count`` is the number of values of a key.
    """

    type_name: str
    dtype: str
    width: int
    form: type[ValueRun] = ValueRun
    tail: tuple[int, ...] = ()
    label: str = ""
    parts: tuple[Item, ...] = ()
    count: int | None = None

    @property
    def is_text(self) -> bool:
        return self.form is Texts

    @property
    def unit(self) -> str:
        """The dtype for moving values unchanged."""
        if self.is_text:
            return "O"
        return "V16" if self.width == 16 else f"<i{self.width}"

    @property
    def arrays(self) -> tuple[Item, ...]:
        """The items to show, one array each."""
        return self.parts or (self,)


DENSE_SLOTS = 65_536
"""Larger vectors of known size are shown as their stored elements."""
_DATE_TIME = Item("DateTime", "<M8[100ns]", 8, Times)
_TIME_SPAN = Item("TimeSpan", "<m8[100ns]", 8)
_UTC = Item("DateTimeOffset", "<M8[100ns]", 8, ZonedTimes)
_ZONED = replace(_UTC, parts=(_UTC, Item("DateTimeOffset", "<i2", 2, ZoneOffsets, label=".offset_minutes")))
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
    b"Boolean": Item("Boolean", "|b1", 1, BitRun),
    b"TextSpan": Item("String", "", 0, Texts),
    b"DvBool": Item("Boolean", "|b1", 1, OldBits),
    b"DvTimeSpan": _TIME_SPAN,
    b"DvDateTime": _DATE_TIME,
    b"DvDateTimeZone": _ZONED,
}
_KEY_TYPES = (b"Byte", b"UInt16", b"UInt32", b"UInt64")


class Codec(NamedTuple):
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
    codec = Codec(_item(*stored_codec(take)), _dimensions(take, len(parameters)))
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
    codec, parameters = stored_codec(take)
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
