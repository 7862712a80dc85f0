"""H.264 images stored without compression: each can be decoded alone, and all have the same size.

Rec. ITU-T H.264: parameter sets in 7.3.2 and Annex E, slices in 7.3.3, macroblocks of type I_PCM in 7.3.5, emulation
prevention in 7.4.1, levels in Table A-1; avcC: ISO/IEC 14496-15, 5.3.3. Constrained baseline profile, 4:2:0, an IDR
picture of one slice each. Samples are 1 to 255, so no two successive bytes are zero, nothing has to be escaped, and the
size of an image is a formula. Any thread.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Any

from glassfs.lazy import NDArray, np

SIDE = 16
"""Width and height of a macroblock in pixels."""
MACROBLOCK = 2 + 16 * 16 + 2 * 8 * 8
"""Bytes: its type, the samples of luma, and those of both chroma planes."""
FRONT = 7
"""Bytes before the first macroblock; the last one holds the first bits of its type."""
HEAD = FRONT + 2
TAIL = b"\x80"
_TYPE = b"\x0d\x00"
"""The type of a macroblock, I_PCM as an Exp-Golomb code of nine bits, and zeros that align the samples after it."""


class NalUnit(IntEnum):
    """The first byte of the units (7.4.1): the type, and that others refer to it."""

    PICTURE = 0x65
    SEQUENCE_SET = 0x67
    PICTURE_SET = 0x68


COLORS = 1, 13, 6
"""Primaries of BT.709, transfer of sRGB, matrix of BT.601 (Annex E)."""
FULL_RANGE = 1

_LEVELS = ((42, 8_704), (52, 36_864), (62, 139_264))
"""Level, most macroblocks (n). No side may be longer than sqrt(8 n) macroblocks. They allow 60 images a second of the
size of HD, 4K and 8K."""
MOST_MACROBLOCKS = _LEVELS[-1][1]
LONGEST_SIDE = 16_384


class Bits:
    """A bit writer, most significant bit first."""

    def __init__(self) -> None:
        self._value = 1

    def u(self, count: int, *values: int) -> None:
        """Append unsigned integers of ``count`` bits."""
        for value in values:
            self._value = self._value << count | value

    def ue(self, *values: int) -> None:
        """Append Exp-Golomb codes (9.1)."""
        for value in values:
            self.u(2 * (value + 1).bit_length() - 1, value + 1)

    def aligned(self) -> bytes:
        """Return whole bytes, the last one filled with zeros."""
        bits = bin(self._value)[3:]
        bits += "0" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8, "big")

    def ended(self) -> bytes:
        """Return whole bytes with trailing bits, which end a parameter set (7.3.2.11)."""
        self.u(1, 1)
        return self.aligned()


def macroblocks(width: int, height: int) -> tuple[int, int]:
    """Return the columns and rows of macroblocks."""
    return -(-width // SIDE), -(-height // SIDE)


def shown(side: int) -> int:
    """Return a side in pixels as a decoder shows it: 4:2:0 crops to even numbers only."""
    return side + side % 2


def size_of(width: int, height: int) -> int:
    """Return the size of an image in bytes, the four of its length field included."""
    columns, rows = macroblocks(width, height)
    return FRONT + columns * rows * MACROBLOCK + len(TAIL)


def level(width: int, height: int) -> int:
    """Return a level that allows such images; the highest one if none does.

    The levels' bit rates are ignored: uncompressed images exceed them.
    """
    columns, rows = macroblocks(width, height)
    allowing = (
        found for found, most in _LEVELS if columns * rows <= most and max(columns, rows) ** 2 <= 8 * most
    )
    return next(allowing, _LEVELS[-1][0])


def sequence(width: int, height: int) -> bytes:
    """Return the sequence parameter set (7.3.2.1). No size that is allowed gives two zeros in a row to be escaped."""
    columns, rows = macroblocks(width, height)
    bits = Bits()
    bits.u(8, 66, 0xC0, level(width, height))  # baseline profile, constrained
    bits.ue(0, 0, 2, 1)  # id, four bits for frame_num, output in decoding order, one reference
    bits.u(1, 0)
    bits.ue(columns - 1, rows - 1)
    bits.u(1, 1, 1)
    # The sides are cut in units of two pixels, as chroma has half as many samples.
    right, bottom = (columns * SIDE - width) // 2, (rows * SIDE - height) // 2
    bits.u(1, int(right + bottom > 0))
    if right or bottom:
        bits.ue(0, right, 0, bottom)
    bits.u(1, 1)
    _describe(bits)
    return bytes([NalUnit.SEQUENCE_SET]) + bits.ended()


def _describe(bits: Bits) -> None:
    """Append what a player must know to show the samples (E.1.1)."""
    bits.u(1, 1)
    bits.u(8, 1)  # square pixels
    bits.u(1, 0, 1)
    bits.u(3, 5)  # of no video format
    bits.u(1, FULL_RANGE, 1)
    bits.u(8, *COLORS)
    bits.u(1, 1)
    bits.ue(1, 1)  # a sample of chroma is in the center of four of luma, as in JPEG
    bits.u(1, 0, 0, 0, 0)  # no timing, which the container has; no buffers
    bits.u(1, 1, 1)
    bits.ue(0, 0, 0, 0, 0, 1)  # no reordering


def picture_set() -> bytes:
    """Return the picture parameter set (7.3.2.2): CAVLC, one slice group, slices may switch the filter off."""
    bits = Bits()
    bits.ue(0, 0)
    bits.u(1, 0, 0)
    bits.ue(0, 0, 0)
    bits.u(3, 0)
    bits.ue(0, 0, 0)
    bits.u(1, 1, 0, 0)
    return bytes([NalUnit.PICTURE_SET]) + bits.ended()


def configuration(width: int, height: int) -> bytes:
    """Return the content of an ``avcC`` box."""
    sequence_set, pictures = sequence(width, height), picture_set()
    return b"".join((
        bytes([1]), sequence_set[1:4], bytes([0xFC | 4 - 1, 0xE0 | 1]),
        struct.pack(">H", len(sequence_set)), sequence_set, bytes([1]), struct.pack(">H", len(pictures)), pictures,
    ))


@lru_cache(256)
def head(width: int, height: int, number: int) -> bytes:
    """Return the bytes before the first samples: length, slice header, type of the first macroblock."""
    bits = Bits()
    bits.ue(0, 7, 0)  # first macroblock, all slices are of type I, parameter set
    bits.u(4, 0)
    bits.ue(1 + number % 2)  # idr_pic_id: differs from the previous one; both codes have three bits
    bits.u(1, 0, 0)
    bits.ue(0, 1)  # quantizer unchanged, no deblocking
    bits.ue(25)  # I_PCM
    return struct.pack(">IB", size_of(width, height) - 4, NalUnit.PICTURE) + bits.aligned()


def put(target: NDArray[np.uint8], luma: NDArray[np.uint8], blue: NDArray[np.uint8], red: NDArray[np.uint8]) -> None:
    """Fill ``target`` [rows, columns, MACROBLOCK] with the samples of these planes.

    The chroma planes have half the rows and columns of luma, rounded up. Their last rows and columns are repeated to
    fill the last macroblocks.
    """
    rows, columns, _ = target.shape
    start = len(_TYPE)
    target[..., :start] = np.frombuffer(_TYPE, np.uint8)
    for plane, side in ((luma, SIDE), (blue, SIDE // 2), (red, SIDE // 2)):
        # A sample of 0 becomes 1: so no byte has to be escaped, and all images have the same size.
        samples = np.maximum(_filled(plane, rows * side, columns * side), np.uint8(1))
        # Each row of a macroblock is one item: copying items is ten times as fast as copying samples.
        item: Any = np.dtype((np.void, side))
        stored = samples.view(item).reshape(rows, side, columns)
        end = start + side * side
        target[..., start:end].reshape(rows, columns, side, side).view(item)[..., 0] = stored.transpose(0, 2, 1)
        start = end


def _filled(plane: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    missing = ((0, height - plane.shape[0]), (0, width - plane.shape[1]))
    return plane if plane.shape == (height, width) else np.pad(plane, missing, mode="edge")
