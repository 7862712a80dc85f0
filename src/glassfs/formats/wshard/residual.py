"""Residual blocks: one bit per value, column by column (docs/formats/wshard.md §12).

The size of a block decides which of three layouts it has, with the channel's width if known, and finally the lengths
that a prefixed block repeats.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from glassfs.content import Data, Location, Made
from glassfs.content.data import SizedData
from glassfs.errors import Damaged
from glassfs.lazy import np

NAME = re.compile(rb"residual/(.+)/sign2nddiff", re.DOTALL)
"""Of a residual block, with that of its channel."""
MOST_COLUMNS = 1 << 16


class BitLayout(NamedTuple):
    """``columns`` of ``steps`` bits, each after ``prefix`` bytes that hold its length in bytes."""

    steps: int
    columns: int
    prefix: int

    @property
    def column_size(self) -> int:
        return -(-self.steps // 8)

    @property
    def size(self) -> int:
        return self.columns * (self.prefix + self.column_size)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.steps,) if self.columns == 1 else (self.steps, self.columns)


def layout_of(data: Data, steps: int, width: int | None) -> BitLayout | None:
    """Return the layout of a block, or None if none fits its size.

    Reads the first lengths only if both the plain and the prefixed layout fit; this may raise Damaged.
    """
    # One column without a prefix is what the specification describes; the other two layouts are those of writers. A
    # size that two layouts explain is decided by the lengths that a prefixed block repeats.
    column_size = -(-steps // 8)
    fitting = [BitLayout(steps, 1, 0)] if data.size == column_size else []
    for prefix in () if fitting else (4, 0):
        columns = data.size // (column_size + prefix or 1) if width is None else width
        layout = BitLayout(steps, columns, prefix)
        if layout.size == data.size and 0 < columns <= MOST_COLUMNS:
            fitting.append(layout)
    if len(fitting) > 1 and not _has_lengths(data, fitting[0]):
        return fitting[1]
    return fitting[0] if fitting else None


def _has_lengths(data: Data, layout: BitLayout) -> bool:
    """Return whether the first columns begin with their length."""
    size = layout.column_size
    places = range(0, min(layout.columns, 16) * (layout.prefix + size), layout.prefix + size)
    return all(int.from_bytes(data.read(place, layout.prefix), "little") == size for place in places)


class UnpackedBits(SizedData, Made):
    """The bits as bytes 0 and 1, row by row: ``steps`` rows of ``columns``."""

    unit: int = 1

    def __init__(self, data: Data, layout: BitLayout) -> None:
        super().__init__(layout.steps * layout.columns)
        self.unit = layout.columns
        self._data = data
        self._layout = layout

    def location(self) -> Location | None:
        return self._data.location()

    def make(self, first: int, count: int) -> memoryview:
        _, columns, prefix = self._layout
        size = self._layout.column_size
        start, end = first // 8, -(-(first + count) // 8)
        skipped = first - start * 8
        rows = np.empty((count, columns), np.uint8)
        for column in range(columns):
            place = column * (prefix + size)
            if prefix and int.from_bytes(self._data.read(place, prefix), "little") != size:
                raise Damaged(f"column {column} of a residual is not {size} bytes long")
            packed = np.frombuffer(self._data.read(place + prefix + start, end - start), np.uint8)
            rows[:, column] = np.unpackbits(packed, bitorder="little")[skipped : skipped + count]
        return rows.reshape(-1).data
