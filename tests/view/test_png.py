"""PNG files with stored deflate: decoders find the pixels, the size is a formula, and any range is right and cheap."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from glassfs.cache import BlockCache
from glassfs.content import Array, Extent, Image, Memory, Unreadable
from glassfs.errors import Damaged, TooLarge
from glassfs.source.local import LocalStore
from glassfs.view import file_of, folder_of
from glassfs.view.png import STEP
from tests.memory_store import MemoryStore
from tests.view.views import KEY, PLACE, Noted, file_bytes, memory_below

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
Pixels = np.ndarray[Any, Any]


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
def test_decoders_find_the_samples_of_the_image(made: tuple[Image, Pixels]) -> None:
    image, samples = made
    file = file_bytes(image, ".png")
    header, found = decoded(file)
    color_type = {1: 0, 2: 4, 3: 2, 4: 6}[image.channels]
    assert header == (image.width, image.height, image.bits, color_type, 0, 0, 0)
    assert np.array_equal(found.reshape(samples.shape), samples)
    if image.bits == 8 or image.channels == 1:
        with Pillow.open(io.BytesIO(file)) as opened:
            assert image.bits == 16 or opened.mode == MODES[image.channels]
            assert np.array_equal(np.asarray(opened).reshape(samples.shape), samples)


@pytest.mark.parametrize(("width", "height", "channels", "bits", "is_planar"), [
    (65_471, 1, 1, 8, False),  # one stored block, filled
    (65_472, 1, 1, 8, False),  # one byte more
    (65_519, 4, 1, 8, False),  # a block has a row without its filter type
    (1, 200_000, 1, 8, False),  # rows so short that there are very many
    (7, 30_000, 4, 8, True),
    (15, 20_000, 1, 16, False),
    (300, 300, 4, 8, False),
    (1500, 2000, 3, 8, False),
    (1500, 2000, 3, 8, True),
    (1200, 2000, 1, 16, False),
    (300_000, 3, 1, 8, False),  # a row is several blocks
])
def test_images_beyond_one_block(width: int, height: int, channels: int, bits: int, is_planar: bool) -> None:
    chance = np.random.default_rng(1)
    samples = chance.integers(0, 1 << bits, (height, width, channels), dtype=np.uint16).astype(f"<u{bits // 8}")
    stored = samples.transpose(2, 0, 1) if is_planar else samples
    image = Image(KEY, Memory(stored.tobytes()), width, height, channels, bits, is_planar)
    header, found = decoded(file_bytes(image, ".png"))
    assert header[:3] == (width, height, bits)
    assert np.array_equal(found.reshape(samples.shape), samples)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 4), st.sampled_from([8, 16]))
@settings(deadline=None)
def test_the_size_is_known_without_pixels(width: int, height: int, channels: int, bits: int) -> None:
    """By an independent count: 47 and 33 bytes around the rows, and 17 for each block."""
    rows = height * (1 + width * channels * bits // 8)
    data = Unreadable(width * height * channels * bits // 8, Damaged("no pixels"))
    size = file_of(Image(KEY, data, width, height, channels, bits), BlockCache(), PLACE).data.size
    assert size == 47 + rows + 17 * -(-(rows + 47) // (STEP - 17)) + 33


class Pattern(Noted):
    """Generated pixels, of any number."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        super().read_into(buffer, offset)
        start = offset % 251
        buffer[:] = (bytes(range(251)) * ((start + len(buffer)) // 251 + 1))[start : start + len(buffer)]


def test_ranges_inside_the_last_checksum_and_the_end() -> None:
    image = Image(KEY, Memory(bytes(range(30))), 5, 2, 3)
    whole = file_bytes(image, ".png")
    data = file_of(image, BlockCache(), PLACE).data
    for start in range(len(whole) - 60, len(whole)):
        assert data.read(start, 1) == whole[start : start + 1]
        assert data.read(start, len(whole) - start) == whole[start:]


KINDS = [(8, 3, False), (16, 1, False), (8, 3, True), (16, 4, True)]


@pytest.mark.parametrize(("bits", "channels", "is_planar"), KINDS)
@pytest.mark.parametrize("piece", [64 << 10, 128 << 10, 1 << 20])
def test_sequential_reads_read_each_pixel_once(bits: int, channels: int, is_planar: bool, piece: int) -> None:
    """Even if each piece is read from a newly opened file, no pixel is read twice, checksums included."""
    width, height = 640, 480
    pixels = Pattern(width * height * channels * bits // 8)
    image = Image(KEY, pixels, width, height, channels, bits, is_planar)
    cache = BlockCache()
    size = file_of(image, cache, PLACE).data.size
    starts = range(0, size, piece)
    parts = [file_of(image, cache, PLACE).data.read(start, min(piece, size - start)) for start in starts]
    assert pixels.bytes_read <= 1.01 * pixels.size + 8 * channels * len(parts)
    assert b"".join(parts) == file_of(image, BlockCache(), PLACE).data.read(0, size)


@given(st.integers(0, 3_000_000), st.sampled_from([1, 300, 4096, 65_536]))
@settings(max_examples=100, deadline=None)
def test_range_reads_only_the_chunks_that_it_touches(offset: int, size: int) -> None:
    """Only the last bytes of all need all pixels."""
    pixels = Pattern(1000 * 1000 * 3)
    data = file_of(Image(KEY, pixels, 1000, 1000, 3), BlockCache(), PLACE).data
    offset = min(offset, data.size - 100)
    size = min(size, data.size - 100 - offset)
    data.read(offset, size)
    assert pixels.bytes_read <= size + 2 * STEP


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_reused_buffers_are_overwritten(tmp_path_factory: pytest.TempPathFactory, drawn: st.DataObject) -> None:
    """One buffer, as the kernel has, for ranges of images of several kinds, from a file."""
    kinds = [(640, 480, 3, 8, False), (33, 9000, 2, 8, False), (700, 900, 4, 8, True), (900, 700, 1, 16, False)]
    path = tmp_path_factory.getbasetemp() / "pixels"
    if not path.exists():
        path.write_bytes(np.random.default_rng(5).bytes(3_000_000))
    source, cache = LocalStore(path.parent).open((path.name,)), BlockCache()
    page = memoryview(bytearray(b"\xff" * (3 << 20)))
    for width, height, channels, bits, is_planar in drawn.draw(st.lists(st.sampled_from(kinds), max_size=6)):
        size = width * height * channels * bits // 8
        image = Image(KEY, Extent(source, 9, size), width, height, channels, bits, is_planar)
        whole = file_bytes(Image(KEY, Memory(source.read(9, size)), width, height, channels, bits, is_planar), ".png")
        data = file_of(image, cache, (*PLACE, width)).data
        for _ in range(3):
            start = drawn.draw(st.integers(0, len(whole) - 1))
            end = drawn.draw(st.integers(start, len(whole)))
            data.read_into(page[: end - start], start)
            assert page[: end - start] == whole[start:end]


def test_forgotten_version_loses_its_checksums() -> None:
    """The same key with other bytes: the file was written and its mtime restored."""
    cache = BlockCache()
    for value in (1, 2):
        image = Image(KEY, Memory(bytes([value]) * (600 * 500 * 3)), 600, 500, 3)
        data = file_of(image, cache, PLACE).data
        parts = [data.read(start, min(1 << 16, data.size - start)) for start in range(0, data.size, 1 << 16)]
        assert (decoded(b"".join(parts))[1] == value).all()
        cache.forget(PLACE[0])


def test_rows_of_many_chunks_come_from_the_source_in_one_read() -> None:
    store = MemoryStore({"a": bytes(640 * 480 * 3 + 50)})
    source = store.open(("a",))
    data = file_of(Image(KEY, Extent(source, 50, 640 * 480 * 3), 640, 480, 3), BlockCache(), PLACE).data
    before = store.reads
    data.read(0, data.size)
    assert store.reads == before + 2


@pytest.mark.parametrize(("width", "height", "bits"), [
    (12_000, 12_000, 8), pytest.param(1, 1 << 30, 8, marks=pytest.mark.slow), (33, 1 << 26, 8), (32 << 20, 9, 16),
    (1 << 30, 1, 8),
])
def test_large_images_take_little_memory(width: int, height: int, bits: int) -> None:
    pixels = Pattern(width * height * bits // 8)
    data = file_of(Image(KEY, pixels, width, height, 1, bits), BlockCache(1 << 20), PLACE).data
    with memory_below(40 << 20):
        for offset in (0, 40 << 20, data.size // 2):
            data.read(offset, 1 << 20)
    assert max(size for _, size in pixels.read_ranges) <= 2 << 20


@pytest.mark.parametrize(("width", "height"), [((1 << 31) - 1, 5), (1 << 20, 9000)])
def test_too_large_images_are_refused(width: int, height: int) -> None:
    pixels = Unreadable(1 << 60, Damaged("never read"))
    data = file_of(Image(KEY, pixels, width, height, 1), BlockCache(), PLACE).data
    for offset in (0, data.size - 10):
        with pytest.raises(TooLarge, match="too large"):
            data.read(offset, 10)


def test_an_image_without_its_pixels_is_damage() -> None:
    data = file_of(Image(KEY, Unreadable(12, Damaged("frame 3 is missing")), 2, 2, 3), BlockCache(), PLACE).data
    with pytest.raises(Damaged, match="frame 3 is missing"):
        data.read(0, data.size)


VIDEOS = {
    "gray": ("|u1", (3, 4, 5, 1), None), "rgb": ("|u1", (3, 4, 5, 3), None), "rgba": ("|u1", (3, 4, 5, 4), None),
    "planes": ("|u1", (3, 3, 4, 5), "rgb"), "flat": ("|u1", (3, 4, 5), "rgb"), "depth": ("<u2", (3, 4, 5), "depth"),
    "depth of 8 bits": ("|u1", (3, 4, 5), "depth"), "channels win": ("|u1", (3, 3, 5, 3), "rgb"),
}


@pytest.mark.parametrize(("dtype", "shape", "modality"), VIDEOS.values(), ids=VIDEOS)
def test_video_frames_are_images(dtype: str, shape: tuple[int, ...], modality: str | None) -> None:
    values = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    series = folder_of(Array(KEY, Memory(values.tobytes()), dtype, shape, modality=modality))
    assert series is not None
    assert (series.numbers, series.digits) == (range(shape[0]), 6)
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
def test_other_arrays_are_not_videos(dtype: str, shape: tuple[int, ...], modality: str | None) -> None:
    assert folder_of(Array(KEY, Unreadable(1, Damaged("never read")), dtype, shape, modality=modality)) is None
