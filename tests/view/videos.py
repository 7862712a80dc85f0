"""Videos for tests of the mp4 view, and parsers of MP4 boxes and frames."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pillow

from glassfs.cache import BlockCache
from glassfs.content import Content, Data, EncodedImage, Image, Memory, Video
from glassfs.view import mp4
from tests.codec import h264_reader

Pixels = np.ndarray[Any, Any]
KEY = b"film"
PLACE = ("version", "place")

CONTAINERS = {b"moov", b"trak", b"mdia", b"minf", b"dinf", b"stbl"}


def video(frames: Sequence[Content], width: int, height: int, fps: float = 10, present: Sequence[int] | None = None,
         count: int | None = None) -> Video:
    """Return a video of these contents; ``present`` are the numbers of their frames."""
    def frame(number: int) -> Content:
        return frames[number if present is None else list(present).index(number)]

    return Video(KEY, len(frames) if count is None else count, fps, width, height, frame, present)


def raw(pixels: Pixels, is_planar: bool = False) -> Image:
    """Pixels [rows, columns, channels] as a container stores them."""
    height, width, channels = pixels.shape
    stored = pixels.transpose(2, 0, 1) if is_planar else pixels
    data = Memory(np.ascontiguousarray(stored).tobytes())
    return Image(KEY, data, width, height, channels, 8 * pixels.dtype.itemsize, is_planar)


def stored(pixels: Pixels, media: str, **options: Any) -> EncodedImage:
    """The same compressed."""
    made = io.BytesIO()
    Pillow.fromarray(pixels).save(made, media, **options)
    return EncodedImage(KEY, Memory(made.getvalue()), media)


def flat(width: int, height: int, *channels: int) -> Pixels:
    return np.full((height, width, len(channels)), channels, np.uint8)


def patches(width: int, height: int, seed: int) -> Pixels:
    """Squares of 32 pixels of one color each."""
    few = np.random.default_rng(seed).integers(0, 256, (-(-height // 32), -(-width // 32), 3)).astype(np.uint8)
    return few.repeat(32, 0).repeat(32, 1)[:height, :width]


def data_of(made: Video, cache: BlockCache | None = None) -> Data:
    ((data, suffix, _),) = mp4.show(made, cache or BlockCache(8 << 20), PLACE)
    assert suffix == ".mp4"
    return data


def boxes(file: bytes, start: int = 0, end: int | None = None) -> dict[bytes, bytes]:
    """The bodies of all boxes, by their kinds: each is there once."""
    found: dict[bytes, bytes] = {}
    end = len(file) if end is None else end
    while start < end:
        size, kind = struct.unpack_from(">I4s", file, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", file, start + 8), 16
        assert size >= head and start + size <= end
        assert kind not in found
        found[kind] = file[start + head : start + size]
        if kind in CONTAINERS:
            found |= boxes(file, start + head, start + size)
        elif kind == b"stsd":
            found |= boxes(file, start + 16, start + size)
        elif kind == b"avc1":
            found |= boxes(file, start + 8 + 78, start + size)
        start += size
    return found


class Shown(NamedTuple):
    boxes: dict[bytes, bytes]
    sequence: h264_reader.Sequence
    images: list[h264_reader.EncodedImage]


def shown(file: bytes) -> Shown:
    """What a player finds by the tables of the file."""
    found = boxes(file)
    configuration = found[b"avcC"]
    size = int.from_bytes(configuration[6:8], "big")
    sequence = h264_reader.sequence(configuration[8 : 8 + size])
    _, sample, count = struct.unpack(">III", found[b"stsz"])
    _, chunks, start = struct.unpack(">IIQ", found[b"co64"])
    assert chunks == 1
    assert struct.unpack(">5I", found[b"stsc"]) == (0, 1, 1, count, 1)
    assert start + count * sample == len(file)
    images = [
        h264_reader.picture(file[start + number * sample :][:sample], sequence.columns, sequence.rows)
        for number in range(count)
    ]
    return Shown(found, sequence, images)


def rgb(image: h264_reader.EncodedImage, width: int, height: int) -> Pixels:
    """By the matrix of BT.601 at full range, chroma of the nearest."""
    luma = image.luma[:height, :width].astype(float)
    blue, red = (
        plane.repeat(2, 0).repeat(2, 1)[:height, :width].astype(float) - 128 for plane in (image.blue, image.red)
    )
    channels = luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue
    return np.stack(channels, -1).round().clip(0, 255)
