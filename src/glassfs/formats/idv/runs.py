"""Integers and strings as stored, and runs: values of one item codec in a block, decoded by range. Any thread.

A run is all values of a block of single values, or all stored elements of a block of vectors. Decoding a range takes
memory in proportion to the range. Texts are converted as a whole before the first one is shown. Facts:
docs/formats/idv.md §1, §8.1 to §8.3, §8.5.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

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


def codec(take: Take) -> tuple[bytes, bytes]:
    """Read a codec: its name and parameters."""
    return string(take), take(varint(take))


def shown(name: bytes) -> str:
    """Return a name as quoted in messages."""
    return repr(name[:80].decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Block:
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
    is_plain = True

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

    @property
    def end(self) -> int:
        """The offset in the block after the run."""
        return self.base + self.stored_size(self.item, self.total)

    def values(self, first: int, count: int) -> NDArray[Any]:
        """Return values ``[first, first + count)`` as shown, ``item.width`` bytes each."""
        return self.block.integers(self.base + first * self.item.width, count, self.item.unit)

    def filled(self, count: int) -> NDArray[Any]:
        """Return ``count`` copies of the value of elements that are not stored."""
        return np.zeros(count, self.item.unit) if self.fill == 0 else np.full(count, self.fill, self.item.unit)


class BitRun(ValueRun):
    """One bit per value, lowest bit first."""

    is_plain = False

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
    is_plain = False

    def values(self, first: int, count: int) -> NDArray[Any]:
        ticks = self.block.integers(self.base + first * 8, count, "<i8")
        return _since_1970(self.block, ticks, ticks == NO_TIME)


class ZonedTimes(ValueRun):
    """Offsets in minutes followed by local ticks, shown as UTC."""

    fill = -EPOCH
    is_plain = False

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return count * 10

    def values(self, first: int, count: int) -> NDArray[Any]:
        minutes = self._minutes(first, count).astype(np.int64)
        local = self.block.integers(self.base + 2 * self.total + 8 * first, count, "<i8")
        is_missing = (local == NO_TIME) | (minutes == -(1 << 15))
        if (abs(minutes[~is_missing]) > 840).any():
            raise self.block.damage("has a time zone more than 840 minutes from UTC")
        _since_1970(self.block, local, is_missing)  # local times have the same limits
        # Missing values are set to zero first: arithmetic with the most negative number would overflow.
        utc = np.where(is_missing, 0, local) - np.where(is_missing, 0, minutes) * 600_000_000
        return _since_1970(self.block, utc, is_missing)

    def _minutes(self, first: int, count: int) -> NDArray[Any]:
        return self.block.integers(self.base + 2 * first, count, "<i2")


class ZoneOffsets(ZonedTimes):
    """The offsets of zoned times, after the same checks."""

    fill = 0

    def values(self, first: int, count: int) -> NDArray[Any]:
        super().values(first, count)
        return self._minutes(first, count)


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
    is_plain = False

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
    def end(self) -> int:
        return self._end

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
            reason = f"has texts of more than {LONGEST_TEXT} characters"
            raise TooLarge(reason, self.block.source, self.block.part)

    def _start_of(self, number: int) -> int:
        """Return where a text begins, or where the last one ends, in UTF-16 units."""
        return self.block.integer(self.base + 4 * number) & 0x7FFFFFFF if number else 0

    def _check_ends(self) -> int:
        """Return the last end. Raises Damaged if ends decrease or a missing text is not empty."""
        last = 0
        for first in range(0, self.total, TEXT_PIECE):
            count = min(TEXT_PIECE, self.total - first)
            stored = self.block.integers(self.base + 4 + 4 * first, count, "<u4")
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
