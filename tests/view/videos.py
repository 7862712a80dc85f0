"""Videos for tests of the mp4 view, their MP4 boxes, and what ffmpeg plays of them."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image as Pillow

from glassfs.cache import BlockCache
from glassfs.content import Content, Data, EncodedImage, Image, Memory, Video
from glassfs.view import mp4
from tests.optional import without

Pixels = np.ndarray[Any, Any]
KEY = b"film"
PLACE = ("version", "place")


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


def stored(pixels: Pixels, media: str, mode: str = "", **options: Any) -> EncodedImage:
    """The same compressed."""
    made = io.BytesIO()
    image = Pillow.fromarray(pixels)
    (image.convert(mode, palette=Pillow.Palette.ADAPTIVE) if mode else image).save(made, media, **options)
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


def boxes(file: bytes) -> dict[bytes, bytes]:
    """The bodies of boxes before the frames, by their kinds: each is there once."""
    found: dict[bytes, bytes] = {}
    start, end = 0, file.index(b"mdat")
    while start + 8 < end:
        size, kind = struct.unpack_from(">I4s", file, start)
        assert kind not in found
        found[kind] = file[start + 8 : start + size]
        start += 8 if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl") else size
    return found


def run(*words: str, file: bytes = b"") -> bytes:
    """Run a program, which gets a file and must not warn, and return its output."""
    if shutil.which(words[0]) is None:
        pytest.skip(without("ffmpeg"))
    done = subprocess.run(words, input=file, capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout


def play(*words: str, file: bytes = b"") -> bytes:
    """Return the samples of all frames that ffmpeg finds."""
    return run(
        "ffmpeg", "-hide_banner", "-nostdin", "-v", "warning", *words, "-fps_mode", "passthrough", "-f", "rawvideo",
        "-", file=file,
    )


class Planes(NamedTuple):
    luma: Pixels
    blue: Pixels
    red: Pixels


def played(made: Video) -> list[Planes]:
    """The frames of the file of a video in ffmpeg: they have an even number of rows and columns."""
    samples = np.frombuffer(play("-i", "-", file=bytes(data_of(made).whole())), np.uint8)
    rows, columns = -(-made.height // 2), -(-made.width // 2)
    frames = samples.reshape(made.count, rows * columns * 6)
    return [
        Planes(luma.reshape(2 * rows, -1), blue.reshape(rows, -1), red.reshape(rows, -1))
        for luma, blue, red in (np.split(frame, [4 * rows * columns, 5 * rows * columns]) for frame in frames)
    ]


def rgb(image: Planes, width: int, height: int) -> Pixels:
    """By the matrix of BT.601 at full range, chroma of the nearest."""
    luma = image.luma[:height, :width].astype(float)
    blue, red = (
        plane.repeat(2, 0).repeat(2, 1)[:height, :width].astype(float) - 128 for plane in (image.blue, image.red)
    )
    channels = luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue
    return np.stack(channels, -1).round().clip(0, 255)
