"""The values of an episode for its page: ``data.js``, base64 of at most POINTS numbers for each channel.

The size follows from the columns and their lengths alone. Of more steps than POINTS, each stretch is reduced to its
minimum and maximum; of very many, only the first steps of each stretch are read, and the page says so. A damaged column
is marked as damaged; the others stay readable. Any thread.
"""

from __future__ import annotations

import math
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from glassfs.cache import BlockCache
from glassfs.content import Array, Concatenated, Content, Counted, Data, Memory, Rendered, Table
from glassfs.content.video import video_of
from glassfs.errors import LASTING
from glassfs.lazy import np
from glassfs.sizes import PIECE
from glassfs.view.contract import Key
from glassfs.view.html import page

if TYPE_CHECKING:
    Values = np.ndarray[Any, np.dtype[Any]]

POINTS = 2000
MOST_CHANNELS = 256
"""Limit of plots in a page; half of it is that of one column."""
MOST_READ = 256 << 20
"""Limit of bytes read of all columns; each has the same share."""

_PLOTTED = {"|b1", "|i1", "|u1"} | {f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)} | {"<f2", "<f4", "<f8"}
_EXACT = {"|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<f4"}
"""Types that 32-bit floats hold exactly. Times in nanoseconds, for example, would become a staircase."""
_GOOD, _DAMAGED = b"1", b"0"
_BEFORE, _AFTER = b'glassfs.values(%d, "', b'", %b);\n'
"""What is around the values of a column: its number, and whether they are good."""


class Sampling(NamedTuple):
    """How steps become points: one for ``stretch`` steps, of which the first ``taken`` are read."""

    steps: int
    stretch: int
    taken: int

    @property
    def points(self) -> int:
        """Values of a channel: one for each step, or the minimum and maximum of each stretch."""
        return self.steps if self.stretch == 1 else 2 * -(-self.steps // self.stretch)


class _PlottedColumn(NamedTuple):
    name: bytes
    array: Array
    items: int
    channels: int
    """Number of items that are plotted."""
    sampling: Sampling

    @property
    def is_exact(self) -> bool:
        return self.array.dtype in _EXACT

    @property
    def size(self) -> int:
        return self.sampling.points * self.channels * (4 if self.is_exact else 8)


def data_of(steps: Table, cache: BlockCache, key: Key) -> Data:
    """Return the bytes of the file for the steps of an episode: its head, and a part for each column."""

    def find() -> Data:
        columns, left_out = _columns(steps)
        parts: list[Data] = [Memory(_head(steps.rows, columns, left_out))]
        for number, column in enumerate(columns):
            size = _size(number, column)
            made = partial(_made, number, column)
            # The points of a column are made from up to its share of what is read, a piece at a time.
            parts.append(Rendered(cache, (*key, number), made, size, 4 * (PIECE + size)))
        return Concatenated(parts)

    return page.Deferred(find)


def _columns(steps: Table) -> tuple[list[_PlottedColumn], int]:
    """Return the plotted columns, and the number of channels left out because there are too many."""
    found: list[_PlottedColumn] = []
    left_out = 0
    left = MOST_CHANNELS
    columns = ((column.name, column.content) for column in steps.columns())
    plotted = [(name, array) for name, array in columns if _is_plotted(array, steps.rows)]
    # Each column has its share, so that the size of one does not depend on the values of others.
    read = MOST_READ // max(1, min(len(plotted), MOST_CHANNELS))
    for name, content in plotted:
        items = math.prod((content.known_shape or ())[1:])
        channels = min(items, left, MOST_CHANNELS // 2)
        left -= channels
        left_out += items - channels
        if channels:
            item = int(content.dtype[2:])
            found.append(_PlottedColumn(name, content, items, channels, sampling_of(steps.rows, items * item, read)))
    return found, left_out


def sampling_of(steps: int, width: int, most: int) -> Sampling:
    """Return the sampling of steps of ``width`` bytes each if at most ``most`` bytes are read."""
    if steps <= POINTS:
        return Sampling(steps, 1, 1)
    stretch = -(-steps // (POINTS // 2))
    taken = most // (-(-steps // stretch) * width)
    return Sampling(steps, stretch, max(1, min(stretch, taken)))


def _is_plotted(array: Content, rows: int) -> TypeGuard[Array]:
    if not isinstance(array, Array):
        return False
    shape = array.known_shape
    return (
        shape is not None and len(shape) > 0 and shape[0] == rows > 0 and 0 not in shape
        and array.dtype in _PLOTTED and not isinstance(array.data, Counted) and video_of(array) is None
    )


def _head(rows: int, columns: Sequence[_PlottedColumn], left_out: int) -> bytes:
    described = [
        {
            "name": page.brief(column.name, page.LONGEST_TITLE), "items": column.items, "channels": column.channels,
            "type": "f4" if column.is_exact else "f8", "stretch": column.sampling.stretch,
            "taken": column.sampling.taken, "points": column.sampling.points,
        }
        for column in columns
    ]
    facts = {"rows": rows, "leftOut": left_out, "columns": described}
    return b'"use strict";\nglassfs.columns(%b);\n' % page.script(facts)


def _size(number: int, column: _PlottedColumn) -> int:
    return len(_BEFORE % number) + 4 * -(-column.size // 3) + len(_AFTER % _GOOD)


def _made(number: int, column: _PlottedColumn) -> bytes:
    dtype = "<f4" if column.is_exact else "<f8"
    state = _GOOD
    try:
        values = _values(column, dtype)
    except LASTING:
        # The size is known already, so a column that cannot be read has zeros in its place, and says so.
        values, state = np.zeros(column.size, np.uint8), _DAMAGED
    return _BEFORE % number + b2a_base64(values.tobytes(), newline=False) + _AFTER % state


def _values(column: _PlottedColumn, dtype: str) -> Values:
    """Return the points, one channel after another."""
    steps, stretch, taken = column.sampling
    if stretch == 1:
        return np.concatenate([part.astype(dtype) for part in _read(column, 0, steps)]).T
    points = np.empty((column.channels, column.sampling.points // 2, 2), dtype)
    for point in range(points.shape[1]):
        first = point * stretch
        # The minimum and the maximum of each stretch: an outlier of one step in a million stays visible. NaN does not
        # count, unless a stretch has nothing else.
        least = greatest = np.full(column.channels, np.nan)
        for part in _read(column, first, min(taken, steps - first)):
            values = part.astype(dtype)
            least = np.fmin(least, np.fmin.reduce(values))
            greatest = np.fmax(greatest, np.fmax.reduce(values))
        points[:, point, 0], points[:, point, 1] = least, greatest
    return points


def _read(column: _PlottedColumn, first: int, count: int) -> Iterator[Values]:
    """Yield the channels of ``count`` steps, some steps at a time."""
    item = int(column.array.dtype[2:])
    width, wanted = column.items * item, column.channels * item
    data = column.array.data
    at_once = max(1, PIECE // wanted)
    for start in range(first, first + count, at_once):
        steps = min(at_once, first + count - start)
        if wanted == width:
            raw = data.read(start * width, steps * width)
        else:  # the values that are not plotted may be many times as much
            raw = b"".join(data.read(step * width, wanted) for step in range(start, start + steps))
        yield np.frombuffer(raw, column.array.dtype).reshape(steps, column.channels)
