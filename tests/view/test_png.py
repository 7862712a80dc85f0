"""PNG files with stored deflate: Pillow sees the pixels, the size is a formula, and every range is right."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from glassfs.cache import BlockCache
from glassfs.content import Array, Data, Image, Memory, Unreadable
from glassfs.errors import Damaged
from glassfs.view import file_of, folder_of
from glassfs.view.png import BAND, png_size
from tests.view.views import KEY, PLACE, file_bytes

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
Pixels = np.ndarray[Any, Any]


def pixels_of(file: bytes) -> Pixels:
    with Pillow.open(io.BytesIO(file)) as image:
        image.load()
        return np.asarray(image)


def chunks(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    position = 8
    while position < len(file):
        size, kind = struct.unpack_from(">I4s", file, position)
        body = file[position + 8 : position + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", file, position + 8 + size)[0]
        yield kind, body
        position += 12 + size


def decoded(file: bytes) -> tuple[tuple[int, ...], Pixels]:
    """Fields of IHDR, and the samples [rows, samples], by zlib and struct alone."""
    found = list(chunks(file))
    assert found[0][0] == b"IHDR"
    assert found[-1] == (b"IEND", b"")
    assert {kind for kind, _ in found[1:-1]} == {b"IDAT"}
    header = struct.unpack(">IIBBBBB", found[0][1])
    raw = zlib.decompress(b"".join(body for kind, body in found if kind == b"IDAT"))
    rows = np.frombuffer(raw, np.uint8).reshape(header[1], -1)
    assert not rows[:, 0].any()
    samples = np.ascontiguousarray(rows[:, 1:])
    return header, samples.view(">u2") if header[2] == 16 else samples


@st.composite
def images(draw: st.DrawFn) -> tuple[Image, Pixels]:
    """Any kind of image, and its samples [rows, columns, channels]."""
    width, height, channels = draw(st.integers(1, 40)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
    bits, is_planar = draw(st.sampled_from([8, 16])), draw(st.booleans())
    dtype = np.dtype("u1" if bits == 8 else "<u2")
    seed = draw(st.integers(0, 1000))
    samples = np.random.default_rng(seed).integers(0, 1 << bits, (height, width, channels)).astype(dtype)
    stored = samples.transpose(2, 0, 1) if is_planar else samples
    return Image(KEY, Memory(stored.tobytes()), width, height, channels, bits, is_planar), samples


@given(images())
@settings(deadline=None)
def test_the_samples_are_those_of_the_image(made: tuple[Image, Pixels]) -> None:
    image, samples = made
    header, found = decoded(file_bytes(image, ".png"))
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[image.channels]
    assert header == (image.width, image.height, image.bits, colour_type, 0, 0, 0)
    assert np.array_equal(found.reshape(samples.shape), samples)


@given(images())
@settings(max_examples=50, deadline=None)
def test_pillow_sees_the_same(made: tuple[Image, Pixels]) -> None:
    image, samples = made
    file = file_bytes(image, ".png")
    if image.bits == 8:
        with Pillow.open(io.BytesIO(file)) as opened:
            assert opened.mode == MODES[image.channels]
        assert np.array_equal(pixels_of(file).reshape(samples.shape), samples)
    elif image.channels == 1:
        assert np.array_equal(pixels_of(file).reshape(samples.shape), samples)


@pytest.mark.parametrize(("width", "height", "channels", "bits", "is_planar"), [
    (65_534, 1, 1, 8, False),  # one stored block, filled
    (65_535, 1, 1, 8, False),  # one byte more
    (65_534, 2, 1, 8, False),
    (300, 300, 4, 8, False),
    (1500, 2000, 3, 8, False),  # several bands of rows
    (1500, 2000, 3, 8, True),
    (1200, 2000, 1, 16, False),
    (BAND - 1, 3, 1, 8, False),  # one row fills a band
    (BAND + 9, 2, 1, 8, False),  # one row is more than a band
])
def test_images_beyond_one_block_and_one_band(
    width: int, height: int, channels: int, bits: int, is_planar: bool,
) -> None:
    chance = np.random.default_rng(1)
    samples = chance.integers(0, 1 << bits, (height, width, channels), dtype=np.uint16).astype(f"<u{bits // 8}")
    stored = samples.transpose(2, 0, 1) if is_planar else samples
    image = Image(KEY, Memory(stored.tobytes()), width, height, channels, bits, is_planar)
    for budget in (64 << 20, 1 << 20):  # kept in memory, and spooled
        header, found = decoded(file_bytes(image, ".png", budget))
        assert header[:3] == (width, height, bits)
        assert np.array_equal(found.reshape(samples.shape), samples)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 4), st.sampled_from([8, 16]))
@settings(deadline=None)
def test_the_size_is_known_without_pixels(width: int, height: int, channels: int, bits: int) -> None:
    """By an independent count: 57 bytes around the data, 6 of zlib, 12 a band, 5 a stored block."""
    row = 1 + width * channels * bits // 8
    rows = max(1, BAND // row)
    bands = [rows] * (height // rows) + ([height % rows] if height % rows else []) if height // rows < 5000 else None
    data = Unreadable(width * height * channels * bits // 8, Damaged("no pixels"))
    size = file_of(Image(KEY, data, width, height, channels, bits), BlockCache(), PLACE).data.size
    assert size == png_size(width, height, channels, bits)
    if bands is not None:
        assert size == 57 - 12 + 6 + sum(12 + row * count + 5 * -(-row * count // 65_535) for count in bands)


def test_large_images_take_little_memory() -> None:
    class Zeros(Data):
        @property
        def size(self) -> int:
            return 12_000 * 12_000

        def read_into(self, buffer: memoryview, offset: int) -> None:
            assert len(buffer) <= 2 * BAND

    image = Image(KEY, Zeros(), 12_000, 12_000, 1)
    data = file_of(image, BlockCache(1 << 20), PLACE).data
    tracemalloc.start()
    try:
        assert data.read(100 << 20, 10) == bytes(10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


def test_an_image_without_its_pixels_is_damage() -> None:
    data = file_of(Image(KEY, Unreadable(12, Damaged("frame 3 is missing")), 2, 2, 3), BlockCache(), PLACE).data
    with pytest.raises(Damaged, match="frame 3 is missing"):
        data.read(0, data.size)


# Films: arrays that are also a folder of frames.

FILMS = {
    "grey": ("|u1", (3, 4, 5, 1), None), "rgb": ("|u1", (3, 4, 5, 3), None), "rgba": ("|u1", (3, 4, 5, 4), None),
    "planes": ("|u1", (3, 3, 4, 5), "rgb"), "flat": ("|u1", (3, 4, 5), "rgb"), "depth": ("<u2", (3, 4, 5), "depth"),
    "depth of 8 bits": ("|u1", (3, 4, 5), "depth"), "channels win": ("|u1", (3, 3, 5, 3), "rgb"),
}


@pytest.mark.parametrize(("dtype", "shape", "modality"), FILMS.values(), ids=FILMS)
def test_frames_of_a_film(dtype: str, shape: tuple[int, ...], modality: str | None) -> None:
    values = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    series = folder_of(Array(KEY, Memory(values.tobytes()), dtype, shape, modality=modality))
    assert series is not None
    assert (series.count, series.digits) == (shape[0], 6)
    for number in range(shape[0]):
        frame = values[number]
        if len(shape) == 4 and shape[3] not in (1, 3, 4):
            frame = frame.transpose(1, 2, 0)
        header, samples = decoded(file_bytes(series.item(number), ".png"))
        assert header[:2] == (5, frame.shape[0])
        assert np.array_equal(samples.reshape(frame.shape), frame)


@pytest.mark.parametrize(("dtype", "shape", "modality"), [
    ("|u1", (3, 4, 5, 2), None), ("|u1", (3, 3, 4, 5), None), ("|u1", (3, 4, 5), None), ("<f4", (3, 4, 5, 3), "rgb"),
    ("|u1", (0, 4, 5, 3), "rgb"), ("|u1", (3, 0, 5, 3), "rgb"), ("<u2", (3, 4, 5), "rgb"), ("<u2", (3, 4, 5, 3), None),
    ("|u1", (4, 5, 3), None), ("|b1", (3, 4, 5, 3), "rgb"), ("|u1", (1, 1 << 31, 1, 1), None),
])
def test_other_arrays_are_no_films(dtype: str, shape: tuple[int, ...], modality: str | None) -> None:
    assert folder_of(Array(KEY, Unreadable(1, Damaged("never read")), dtype, shape, modality=modality)) is None
