"""Index arrays and videos as NumPy does, reading only the rows that an index selects. Any thread.

A row is an item of the first axis: of an array some contiguous bytes, of a video a frame. Integers at the beginning of
an index select a row, a row of that row and so on; the rest of an index is applied to the values of rows in memory.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from operator import index as integer
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from glassfs.content import Array, Content, Data, Video, dtypes
from glassfs.errors import Damaged, Unavailable
from glassfs.library import arrays
from glassfs.once import once
from glassfs.sizes import PIECE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[Any] | list[int] | list[bool]
    """Numbers of items, or for each item whether it is wanted."""
    Index: TypeAlias = SupportsIndex | slice | EllipsisType | Numbers | None



class FirstAxis(ABC):
    """Items of the first axis. ``shape`` has at least one axis, unless it is that of a single value.

    ``near`` is the number of bytes between two wanted rows that may be read along.
    """

    near = 0

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def row_size(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * prod(self.shape[1:])

    @abstractmethod
    def row(self, number: int) -> FirstAxis | NDArray[Any]:
        """Return a row; a negative number counts from the end. Raises IndexError."""

    @abstractmethod
    def read_into(self, out: NDArray[Any], first: int) -> None:
        """Fill ``out``, which has the shape of some rows, with those from ``first`` on. Raises Damaged."""

    def read(self, first: int, count: int) -> NDArray[Any]:
        out = empty((count, *self.shape[1:]), self.dtype)
        self.read_into(out, first)
        return out


class ArrayRows(FirstAxis):
    """The rows of an array whose values are in ``data`` from byte ``offset`` on."""

    near = 4 << 10

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], data: Data, offset: int = 0) -> None:
        self._shape = shape
        self._dtype = dtype
        self._data = data
        self._offset = offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def row(self, number: int) -> ArrayRows:
        offset = self._offset + _checked(number, self._shape[0]) * self.row_size
        return ArrayRows(self._shape[1:], self._dtype, self._data, offset)

    def read_into(self, out: NDArray[Any], first: int) -> None:
        if out.nbytes:
            self._data.read_into(out.reshape(-1).view("u1").data, self._offset + first * self.row_size)

    def value(self) -> NDArray[Any]:
        """Return the value of an array without axes."""
        out = empty((), self.dtype)
        self.read_into(out, 0)
        return out

    def whole(self) -> Any:
        """Return all values; of an array without axes its value, as NumPy does."""
        return self.read(0, self._shape[0]) if self._shape else self.value()[()]


class VideoRows(FirstAxis):
    """The frames of a video, which all have the size of the first one that exists. Raises Damaged if there is none."""

    def __init__(self, video: Video) -> None:
        self._video = video

    @once
    def _kind(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the first frame."""
        video = self._video
        present = range(video.count) if video.present is None else video.present
        first = video.frame(present[0]) if present else None
        shape = None if first is None else arrays.shape_of(first)
        dtype = None if first is None else arrays.dtype_of(first)
        if shape is None or dtype is None:
            raise Damaged("has no frame that can be shown")
        return shape, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._video.count, *self._kind[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._kind[1]

    def row(self, number: int) -> NDArray[Any]:
        """Return a frame, whatever its size. Raises IndexError for a missing one."""
        number = _checked(number, self._video.count)
        present, is_missing = self._video.present, self._video.is_missing
        if present is not None and bisect_left(present, number) == bisect_right(present, number):
            raise IndexError(f"frame {number} is missing; the video has {len(present)} of {self._video.count}")
        if is_missing is not None and is_missing(number):
            raise IndexError(f"frame {number} is missing")
        values = arrays.array_of(self._video.frame(number), True)
        if values is None:
            raise Damaged(f"frame {number} is no image that can be shown")
        return values

    def read_into(self, out: NDArray[Any], first: int) -> None:
        for number in range(len(out)):
            frame = self.row(first + number)
            if frame.shape != out.shape[1:]:
                raise Damaged(f"frame {first + number} has the shape {frame.shape}, not {out.shape[1:]} like the first")
            out[number] = frame


def rows_of(content: Content) -> FirstAxis | None:
    """Return the rows of an array or a video, None for other contents."""
    if isinstance(content, Array):
        return ArrayRows(content.resolved_shape, dtypes.parsed(content.stored.dtype), content.stored.rows)
    return VideoRows(content) if isinstance(content, Video) else None


def rows_of_npy(stream: io.BufferedIOBase, data: Data) -> FirstAxis | None:
    """Return the rows of a ``.npy`` file, None if they are not contiguous or NumPy does not read the file."""
    import numpy as np

    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            return None
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
    except arrays.NOT_AN_ARRAY:
        return None
    offset = stream.tell()
    if dtype.hasobject or min(shape, default=0) < 0 or offset + dtype.itemsize * prod(shape) > data.size:
        return None
    if is_fortran and len(shape) > 1:
        return None
    return ArrayRows(shape, dtype, data, offset)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array without values. Raises Unavailable without enough memory."""
    import numpy as np

    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise Unavailable(f"there is not enough memory for an array of the shape {shape}") from error


def iterated(rows: FirstAxis) -> Iterator[Any]:
    """Yield the rows, reading some of them at a time."""
    at_once = max(1, PIECE // max(1, rows.row_size))
    for first in range(0, rows.shape[0], at_once):
        yield from rows.read(first, min(at_once, rows.shape[0] - first))


def select(rows: FirstAxis, key: Any) -> Any:
    """Return what ``array[key]`` of NumPy returns, in memory of its own. Raises IndexError as NumPy does."""
    if isinstance(rows, VideoRows) and not isinstance(key, tuple) and _is_integer(key):
        return rows.row(integer(key))  # without the first frame, which gives the shape
    if type(key) is int and isinstance(rows, ArrayRows) and rows.shape:
        return rows.row(key).whole()  # what most programs ask for, without the rest of this
    index = _expanded(key, rows.shape)
    if not _is_advanced(index):
        while (axis := _first_axis(index)) is not None and isinstance(index[axis], int):
            row = rows.row(index[axis])
            index = index[:axis] + index[axis + 1 :]
            if not isinstance(row, FirstAxis):
                return _own(row[tuple(index)], row)
            rows = row
    axis = _first_axis(index)
    if axis is None:
        assert isinstance(rows, ArrayRows)
        return rows.value()[tuple(index)]
    own = index[axis]
    if not isinstance(own, slice):
        return _of_numbers(rows, own, index, axis)
    numbers = range(rows.shape[0])[own]
    # Rows are read in the order in which they are stored, and turned around afterward.
    flipped = slice(None, None, -1 if numbers.step < 0 else None)
    numbers = numbers[::-1] if numbers.step < 0 else numbers
    rest = index[axis + 1 :]
    if _is_advanced(index) or all(item is None or item == slice(None) for item in rest):
        found = _picked(rows, numbers)
        return _own(found[(*index[:axis], flipped, *rest)], found)
    return _narrowed(rows, numbers, index, axis)[(slice(None),) * axis + (flipped,)]


def _expanded(key: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return an index with an item for each axis, and None for each new one: integers, slices, arrays of integers."""
    import numpy as np

    items: list[Any] = []
    for item in key if isinstance(key, tuple) else (key,):
        if item is None or item is Ellipsis or isinstance(item, slice):
            items.append(item)
            continue
        if _is_integer(item):
            items.append(integer(item))
            continue
        numbers = np.asarray(item)
        if not numbers.size and isinstance(item, Sequence):
            numbers = numbers.astype(np.intp)
        if numbers.dtype.kind not in "biu" or not numbers.ndim:
            raise IndexError(f"an index is an integer, a slice, an array of integers or booleans, not {item!r:.40}")
        items.append(numbers)
    places = [place for place, item in enumerate(items) if item is Ellipsis]
    missing = len(shape) - sum(_axes(item) for item in items)
    if missing < 0 or len(places) > 1:
        raise IndexError(f"too many indices for an array of {len(shape)} axes, or more than one Ellipsis")
    place = places[0] if places else len(items)
    items[place : place + 1] = [slice(None)] * missing
    found: list[Any] = []
    axis = 0
    for item in items:
        axes = _axes(item)
        if isinstance(item, np.ndarray) and item.dtype.kind == "b":
            if item.shape != shape[axis : axis + axes]:
                raise IndexError(f"booleans of the shape {item.shape} are no index of axes {shape[axis : axis + axes]}")
            found += item.nonzero()
        else:
            found.append(item)
        axis += axes
    return found


def _is_integer(item: Any) -> bool:
    try:
        integer(item)
    except TypeError:
        return False
    return not isinstance(item, bool)


def _axes(item: Any) -> int:
    """Return how many axes an item of an index consumes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if getattr(getattr(item, "dtype", None), "kind", "") == "b" else 1


def _is_advanced(index: list[Any]) -> bool:
    return not all(item is None or isinstance(item, (int, slice)) for item in index)


def _first_axis(index: list[Any]) -> int | None:
    """Return the place of the item that applies to the first axis."""
    return next((place for place, item in enumerate(index) if item is not None), None)


def _checked(number: int, length: int) -> int:
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of bounds for an axis of {length}")
    return number % length


def _own(found: Any, of: NDArray[Any]) -> Any:
    """Return a part of an array without keeping much more memory than it needs."""
    is_small = getattr(found, "base", None) is not None and 2 * found.nbytes < of.nbytes
    return found.copy() if is_small else found


def _picked(rows: FirstAxis, numbers: range) -> NDArray[Any]:
    """Return some rows, whose numbers rise."""
    import numpy as np

    if numbers.step == 1 or len(numbers) < 2:
        return rows.read(numbers.start if numbers else 0, len(numbers))
    return _read(rows, np.arange(numbers.start, numbers.stop, numbers.step))


def _narrowed(rows: FirstAxis, numbers: range, index: list[Any], axis: int) -> NDArray[Any]:
    """Return some rows with the rest of the index applied, a few of them at a time: it may leave little of each."""
    import numpy as np

    at_once = max(1, PIECE // max(1, rows.row_size))
    key = (*index[:axis], slice(None), *index[axis + 1 :])
    starts = range(0, max(1, len(numbers)), at_once)
    parts = [_picked(rows, numbers[start : start + at_once])[key] for start in starts]
    return parts[0].copy() if len(parts) == 1 else np.concatenate(parts, axis)


def _of_numbers(rows: FirstAxis, own: int | NDArray[Any], index: list[Any], axis: int) -> Any:
    """Return the rows with these numbers, or of one beside other arrays, and the rest of the index applied."""
    import numpy as np

    own, length = np.asarray(own), rows.shape[0]
    if own.size:
        _checked(int(own.min()), length)
        _checked(int(own.max()), length)
    wanted, inverse = np.unique(own.astype(np.intp) % max(1, length), return_inverse=True)
    return _read(rows, wanted)[(*index[:axis], inverse.reshape(own.shape), *index[axis + 1 :])]


def _read(rows: FirstAxis, wanted: NDArray[Any]) -> NDArray[Any]:
    """Return the rows with these numbers, which rise. Those that are ``near`` are read together, with what is between.
    """
    import numpy as np

    found = empty((len(wanted), *rows.shape[1:]), rows.dtype)
    row_size = max(1, rows.row_size)
    at_once = max(1, PIECE // row_size)
    gaps = 1 + np.flatnonzero(np.diff(wanted) > 1 + rows.near // row_size)
    for start, end in pairwise([0, *gaps.tolist(), len(wanted)]):
        while start < end:
            first = int(wanted[start])
            stop = start + (int(np.searchsorted(wanted[start:end], first + at_once)) if end - start > 1 else 1)
            count = int(wanted[stop - 1]) + 1 - first
            if count == stop - start:
                rows.read_into(found[start:stop], first)
            else:
                found[start:stop] = rows.read(first, count)[wanted[start:stop] - first]
            start = stop
    return found
