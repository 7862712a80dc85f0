"""H.264 pictures that are stored and not compressed: every one alone decodable, and all of one size.

Rec. ITU-T H.264: parameter sets in 7.3.2 and Annex E, slices in 7.3.3, macroblocks of type I_PCM in 7.3.5, emulation
prevention in 7.4.1, levels in Table A-1; avcC: ISO/IEC 14496-15, 5.3.3. Constrained baseline profile, 4:2:0, an IDR
picture of one slice each. The samples are 1 to 255: so no two bytes in a row are zero, nothing has to be escaped, and
the size of a picture is a formula. Any thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE = 16
"""Of a macroblock, in pixels."""
TYPE, LUMA, CHROMA = 2, 16 * 16, 8 * 8
MACROBLOCK = TYPE + LUMA + 2 * CHROMA
FRONT = 7
"""What stands before the type of the first macroblock ends with its first bits."""
HEAD = FRONT + TYPE
TAIL = b"\x80"
LENGTH = 4

PROFILE, CONSTRAINTS = 66, 0xC0
NAL_SPS, NAL_PPS, NAL_IDR = 0x67, 0x68, 0x65
I_PCM = 25
ONLY_INTRA = 7
SQUARE, NO_FORMAT, FULL_RANGE = 1, 5, 1
PRIMARIES, TRANSFER, MATRIX = 1, 13, 6
"""Of sRGB (BT.709), of sRGB, of BT.601."""
CENTRED = 1

_LEVELS = (
    (10, 1_485, 99), (11, 3_000, 396), (12, 6_000, 396), (13, 11_880, 396), (21, 19_800, 792), (22, 20_250, 1_620),
    (30, 40_500, 1_620), (31, 108_000, 3_600), (32, 216_000, 5_120), (40, 245_760, 8_192), (42, 522_240, 8_704),
    (50, 589_824, 22_080), (51, 983_040, 36_864), (52, 2_073_600, 36_864), (60, 4_177_920, 139_264),
    (61, 8_355_840, 139_264), (62, 16_711_680, 139_264),
)
"""Level, macroblocks a second, macroblocks. No picture may be longer than the root of 8 times its macroblocks."""
MOST_MACROBLOCKS = _LEVELS[-1][2]
LONGEST_SIDE = 16_384


class Bits:
    """Bits one after another, the most significant first."""

    def __init__(self) -> None:
        self._value = 1

    def u(self, count: int, *values: int) -> None:
        """Unsigned integers of ``count`` bits."""
        for value in values:
            self._value = self._value << count | value

    def ue(self, *values: int) -> None:
        """Exp-Golomb codes (9.1)."""
        for value in values:
            self.u(2 * (value + 1).bit_length() - 1, value + 1)

    def aligned(self, trailing: str) -> bytes:
        """Whole bytes; ``trailing`` has the bits to fill the last one with, as many of them as it needs."""
        bits = bin(self._value)[3:]
        bits += trailing[: -len(bits) % 8]
        return int(bits, 2).to_bytes(len(bits) // 8, "big")

    def ended(self) -> bytes:
        """With the bit that ends what is not a slice (7.3.2.11)."""
        self.u(1, 1)
        return self.aligned("0" * 7)


def macroblocks(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of macroblocks."""
    return -(-width // SIDE), -(-height // SIDE)


def shown(side: int) -> int:
    """A side as a decoder shows it: 4:2:0 cuts pictures at every second pixel only."""
    return side + side % 2


def size_of(width: int, height: int) -> int:
    """The bytes of a picture, the four of its length included."""
    columns, rows = macroblocks(width, height)
    return FRONT + columns * rows * MACROBLOCK + len(TAIL)


def level(width: int, height: int, fps: float) -> int:
    """The first level that allows such pictures, so many a second; the last one if it is the rate that none allows.

    The bit rates of levels are not for stored pictures: they are far above what the size would take compressed.
    """
    columns, rows = macroblocks(width, height)
    count = columns * rows
    for found, rate, largest in _LEVELS:
        if count <= largest and max(columns, rows) ** 2 <= 8 * largest and count * fps <= rate:
            return found
    return _LEVELS[-1][0]


def sequence(width: int, height: int, fps: float) -> bytes:
    """The sequence parameter set (7.3.2.1)."""
    columns, rows = macroblocks(width, height)
    bits = Bits()
    bits.u(8, PROFILE, CONSTRAINTS, level(width, height, fps))
    bits.ue(0, 0, 2, 1)  # its number, four bits for frame_num, pictures are shown in their order, one reference
    bits.u(1, 0)
    bits.ue(columns - 1, rows - 1)
    bits.u(1, 1, 1)
    right, bottom = (columns * SIDE - width) // 2, (rows * SIDE - height) // 2
    bits.u(1, int(right + bottom > 0))
    if right or bottom:
        bits.ue(0, right, 0, bottom)
    bits.u(1, 1)
    _describe(bits)
    return _escaped(bytes([NAL_SPS]) + bits.ended())


def _describe(bits: Bits) -> None:
    """What a player must know to show the samples (E.1.1)."""
    bits.u(1, 1)
    bits.u(8, SQUARE)
    bits.u(1, 0, 1)
    bits.u(3, NO_FORMAT)
    bits.u(1, FULL_RANGE, 1)
    bits.u(8, PRIMARIES, TRANSFER, MATRIX)
    bits.u(1, 1)
    bits.ue(CENTRED, CENTRED)
    bits.u(1, 0, 0, 0, 0)  # no timing, which the file has; no buffers
    bits.u(1, 1, 1)
    bits.ue(0, 0, 0, 0, 0, 1)  # no picture waits for another one to be shown first


def picture_set() -> bytes:
    """The picture parameter set (7.3.2.2): CAVLC, one slice group, and a filter that slices can turn off."""
    bits = Bits()
    bits.ue(0, 0)
    bits.u(1, 0, 0)
    bits.ue(0, 0, 0)
    bits.u(3, 0)
    bits.ue(0, 0, 0)
    bits.u(1, 1, 0, 0)
    return _escaped(bytes([NAL_PPS]) + bits.ended())


def configuration(width: int, height: int, fps: float) -> bytes:
    """What an ``avcC`` box holds."""
    sequence_set, pictures = sequence(width, height, fps), picture_set()
    return b"".join((
        bytes([1]), sequence_set[1:4], bytes([0xFC | LENGTH - 1, 0xE0 | 1]),
        struct.pack(">H", len(sequence_set)), sequence_set, bytes([1]), struct.pack(">H", len(pictures)), pictures,
    ))


def head(width: int, height: int, number: int) -> bytes:
    """What stands before the first samples of a picture: its length, the slice's header, the macroblock's type."""
    bits = Bits()
    bits.ue(0, ONLY_INTRA, 0)
    bits.u(4, 0)
    bits.ue(1 + number % 2)  # idr_pic_id: not that of the picture before; both codes are of three bits
    bits.u(1, 0, 0)
    bits.ue(0, 1)  # no change of the quantizer, no deblocking
    bits.ue(I_PCM)
    return struct.pack(">IB", size_of(width, height) - LENGTH, NAL_IDR) + bits.aligned("0" * 7)


def put(target: NDArray[np.uint8], luma: NDArray[np.uint8], blue: NDArray[np.uint8], red: NDArray[np.uint8]) -> None:
    """Fills ``target`` [rows, columns, MACROBLOCK] with the samples of these planes.

    The chroma planes have half the rows and columns of luma, rounded up. What the planes lack of the last macroblocks
    is filled with their last rows and columns.
    """
    import numpy as np

    rows, columns, _ = target.shape
    target[..., :TYPE] = np.frombuffer(_TYPE, np.uint8)
    start = TYPE
    for plane, side in ((luma, SIDE), (blue, SIDE // 2), (red, SIDE // 2)):
        samples = np.maximum(_filled(plane, rows * side, columns * side), np.uint8(1))
        # Rows of a macroblock as one item each: copied as a whole, ten times as fast.
        item: Any = np.dtype((np.void, side))
        stored = samples.view(item).reshape(rows, side, columns)
        end = start + side * side
        place = target[..., start:end].reshape(rows, columns, side, side).view(item)
        place[..., 0] = stored.transpose(0, 2, 1)
        start = end


def _filled(plane: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    import numpy as np

    missing = ((0, height - plane.shape[0]), (0, width - plane.shape[1]))
    return plane if plane.shape == (height, width) else np.pad(plane, missing, mode="edge")


def _escaped(nal: bytes) -> bytes:
    """Emulation prevention: no two zeros before a byte of 0 to 3."""
    escaped = bytearray()
    zeros = 0
    for byte in nal:
        if zeros == 2 and byte <= 3:
            escaped.append(3)
            zeros = 0
        escaped.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return bytes(escaped)


def _type() -> bytes:
    """mb_type and what aligns the samples behind it."""
    bits = Bits()
    bits.ue(I_PCM)
    return bits.aligned("0" * 7)


_TYPE = _type()
