"""Runs: values of one item codec in a block, decoded by range (docs/formats/idv.md §8.1 to §8.3, §8.5).

A run is all values of a block of single values, or all stored elements of a block of vectors. Decoding a range takes
memory in proportion to the range. Texts need one pass over the block before the first value. Any thread may use a run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassfs.content import Data
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.idv import wire
from glassfs.sizes import PIECE

if TYPE_CHECKING:
    from numpy.typing import NDArray

EPOCH = 621_355_968_000_000_000
"""1970-01-01, in ticks of 100 ns since 0001-01-01."""
NO_TIME = -(1 << 63)
LONGEST_TEXT = 24 << 20
"""UTF-16 units of texts that are shown together."""
TEXT_PIECE = 64 << 10
"""Bytes of text between two places of which the number of units is kept; texts whose ends are checked at a time."""


@dataclass(frozen=True, slots=True)
class Block:
    """The decompressed bytes of a block, readable in any range. Messages name ``source`` and ``part``."""

    data: Data
    size: int
    rows: int
    source: str
    part: str

    def read(self, offset: int, size: int) -> bytearray:
        self.demand(offset + size)
        buffer = bytearray(size)
        self.data.read_into(memoryview(buffer), offset)
        return buffer

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.demand(offset + len(buffer))
        self.data.read_into(buffer, offset)

    def integers(self, offset: int, count: int, dtype: str = "<i4") -> NDArray[Any]:
        import numpy as np

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

    @property
    def weight(self) -> int:
        """The approximate bytes of memory used."""
        return 512

    def filled(self, count: int) -> NDArray[Any]:
        """Return ``count`` copies of the value of elements that are not stored."""
        import numpy as np

        return np.zeros(count, self.item.unit) if self.fill == 0 else np.full(count, self.fill, self.item.unit)


class PackedBits(ValueRun):
    """One bit per value, lowest bit first."""

    is_plain = False

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return -(-count // 8)

    def values(self, first: int, count: int) -> NDArray[Any]:
        import numpy as np

        start, skipped = divmod(first, 8)
        packed = self.block.integers(self.base + start, -(-(skipped + count) // 8), "u1")
        bits: NDArray[Any] = np.unpackbits(packed, count=skipped + count, bitorder="little")
        return bits[skipped:]


class OldBits(ValueRun):
    """Two bits per value, 16 values per 32-bit word: 0 false, 1 true, 2 missing, which ML.NET reads as false."""

    is_plain = False

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return 4 * -(-count // 16)

    def values(self, first: int, count: int) -> NDArray[Any]:
        import numpy as np

        start, skipped = divmod(first, 4)
        packed = self.block.integers(self.base + start, -(-(skipped + count) // 4), "u1")
        pairs = (packed[:, None] >> np.array([0, 2, 4, 6], "u1") & 3).reshape(-1)[skipped : skipped + count]
        if (pairs == 3).any():
            raise self.block.damage("has a boolean that is not false, true or missing")
        is_true: NDArray[Any] = pairs == 1
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
        import numpy as np

        minutes = self._minutes(first, count).astype(np.int64)
        local = self.block.integers(self.base + 2 * self.total + 8 * first, count, "<i8")
        is_missing = (local == NO_TIME) | (minutes == -(1 << 15))
        if (abs(minutes[~is_missing]) > 840).any():
            raise self.block.damage("has a time zone more than 840 minutes from UTC")
        _check_ticks(self.block, local, is_missing)
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


def _check_ticks(block: Block, ticks: NDArray[Any], is_missing: NDArray[Any]) -> None:
    if (((ticks < 0) | (ticks > 3_155_378_975_999_999_999)) & ~is_missing).any():
        raise block.damage("has a time outside the years 1 to 9999")


def _since_1970(block: Block, ticks: NDArray[Any], is_missing: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    _check_ticks(block, ticks, is_missing)
    return np.where(is_missing, NO_TIME, np.where(is_missing, 0, ticks) - EPOCH)


class Texts(ValueRun):
    """The ends of texts, and one string with all of them. Missing texts are None.

    Ends count UTF-16 units, so one pass over the string, a piece at a time, records the unit at which each piece
    starts. If two texts split a surrogate pair, each gets a lone surrogate.
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
            self._size = wire.varint(take, wire.STRING_BITS)
        except Damaged as error:
            raise error.at(block.source, block.part) from error
        self._start = position
        block.demand(self.end)
        self._piece_units, self._piece_bytes = array("q"), array("q")
        if self._check_ends() != self._measure():
            raise block.damage("has texts that do not end with their string")

    @staticmethod
    def stored_size(item: Item, count: int) -> int:
        return 5 + 4 * count

    @property
    def end(self) -> int:
        return self._start + self._size

    @property
    def weight(self) -> int:
        return 1024 + 2 * self._piece_units.itemsize * len(self._piece_units)

    @property
    def is_utf8(self) -> bool:
        """Whether the string is valid UTF-8. Invalid bytes are shown as U+FFFD."""
        for start, end in pairwise(self._piece_bytes):
            try:
                self.block.read(self._start + start, end - start).decode()
            except UnicodeDecodeError:
                return False
        return True

    def values(self, first: int, count: int) -> NDArray[Any]:
        import numpy as np

        texts = np.empty(count, object)
        if count:
            stored = self.block.integers(self.base + 4 + 4 * first, count, "<u4")
            bounds = [self._start_of(first), *(stored & 0x7FFFFFFF).tolist()]
            self._demand_short(bounds[-1] - bounds[0])
            texts[:] = self._between(bounds)
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
        import numpy as np

        last = 0
        for first in range(0, self.total, TEXT_PIECE):
            count = min(TEXT_PIECE, self.total - first)
            stored = self.block.integers(self.base + 4 + 4 * first, count, "<u4")
            lengths = np.diff((stored & 0x7FFFFFFF).astype(np.int64), prepend=last)
            if (lengths < 0).any() or lengths[stored >> 31 != 0].any():
                raise self.block.damage("has decreasing text ends, or a missing text that is not empty")
            last = int(stored[-1] & 0x7FFFFFFF)
        return last

    def _measure(self) -> int:
        """Return the string's length in UTF-16 units, and record where each piece starts."""
        position = units = 0
        while position < self._size:
            piece = self.block.read(self._start + position, min(TEXT_PIECE, self._size - position))
            if position + len(piece) < self._size:
                piece = piece[: _character_border(piece)]
            self._piece_units.append(units)
            self._piece_bytes.append(position)
            units += len(piece) if piece.isascii() else len(_utf16(piece.decode("utf-8", "replace"))) // 2
            position += len(piece)
        self._piece_units.append(units)
        self._piece_bytes.append(position)
        return units

    def _between(self, bounds: list[int]) -> list[str]:
        """Return the texts between successive ``bounds``, in UTF-16 units."""
        if bounds[-1] - bounds[0] > PIECE and len(bounds) > 2:
            middle = len(bounds) // 2
            return self._between(bounds[: middle + 1]) + self._between(bounds[middle:])
        if bounds[0] == bounds[-1]:
            return [""] * (len(bounds) - 1)
        piece = bisect_right(self._piece_units, bounds[0]) - 1
        end = bisect_left(self._piece_units, bounds[-1])
        start = self._piece_bytes[piece]
        raw = self.block.read(self._start + start, self._piece_bytes[end] - start)
        text = raw.decode("utf-8", "replace")
        begin = self._piece_units[piece]
        spans = pairwise(bounds)
        if len(text) == self._piece_units[end] - begin:
            return [text[a - begin : b - begin] for a, b in spans]
        units = _utf16(text)
        return [units[2 * (a - begin) : 2 * (b - begin)].decode("utf-16-le", "surrogatepass") for a, b in spans]


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _character_border(piece: bytearray) -> int:
    """Return where to cut ``piece`` without splitting a character."""
    for back in (1, 2, 3):
        if piece[-back] >= 0xC0:
            return len(piece) - back
        if piece[-back] < 0x80:
            break
    return len(piece)


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
