"""Convert contents and files to NumPy arrays and Pillow images, and index arrays and videos as NumPy does. Any thread.

An index reads little more than it selects. A row is an item of the first axis: of an array some contiguous bytes, of a
video a frame.
"""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from itertools import pairwise
from math import prod
from operator import index as integer
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from glassfs.content import Array, Content, Data, EncodedImage, Image, Order, Scalar, Video, dtypes, npy
from glassfs.content.images import decode, decoding
from glassfs.errors import Damaged, Unavailable, Unsuited
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.tree import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image as Decoded
    from PIL.ImageFile import ImageFile

    Numbers: TypeAlias = NDArray[Any] | list[int] | list[bool]
    """Numbers of items, or for each item whether it is wanted."""
    Index: TypeAlias = SupportsIndex | slice | EllipsisType | Numbers | None

MAPPED_FROM = 128 << 10
"""Size in bytes. Smaller arrays are read, which is faster than mapping them and touching a page. Reading all values is
faster up to 512 KiB, but a program may need few of them, and keeps a copy in its own memory."""
UNALIGNED_FROM = 1 << 20
"""Size in bytes; smaller arrays whose items are not aligned in the container are read, as some libraries need them
aligned."""

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP")
"""Formats decoded in plain files. Other formats of Pillow run programs, or are rarely tested."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp")
_OF_VIEWS = (int, slice, type(None), EllipsisType)
"""Types of items with which NumPy returns a view of an array."""
_AS_PIXELS = {"1": "L", "P": "RGBA", "PA": "RGBA"}


class Frames(Data):
    """The frames of a video, one after another, all of the size of the first one that exists.

    Raises Damaged if there is none, and for frames of other sizes; IndexError for missing ones.
    """

    def __init__(self, video: Video) -> None:
        present = range(video.count) if video.present is None else video.present
        first = type_of(video.frame(present[0])) if present else None
        if first is None:
            raise Damaged("has no frame that can be shown")
        shape, self.dtype = first
        self.shape = (video.count, *shape)
        self.frame_size = prod(shape) * self.dtype.itemsize
        self._video = video
        self._last: tuple[int, memoryview] | None = None
        """A frame and its pixels: parts of one are often wanted one after another."""

    @property
    def size(self) -> int:
        return self.shape[0] * self.frame_size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        position = 0
        while position < len(buffer):
            number, start = divmod(offset + position, self.frame_size)
            pixels = self._pixels(number)[start : start + len(buffer) - position]
            buffer[position : position + len(pixels)] = pixels
            position += len(pixels)

    def _pixels(self, number: int) -> memoryview:
        last = self._last
        if last is None or last[0] != number:
            frame = frame_of(self._video, number)
            if frame.shape != self.shape[1:]:
                raise Damaged(f"frame {number} has the shape {frame.shape}, not {self.shape[1:]} like the first")
            last = self._last = number, np.ascontiguousarray(frame, self.dtype).reshape(-1).view("u1").data
        return last[1]


def frame_of(video: Video, number: int) -> NDArray[Any]:
    """Return a frame, whatever its size; a negative number counts from the end. Raises IndexError for a missing one."""
    if not -video.count <= number < video.count:
        raise IndexError(f"index {number} is out of bounds for a video of {video.count} frames")
    number %= video.count
    present = video.present
    if present is not None and bisect_left(present, number) == bisect_right(present, number):
        raise IndexError(f"frame {number} is missing; the video has {len(present)} of {video.count}")
    if video.is_missing is not None and video.is_missing(number):
        raise IndexError(f"frame {number} is missing")
    values = array_of(video.frame(number), True)
    if values is None:
        raise Damaged(f"frame {number} is no image that can be shown")
    return values


def empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array without values. Raises Unavailable without enough memory."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise Unavailable(f"there is not enough memory for an array of the shape {shape}") from error


def type_of(content: Content | None) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return shape and dtype of ``array_of`` for an image, or None. Raises Damaged for one without a header."""
    if isinstance(content, Image):
        return _pixels(content.height, content.width, content.channels), np.dtype(f"<u{content.bits // 8}")
    if isinstance(content, EncodedImage):
        from PIL import Image as Pillow

        head = _opened(content.data.whole(), (content.media.upper(),))  # its pixels are not decoded
        channels = Pillow.getmodebands(_AS_PIXELS.get(head.mode, head.mode))
        dtype = np.dtype("<u2" if head.mode.startswith("I;16") else "|u1")
        return _pixels(head.height, head.width, channels), dtype
    return None


