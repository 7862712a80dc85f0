"""Rows of bytes that are JPEG or PNG images with zeros behind them, as ALOHA writes them (§9). Any thread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from glassfs.content import Array, Data, EncodedImage, Member, Series, Slice, Video, images
from glassfs.content.data import SizedData
from glassfs.errors import GlassfsError, Passing
from glassfs.once import once

SHORTEST = 64
"""Bytes of a row that may be an image."""
LONGEST = images.MOST_BYTES
DIGITS = 6
_SIGNATURES = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"))


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
    """Yield frames and video of an array whose rows are images, nothing for others. Reads the first row."""
    shape = array.known_shape
    if array.dtype != "|u1" or shape is None or len(shape) != 2 or not shape[0] or not SHORTEST <= shape[1] <= LONGEST:
        return
    try:
        first = array.data.read(0, shape[1])
        media = next((media for signature, media in _SIGNATURES if first.startswith(signature)), None)
        if media is None:
            return
        width, height = images.opened(first.rstrip(b"\0"), media).size
    except Passing:
        raise
    except GlassfsError:
        return
    frame = partial(_frame, array, shape[1], media)
    yield Member((array.key,), Series(array.key, shape[0], frame, DIGITS))
    yield Member((array.key,), Video(array.key, shape[0], array.fps, width, height, frame))


def _frame(array: Array, length: int, media: str, number: int) -> EncodedImage:
    return EncodedImage(array.key, _Trimmed(Slice(array.data, number * length, length)), media)
