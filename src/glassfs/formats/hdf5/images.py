"""Rows of bytes, and single values, that are JPEG or PNG images, maybe with zeros behind them (§9). Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from glassfs.content import Array, Data, EncodedImage, Member, Series, Slice, Video, images
from glassfs.errors import LASTING, Damaged, GlassfsError, Passing
from glassfs.once import once

SHORTEST = 64
"""Bytes of a row that may be an image."""
LONGEST = images.MOST_BYTES
_SIGNATURES = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"))
_BEGINNING = max(len(signature) for signature, _ in _SIGNATURES)


class _Trimmed(Data):
    """A row without the zeros at its end. The first use of its size reads it."""

    def __init__(self, row: Data) -> None:
        self._row = row

    @property
    def is_sized(self) -> bool:
        return "size" in self.__dict__

    @once
    def size(self) -> int:
        return len(self._row.whole().rstrip(b"\0"))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._row.read_into(buffer, offset)


def of_array(array: Array) -> Iterator[Member]:
    """Yield the image that an array of bytes is, or frames and video if its rows are images; nothing for others."""
    shape = array.known_shape
    if array.dtype != "|u1" or not shape or len(shape) > 2 or 0 in shape or not SHORTEST <= shape[-1] <= LONGEST:
        return
    if len(shape) == 1:
        found = _described(array.data)
        if found is not None:
            yield Member((array.key,), EncodedImage(array.key, _Trimmed(array.data), found[0]))
        return
    length = shape[1]
    yield from of_rows(array, shape[0], lambda number: Slice(array.data, number * length, length), _Trimmed)


def of_rows(
    array: Array, count: int, row: Callable[[int], Data], image: Callable[[Data], Data] = lambda data: data,
) -> Iterator[Member]:
    """Yield frames and video if the rows of an array are images, nothing for others; ``image`` makes one of a row.

    Empty rows and rows of zeros are frames that the camera missed; the first other row decides, which is read if it
    begins like an image.
    """
    is_missing = partial(_is_missing, row)
    # The first frames may be missing. One row among the first ones has to be an image for the array to be a video.
    first = next((number for number in range(min(count, 16)) if not is_missing(number)), 0)
    try:
        found = _described(row(first))
    except LASTING:
        return
    if found is None:
        return
    media, width, height = found

    def frame(number: int) -> EncodedImage:
        return EncodedImage(array.key, image(row(number)), media)

    yield Member((array.key,), Series(array.key, range(count), frame, 6))
    yield Member((array.key,), Video(array.key, count, array.fps, width, height, frame, is_missing=is_missing))


def _described(data: Data) -> tuple[str, int, int] | None:
    """Return media, width and height of an image, None if the bytes are none or cannot be read."""
    try:
        beginning = data.read(0, _BEGINNING) if SHORTEST <= data.size <= LONGEST else b""
        for signature, media in _SIGNATURES:
            if beginning.startswith(signature):
                return (media, *images.opened(bytes(data.whole()).rstrip(b"\0"), media).size)
        return None
    except Passing:
        raise
    except GlassfsError:
        return None


def _is_missing(row: Callable[[int], Data], number: int) -> bool:
    """Return whether a row begins with zeros, as no image does. One that cannot be read is not missing."""
    try:
        data = row(number)
        return not any(data.read(0, min(_BEGINNING, data.size)))
    except Damaged:
        return False
