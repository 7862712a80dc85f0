"""Index arrays and videos as NumPy does, reading little more than an index selects. Any thread.

A row is an item of the first axis: of an array some contiguous bytes, of a video a frame.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from operator import index as integer
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from glassfs.content import Array, Content, Data, Video, dtypes
from glassfs.lazy import NDArray, np
from glassfs.library import arrays
from glassfs.sizes import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterator


    Numbers: TypeAlias = NDArray[Any] | list[int] | list[bool]
    """Numbers of items, or for each item whether it is wanted."""
    Index: TypeAlias = SupportsIndex | slice | EllipsisType | Numbers | None


_OF_VIEWS = (int, slice, type(None), EllipsisType)
"""Types of items with which NumPy returns a view of an array."""


class Rows:
    """An array whose values are in ``data``, in C order. Reading raises Damaged.

    ``near`` is the number of bytes between two wanted items that may be read along.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], data: Data, near: int = 4 << 10) -> None:
        self.shape = shape
        self.dtype = dtype
        self._data = data
        self._near = near
        self.row_size = dtype.itemsize * prod(shape[1:])
        """Bytes of a row."""

    def row(self, number: int) -> Any:
        """Return a row; a negative number counts from the end. Raises IndexError."""
        length = self.shape[0]
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of bounds for an axis of {length}")
        out = arrays.empty(self.shape[1:], self.dtype)
        self.read_into(out, number % length * self.row_size)
        return out if out.ndim else out[()]

    def read(self, first: int, count: int) -> NDArray[Any]:
        out = arrays.empty((count, *self.shape[1:]), self.dtype)
        self.read_into(out, first * self.row_size)
        return out

    def some(self, wanted: NDArray[Any]) -> NDArray[Any]:
        """Return the rows with these numbers, which rise. Those that are near are read together."""
        found = arrays.empty((len(wanted), *self.shape[1:]), self.dtype)
        row_size = max(1, self.row_size)
        is_apart = (np.diff(wanted) - 1) * row_size > self._near
        is_apart |= np.diff(wanted // max(1, PIECE // row_size)) > 0  # so that a read takes little memory
        for start, end in pairwise([0, *(1 + np.flatnonzero(is_apart)).tolist(), len(wanted)]):
            if start < end:
                numbers = wanted[start:end]
                found[start:end] = self.read(int(numbers[0]), int(numbers[-1] - numbers[0]) + 1)[numbers - numbers[0]]
        return found

    def read_into(self, out: NDArray[Any], offset: int) -> None:
        """Fill ``out``, which is contiguous, with the bytes from ``offset`` on."""
        if out.nbytes:
            self._data.read_into(out.reshape(-1).view("u1").data, offset)

    def gather(self, out: NDArray[Any], offset: int, strides: tuple[int, ...]) -> None:
        """Fill ``out`` with items: the first one is at byte ``offset``, others at these distances in bytes from it."""
        if not out.nbytes:
            return
        axes = zip(out.shape, strides, out.strides, strict=True)
        if all(length == 1 or stride == own for length, stride, own in axes):
            self.read_into(out, offset)
            return
        ways = [(length - 1) * stride for length, stride in zip(out.shape, strides, strict=True)]
        before, size = sum(way for way in ways if way < 0), sum(map(abs, ways)) + out.itemsize
        length, stride = len(out), abs(strides[0])
        is_near = length > 1 and stride - (size - (length - 1) * stride) <= self._near
        if is_near and size <= PIECE:
            # One read of all that the items span.
            span = arrays.empty((size,), "u1")
            self.read_into(span, offset + before)
            out[...] = np.ndarray(out.shape, out.dtype, span, -before, strides)
        elif is_near:
            at_once = max(1, PIECE // stride)
            for start in range(0, length, at_once):
                self.gather(out[start : start + at_once], offset + start * strides[0], strides)
        else:
            for number in range(length):
                self.gather(out[number, ...], offset + number * strides[0], strides[1:])


def rows_of(content: Content | None) -> Rows | None:
    """Return the rows of an array or a video, None for other contents."""
    if isinstance(content, Array):
        return Rows(content.resolved_shape, dtypes.parsed(content.stored.dtype), content.stored.rows)
    if isinstance(content, Video):
        frames = arrays.Frames(content)
        # A frame is decoded as a whole, whatever is wanted of it, but none between two that are wanted.
        return Rows(frames.shape, frames.dtype, frames, near=frames.frame_size - 1)
    return None


def iterated(rows: Rows) -> Iterator[Any]:
    """Yield the rows, reading some of them at a time."""
    at_once = max(1, PIECE // max(1, rows.row_size))
    for first in range(0, rows.shape[0], at_once):
        yield from rows.read(first, min(at_once, rows.shape[0] - first))


def select(rows: Rows, key: Any) -> Any:
    """Return what ``array[key]`` of NumPy returns, in memory of its own. Raises IndexError as NumPy does."""
    if type(key) is int and rows.shape:
        return rows.row(key)  # what most programs ask for, without the rest of this
    items = key if isinstance(key, tuple) else (key,)
    # Plain integers only: NumPy would copy what an array without axes selects.
    items = tuple(integer(item) if is_integer(item) else item for item in items)
    if all(type(item) in _OF_VIEWS for item in items):
        # NumPy tells where the items lie: it makes a view of an array that nothing reads.
        strides = [rows.dtype.itemsize * prod(rows.shape[axis + 1 :]) for axis in range(len(rows.shape))]
        whole = np.lib.stride_tricks.as_strided(np.empty(1, "u1"), rows.shape, strides)
        is_array = any(item is ... for item in items)
        view = whole[items if is_array else (*items, ...)]
        out = arrays.empty(view.shape, rows.dtype)
        rows.gather(out, _address(view) - _address(whole), view.strides)
        return out if is_array or out.ndim else out[()]
    # A wrong index is an error before anything is read.
    np.broadcast_to(np.False_, rows.shape)[items]
    first, *rest = items
    if isinstance(first, slice):
        return select(rows, first)[(slice(None), *rest)]
    numbers = np.asarray(0 if first is None or first is ... else first)
    if numbers.dtype.kind == "b" and numbers.ndim:
        # Booleans over several axes are as many arrays of integers.
        first, *more = numbers.nonzero()
        numbers, rest = first, [*more, *rest]
    elif first is None or first is ... or numbers.dtype.kind == "b":
        return select(rows, ...)[items]
    # Each row is read once, in the order in which it is stored; the inverse puts them into the order of the index.
    wanted, inverse = np.unique(numbers.astype(np.intp) % max(1, rows.shape[0]), return_inverse=True)
    return rows.some(wanted)[(inverse.reshape(numbers.shape), *rest)]


def is_integer(item: Any) -> bool:
    try:
        integer(item)
    except TypeError:
        return False
    return not isinstance(item, bool)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
