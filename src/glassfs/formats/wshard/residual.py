"""Residual blocks: one bit per value, column after column (formats/wshard.md §12).

Nothing in the file says which of the three layouts a block has; its length decides, with the width of the channel
where that is known.
"""

from __future__ import annotations

from typing import NamedTuple

from glassfs.content import Data, Location
from glassfs.errors import Damaged

PREFIX, SUFFIX = b"residual/", b"/sign2nddiff"
MOST_COLUMNS = 1 << 16
AT_ONCE = 1 << 20
_LENGTH_SIZE = 4


class Layout(NamedTuple):
    """``columns`` of ``steps`` bits, each behind ``prefix`` bytes that hold its length in bytes."""

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


def channel_of(name: bytes) -> bytes | None:
    """The channel of a residual block, or None for other blocks."""
    if name.startswith(PREFIX) and name.endswith(SUFFIX) and len(name) > len(PREFIX) + len(SUFFIX):
        return name[len(PREFIX) : -len(SUFFIX)]
    return None


def layout_of(size: int, steps: int, width: int | None) -> Layout | None:
    """The one layout that gives a block of ``size`` bytes; None if there is none, or more than one."""
    if width is None:
        found = {Layout(steps, _columns(size, steps, prefix), prefix) for prefix in (0, _LENGTH_SIZE)}
    else:
        found = {Layout(steps, width, prefix) for prefix in (0, _LENGTH_SIZE)}
    single = Layout(steps, 1, 0)
    if single.size == size:
        return single
    fitting = [layout for layout in found if layout.size == size and 0 < layout.columns <= MOST_COLUMNS]
    return fitting[0] if len(fitting) == 1 else None


def _columns(size: int, steps: int, prefix: int) -> int:
    return size // (-(-steps // 8) + prefix or 1)


class UnpackedBits(Data):
    """The bits as bytes 0 and 1, row by row: ``steps`` rows of ``columns``."""

    __slots__ = ("_data", "_layout")

    def __init__(self, data: Data, layout: Layout) -> None:
        self._data = data
        self._layout = layout

    @property
    def size(self) -> int:
        return self._layout.steps * self._layout.columns

    def location(self) -> Location | None:
        return self._data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        columns = self._layout.columns
        at_once = max(1, AT_ONCE // columns)
        row, inside = divmod(offset, columns)
        while buffer:
            count = min(at_once, -(-(inside + len(buffer)) // columns))
            rows = self._rows(row, count)
            taken = min(len(buffer), len(rows) - inside)
            buffer[:taken] = rows[inside : inside + taken]
            buffer, row, inside = buffer[taken:], row + count, 0

    def _rows(self, row: int, count: int) -> memoryview:
        import numpy as np

        _, columns, prefix = self._layout
        size = self._layout.column_size
        start, end = row // 8, -(-(row + count) // 8)
        skipped = row - start * 8
        rows = np.empty((count, columns), np.uint8)
        for column in range(columns):
            place = column * (prefix + size)
            if prefix and int.from_bytes(self._data.read(place, prefix), "little") != size:
                raise Damaged(f"column {column} of a residual is not {size} bytes long")
            packed = np.frombuffer(self._data.read(place + prefix + start, end - start), np.uint8)
            rows[:, column] = np.unpackbits(packed, bitorder="little")[skipped : skipped + count]
        return rows.reshape(-1).data