def array_of(content: Content, is_copy: bool) -> NDArray[Any] | None:
    """Return the values of a content, or None: mapped from the container's file if possible and not ``is_copy``.

    Other values are decoded once; a copy is in memory of its own. Raises Damaged, or Unavailable without enough memory.
    """
    if isinstance(content, Array):
        data, dtype, order, _ = content.stored
        return _values(data, dtypes.parsed(dtype), content.resolved_shape, is_copy, order)
    if isinstance(content, Image):
        return _of_image(content, is_copy)
    if isinstance(content, Scalar):
        return np.array(content.value)
    if isinstance(content, EncodedImage):
        return of_pixels(decoded_image(content))
    if isinstance(content, Video):
        frames = Frames(content)
        return _values(frames, frames.dtype, frames.shape, True)
    return None


def of_pixels(image: Decoded) -> NDArray[Any]:
    mode = _AS_PIXELS.get(image.mode)  # one whose values are pixels: no palette, no packed bits
    return np.array(image if mode is None else image.convert(mode))


def array_in(file: File) -> Array:
    """Return the array in a ``.npy`` file. Object arrays are refused: they could run any code. Raises Damaged."""
    head = file.read(0, npy.LOOKED_AT)
    length = npy.length_of(head) or 0
    if length > len(head):
        head = file.read(0, length)
    found = npy.parsed(head[:length], file.size) if 0 < length <= len(head) else None
    if found is not None:
        origin = file.origin
        return found.array(origin.services.cache, (origin.identity, file.ino, "npy"), b"", file.data)
    if b"'|O'" in head:
        raise Unsuited("is a pickle of Python objects, which is never loaded: it could run any code")
    raise Damaged("is not an array that can be read")


def _of_image(image: Image, is_copy: bool) -> NDArray[Any]:
    height, width, channels = image.height, image.width, image.channels
    shape = (channels, height, width) if image.is_planar else (height, width, channels)
    values = _values(image.data, np.dtype(f"<u{image.bits // 8}"), shape, is_copy)
    if image.is_planar:
        values = values.transpose(1, 2, 0)
    return values.reshape(_pixels(height, width, channels))


def _pixels(height: int, width: int, channels: int) -> tuple[int, ...]:
    return (height, width) if channels == 1 else (height, width, channels)


def _values(
    data: Data, dtype: np.dtype[Any], shape: tuple[int, ...], is_copy: bool, order: Order = "C",
) -> NDArray[Any]:
    size = data.size
    if not size or not dtype.itemsize:
        try:
            return np.empty(shape, dtype)
        except ValueError as error:
            raise Damaged(f"has a shape that no array can have, {shape}") from error
    if not is_copy:
        # Only data that are a range of a local file can be mapped; ``mapped`` knows. For few, bytes of Python will do.
        found = data.whole() if size < MAPPED_FROM else data.mapped()
        if found is not None:
            values: NDArray[Any] = np.frombuffer(found, dtype).reshape(shape, order=order)
            if values.flags.aligned or size >= UNALIGNED_FROM:
                return values
    raw = empty((size,), np.uint8)
    data.read_into(raw.data, 0)
    return raw.view(dtype).reshape(shape, order=order)


def decoded_image(image: EncodedImage) -> Decoded:
    """Return an encoded image, decoded. Raises Damaged."""
    return image_in(image.data.whole(), (image.media.upper(),))


def image_in(stored: Any, formats: tuple[str, ...] = IMAGE_FORMATS) -> Decoded:
    """Return the image in a file of one of these formats. Raises Damaged."""
    image = _opened(stored, formats)
    decode(image)
    return image


def image_of(image: Image) -> Decoded | None:
    """Return an image of raw pixels, or None if Pillow has no mode for them."""
    from PIL import Image as Pillow

    if image.bits > 8 and image.channels > 1:
        return None
    return Pillow.fromarray(_of_image(image, True))


def _opened(stored: Any, formats: tuple[str, ...]) -> ImageFile:
    from PIL import Image as Pillow

    with decoding("is not an image that can be decoded"):
        return Pillow.open(io.BytesIO(stored), formats=formats)


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
        return self.read(number % length, 1)[0]

    def read(self, first: int, count: int) -> NDArray[Any]:
        out = empty((count, *self.shape[1:]), self.dtype)
        self.read_into(out, first * self.row_size)
        return out

    def some(self, wanted: NDArray[Any]) -> NDArray[Any]:
        """Return the rows with these numbers, which rise. Those that are near are read together."""
        found = empty((len(wanted), *self.shape[1:]), self.dtype)
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
            span = empty((size,), "u1")
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
        frames = Frames(content)
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
        out = empty(view.shape, rows.dtype)
        rows.gather(out, _address(view) - _address(whole), view.strides)
        return out if is_array or out.ndim else out[()]
    # A wrong index is an error before anything is read.
    np.broadcast_to(np.False_, rows.shape)[items]
    first, *rest = items
    if isinstance(first, slice):
        return select(rows, first)[(slice(None), *rest)]
    numbers = np.asarray(0 if first is None or first is ... else first)
    if numbers.dtype.kind == "b" and numbers.ndim == 1:
        numbers = np.flatnonzero(numbers)
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
