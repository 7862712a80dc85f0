"""Rows of bytes that are JPEG or PNG images with zeros behind them, as ALOHA writes them (§9). Any thread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from glassfs.content import Array, Data, EncodedImage, Member, Series, Slice, Video, images
from glassfs.content.data import SizedData
from glassfs.errors import Damaged, GlassfsError, Passing
from glassfs.once import once

SHORTEST = 64
"""Bytes of a row that may be an image."""
LONGEST = images.MOST_BYTES
_SIGNATURES = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"))
_BEGINNING = max(len(signature) for signature, _ in _SIGNATURES)


class _Trimmed(Data):
    """A row without the zeros at its end. The first use of its size reads it."""

    def __init__(self, row: SizedData) -> None:
        self._row = row

    @property
    def is_sized(self) -> bool:
        return "_length" in self.__dict__

    @property
    def size(self) -> int:
        return self._length

    @once
    def _length(self) -> int:
        return len(self._row.whole().rstrip(b"\0"))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._row.read_into(buffer, offset)


def of_array(array: Array) -> Iterator[Member]:
    """Yield frames and video of an array whose rows are images, nothing for others.

    Rows of zeros are frames that the camera missed; the first other row decides, which is read if it begins like one.
    """
    shape = array.known_shape
    if array.dtype != "|u1" or shape is None or len(shape) != 2 or not shape[0] or not SHORTEST <= shape[1] <= LONGEST:
        return
    length = shape[1]
    is_missing = partial(_is_missing, array.data, length)
    try:
        first = next((number for number in range(min(shape[0], 16)) if not is_missing(number)), 0)
        beginning = array.data.read(first * length, _BEGINNING)
        media = next((media for signature, media in _SIGNATURES if beginning.startswith(signature)), None)
        if media is None:
            return
        row = array.data.read(first * length, length)
        width, height = images.opened(row.rstrip(b"\0"), media).size
    except Passing:
        raise
    except GlassfsError:
        return
    frame = partial(_frame, array, length, media)
    yield Member((array.key,), Series(array.key, shape[0], frame, 6))
    yield Member((array.key,), Video(array.key, shape[0], array.fps, width, height, frame, is_missing=is_missing))


def _frame(array: Array, length: int, media: str, number: int) -> EncodedImage:
    return EncodedImage(array.key, _Trimmed(Slice(array.data, number * length, length)), media)


def _is_missing(data: Data, length: int, number: int) -> bool:
    """Return whether a row begins with zeros, as no image does. One that cannot be read is not missing."""
    try:
        return not any(data.read(number * length, _BEGINNING))
    except Damaged:
        return False
