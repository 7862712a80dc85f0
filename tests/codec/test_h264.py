"""H.264 images of I_PCM: a reader of the standard's fields finds the size, the colors and every sample."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.codec import h264
from tests.codec.h264_reader import Plane, check_picture_set, picture, sequence

SIDES = st.integers(1, h264.LONGEST_SIDE)
NEEDS_ESCAPE = re.compile(rb"\0\0[\0-\3]")


def encoded(luma: Plane, blue: Plane, red: Plane, number: int = 0) -> bytes:
    height, width = luma.shape
    columns, rows = h264.macroblocks(width, height)
    made = bytearray(h264.size_of(width, height))
    body = np.frombuffer(made, np.uint8)[h264.FRONT : -1].reshape(rows, columns, h264.MACROBLOCK)
    h264.put(body, luma, blue, red)
    made[: h264.HEAD] = h264.head(width, height, number)
    made[-1:] = h264.TAIL
    return bytes(made)


@given(SIDES, SIDES)
@settings(deadline=None)
def test_sequence_has_size_and_colors(width: int, height: int) -> None:
    assert not NEEDS_ESCAPE.search(h264.sequence(width, height) + h264.picture_set())
    found = sequence(h264.sequence(width, height))
    assert found.size == (width + width % 2, height + height % 2)
    assert found.crop[0] == found.crop[2] == 0
    assert max(found.crop) < 16


@pytest.mark.parametrize(("width", "height", "level"), [
    (128, 96, 42), (640, 480, 42), (1920, 1080, 42), (2048, 1088, 42), (2048, 1104, 52), (3840, 2160, 52),
    (7680, 4320, 62), (4208, 16, 42), (4240, 16, 52), (16384, 1, 62),
])
def test_level(width: int, height: int, level: int) -> None:
    assert h264.level(width, height) == level
    assert sequence(h264.sequence(width, height)).level == level


def test_configuration() -> None:
    found = h264.configuration(100, 84)
    sps = h264.sequence(100, 84)
    assert found[:6] == bytes([1, 66, 0xC0, sequence(sps).level, 0xFF, 0xE1])
    size = int.from_bytes(found[6:8], "big")
    assert found[8 : 8 + size] == sps
    assert found[8 + size] == 1
    rest = found[9 + size :]
    assert (int.from_bytes(rest[:2], "big"), rest[2:]) == (len(rest) - 2, h264.picture_set())
    check_picture_set(rest[2:])


@given(SIDES, SIDES, st.integers(0, (1 << 32) - 1))
@settings(deadline=None)
def test_image_heads_need_no_escaping(width: int, height: int, number: int) -> None:
    """The head has two forms that alternate from frame to frame; the first sample is not 0."""
    head = h264.head(width, height, number)
    assert len(head) == h264.HEAD
    assert not NEEDS_ESCAPE.search(head[4:] + b"\1")
    assert head[4:] == h264.head(16, 16, number % 2)[4:]
    assert head[4:] != h264.head(width, height, number + 1)[4:]
    assert int.from_bytes(head[:4], "big") == h264.size_of(width, height) - 4


@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 3), st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_every_sample_is_decoded(width: int, height: int, number: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    shapes = (height, width), *[(-(-height // 2), -(-width // 2))] * 2
    planes = [chance.choice(np.array([0, 0, 1, 2, 3, 255, chance.integers(256)], np.uint8), shape) for shape in shapes]
    made = encoded(*planes, number)
    columns, rows = h264.macroblocks(width, height)
    assert len(made) == h264.size_of(width, height) == columns * rows * 386 + 8
    found = picture(made, columns, rows)
    assert found.number == 1 + number % 2
    for plane, full in zip(planes, found[1:], strict=True):
        inside = full[: plane.shape[0], : plane.shape[1]]
        assert np.array_equal(inside, np.maximum(plane, 1))
        # The cropped part repeats the edge, so that scaled and odd-sized images have no visible rim.
        assert (full[plane.shape[0] :] == full[plane.shape[0] - 1]).all()
        assert (full[:, plane.shape[1] :] == full[:, plane.shape[1] - 1 : plane.shape[1]]).all()
