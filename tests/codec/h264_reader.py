"""A reader of what ``glassfs.codec.h264`` writes, field by field as in Rec. ITU-T H.264."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Plane = np.ndarray[Any, Any]


class Reader:
    """A bit reader of a NAL unit."""

    def __init__(self, nal: bytes) -> None:
        self.raw = nal
        self.position = 8 * 1

    def u(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = value << 1 | self.raw[self.position // 8] >> (7 - self.position % 8) & 1
            self.position += 1
        return value

    def ue(self) -> int:
        zeros = 0
        while not self.u(1):
            zeros += 1
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)

    def align(self) -> None:
        while self.position % 8:
            assert self.u(1) == 0

    def samples(self, side: int) -> Plane:
        start = self.position // 8
        self.position += 8 * side * side
        return np.frombuffer(self.raw, np.uint8, side * side, start).reshape(side, side)

    def trail(self) -> None:
        """Check the end of a NAL unit."""
        assert self.u(1) == 1
        self.align()
        assert self.position == 8 * len(self.raw)


def unescaped(nal: bytes) -> bytes:
    """Remove emulation prevention bytes; check that none is missing."""
    found, zeros = bytearray(), 0
    for byte in nal:
        if zeros == 2:
            assert byte > 2
            zeros = 0
            if byte == 3:
                continue
        found.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return bytes(found)


class Sequence(NamedTuple):
    level: int
    columns: int
    rows: int
    crop: tuple[int, int, int, int]
    """Left, right, top, bottom, in pixels."""

    @property
    def size(self) -> tuple[int, int]:
        left, right, top, bottom = self.crop
        return self.columns * 16 - left - right, self.rows * 16 - top - bottom


def sequence(nal: bytes) -> Sequence:
    """Read what differs from video to video; check all other fields."""
    assert nal[0] == 0x67
    bits = Reader(unescaped(nal))
    assert (bits.u(8), bits.u(8)) == (66, 0xC0)  # constrained baseline profile
    level = bits.u(8)
    assert [bits.ue() for _ in range(4)] == [0, 0, 2, 1]  # output in decoding order, one reference
    assert bits.u(1) == 0
    columns, rows = bits.ue() + 1, bits.ue() + 1
    assert (bits.u(1), bits.u(1)) == (1, 1)
    crop = (0, 0, 0, 0)
    if bits.u(1):
        crop = (2 * bits.ue(), 2 * bits.ue(), 2 * bits.ue(), 2 * bits.ue())
    assert bits.u(1) == 1
    assert (bits.u(1), bits.u(8)) == (1, 1)  # square pixels
    assert bits.u(1) == 0
    assert (bits.u(1), bits.u(3)) == (1, 5)
    assert (bits.u(1), bits.u(1)) == (1, 1)  # full range, of these colors
    assert [bits.u(8) for _ in range(3)] == [1, 13, 6]
    assert (bits.u(1), bits.ue(), bits.ue()) == (1, 1, 1)  # where chroma is
    assert [bits.u(1) for _ in range(4)] == [0, 0, 0, 0]
    assert (bits.u(1), bits.u(1)) == (1, 1)
    assert [bits.ue() for _ in range(6)] == [0, 0, 0, 0, 0, 1]  # not reordered
    bits.trail()
    return Sequence(level, columns, rows, crop)


def check_picture_set(nal: bytes) -> None:
    assert nal[0] == 0x68
    bits = Reader(unescaped(nal))
    assert (bits.ue(), bits.ue()) == (0, 0)
    assert (bits.u(1), bits.u(1)) == (0, 0)
    assert [bits.ue() for _ in range(3)] == [0, 0, 0]
    assert bits.u(3) == 0
    assert [bits.se() for _ in range(3)] == [0, 0, 0]
    assert [bits.u(1) for _ in range(3)] == [1, 0, 0]  # slices can turn off the filter
    bits.trail()


class EncodedImage(NamedTuple):
    number: int
    """idr_pic_id."""
    luma: Plane
    blue: Plane
    red: Plane


def picture(stored: bytes, columns: int, rows: int) -> EncodedImage:
    """Read one image with its length field."""
    assert int.from_bytes(stored[:4], "big") == len(stored) - 4
    nal = stored[4:]
    assert nal[0] == 0x65
    assert unescaped(nal) == nal
    bits = Reader(nal)
    assert (bits.ue(), bits.ue(), bits.ue()) == (0, 7, 0)
    assert bits.u(4) == 0  # frame_num
    number = bits.ue()
    assert (bits.u(1), bits.u(1)) == (0, 0)
    assert bits.se() == 0
    assert bits.ue() == 1  # no deblocking
    luma = np.empty((rows * 16, columns * 16), np.uint8)
    blue, red = (np.empty((rows * 8, columns * 8), np.uint8) for _ in range(2))
    for row in range(rows):
        for column in range(columns):
            assert bits.ue() == 25
            bits.align()
            for plane, side in ((luma, 16), (blue, 8), (red, 8)):
                plane[row * side :, column * side :][:side, :side] = bits.samples(side)
    bits.trail()
    return EncodedImage(number, luma, blue, red)
