"""Convert contents and files to NumPy arrays and Pillow images. Any thread."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from math import prod
from typing import TYPE_CHECKING, Any

from glassfs.content import Array, Content, Data, EncodedImage, Image, Order, Scalar, Video, dtypes, npy
from glassfs.content.images import decode, decoding
from glassfs.errors import Damaged, Unavailable, Unsuited
from glassfs.lazy import NDArray, np
from glassfs.tree import File

if TYPE_CHECKING:
    from PIL.Image import Image as Decoded
    from PIL.ImageFile import ImageFile

MAPPED_FROM = 128 << 10
"""Size in bytes. Smaller arrays are read, which is faster than mapping them and touching a page. Reading all values is
faster up to 512 KiB, but a program may need few of them, and keeps a copy in its own memory."""
UNALIGNED_FROM = 1 << 20
"""Size in bytes; smaller arrays whose items are not aligned in the container are read, as some libraries need them
aligned."""

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP")
"""Formats decoded in plain files. Other formats of Pillow run programs, or are rarely tested."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp")
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

        head = _head(content)
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


def _head(image: EncodedImage) -> ImageFile:
    """Return an encoded image of which only the header was decoded. Raises Damaged."""
    return _opened(image.data.whole(), (image.media.upper(),))


def decoded_image(image: EncodedImage) -> Decoded:
    """Return an encoded image, decoded. Raises Damaged."""
    return _loaded(_head(image))


def image_in(stored: bytes) -> Decoded:
    """Return the image in a plain file of one of ``IMAGE_FORMATS``. Raises Damaged."""
    return _loaded(_opened(stored, IMAGE_FORMATS))


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


def _loaded(image: ImageFile) -> Decoded:
    decode(image)
    return image
