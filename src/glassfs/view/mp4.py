"""Videos as MP4 files of uncompressed H.264 frames: the size is a formula, and any range is made alone.

Boxes: ISO/IEC 14496-12, ``avc1``: 14496-15, frames: ``glassfs.codec.h264``. ``moov`` comes first. All frames have one
size and decode independently, so its tables have one entry each, however many frames there are. A frame is made when a
range touches it, and kept by the cache. A damaged frame raises Damaged in its range; other frames stay readable. Any
thread.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing, suppress
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeGuard

from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content import Array, Blocked, Concatenated, Memory, Regular, Rendered, Video
from glassfs.content.video import video_of
from glassfs.errors import LASTING, Damaged, GlassfsError, TooLarge
from glassfs.lazy import np
from glassfs.view import planes
from glassfs.view.contract import Key, Shown, View
from glassfs.work import LEAST_AHEAD

Rate = tuple[int, int]

USUAL_RATE = Fraction(10)
"""Frames a second if a video has no valid rate."""
SLOWEST, FASTEST = 1e-4, 1e4
MOST_FRAMES = (1 << 31) - 1
"""Players count in 32 bits, some with a sign."""
NEAR = 100
"""Frames searched for one that exists before another, and for the range of 16-bit samples."""

MDAT_HEAD = 16
# Transformation by nothing, in 16.16 fixed point, but for the last column, which is 2.30.
_MATRIX = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)


def show(content: Video | Array, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the video. Raises TooLarge, or Damaged if there is nothing to show."""
    video = video_of(content)
    if video is not None:
        fps = video.fps() if callable(video.fps) else video.fps
        before = Memory(head(video.width, video.height, fps, video.count))
        yield Shown(Concatenated([before, EncodedFrames(video, 0, cache, key)]), ".mp4")


def head(width: int, height: int, fps: float, count: int) -> bytes:
    """Return what stands before the frames of a file. Raises TooLarge, or Damaged if there is nothing to show."""
    size = f"{width} x {height} pixels"
    if min(width, height, count) < 1:
        raise Damaged(f"a video of {count} frames of {size} shows nothing")
    columns, rows = h264.macroblocks(width, height)
    if max(width, height) > h264.LONGEST_SIDE or columns * rows > h264.MOST_MACROBLOCKS:
        raise TooLarge(f"a video of {size} is too large for an MP4")
    # Positions in the file are 63 bits at most; what stands before the frames takes about a KiB.
    if count > MOST_FRAMES or count * h264.size_of(width, height) > (1 << 63) - (1 << 16):
        raise TooLarge(f"a video of {count} frames is too long for an MP4")
    return _head(width, height, rate(fps), count)


def size_of(width: int, height: int, fps: float, count: int) -> int:
    """Return the size in bytes of the file of a video. Raises what ``head`` raises."""
    return len(head(width, height, fps, count)) + count * h264.size_of(width, height)


def shown(video: Video, number: int) -> int:
    """Return the number of the frame to show: the last existing one up to this, -1 if there is none.

    If existing frames are only known one by one, -1 also stands for a gap of ``NEAR`` frames.
    """
    if video.present is None:
        is_missing = video.is_missing
        near = range(number, max(-1, number - NEAR), -1)
        return number if is_missing is None else next((one for one in near if not is_missing(one)), -1)
    before = bisect_right(video.present, number)
    return video.present[before - 1] if before else -1


class EncodedFrames(Blocked):
    """The frames of a video as they stand in a file with ``first`` others before them."""

    def __init__(self, video: Video, first: int, cache: BlockCache, key: Key) -> None:
        self._video = video
        self._unit = h264.size_of(video.width, video.height)
        self._first = first
        self._key = key
        # Handing a small frame to another thread takes longer than making it.
        is_ahead = self._unit >= LEAST_AHEAD
        bounds = Regular(self._unit, video.count * self._unit)
        super().__init__(cache, lambda: bounds, self._image, is_sized=True, is_ahead=is_ahead)

    def _image(self, number: int) -> Rendered:
        """Return a frame as it stands in the file. Consecutive frames that show the same differ in a number."""
        # Decoders take two IDR frames with the same number in a row for one that was sent twice.
        video, parity = self._video, (self._first + number) % 2
        shown_number = shown(video, number)
        return Rendered(
            self._cache, (*self._key, shown_number, parity), partial(self._made, shown_number, parity), self._unit,
            self._unit + planes.strip_cost(video.width, video.height),
        )

    def _made(self, shown: int, parity: int) -> bytearray:
        video, made = self._video, bytearray(self._unit)
        # Frames of I_PCM macroblocks: each has the same size, whatever it shows, and decodes without the others.
        columns, rows = h264.macroblocks(video.width, video.height)
        target = np.frombuffer(made, np.uint8)[h264.FRONT : -len(h264.TAIL)].reshape(rows, columns, h264.MACROBLOCK)
        if shown < 0:
            gray = np.full((2, 2), planes.GRAY, np.uint8)
            h264.put(target, gray, gray, gray)
        else:
            self._put_samples(target, shown)
        made[: h264.HEAD] = h264.head(video.width, video.height, parity)
        made[-len(h264.TAIL) :] = h264.TAIL
        return made

    def _put_samples(self, target: planes.Plane, shown: int) -> None:
        video, first = self._video, 0
        try:
            strips = planes.strips(video.frame(shown), video.width, video.height, self._cache, self._range)
            with closing(strips):
                for strip in strips:
                    count = -(-strip.luma.shape[0] // h264.SIDE)
                    h264.put(target[first : first + count], *strip)
                    first += count
        except GlassfsError as error:
            raise error.at(part=f"frame {shown}") from error

    def _range(self) -> planes.Range:
        """Return the samples for black and white if there are 16 bits: the range of the first readable frame."""
        key = (*self._key, "range")
        noted = self._cache.notes.get(key)
        if noted is None:
            video, noted = self._video, planes.FULL
            present = range(video.count) if video.present is None else video.present
            for number in present[:NEAR]:
                with suppress(*LASTING):
                    noted = planes.range_of(video.frame(number), self._cache)
                    break
            self._cache.notes.put(key, noted)
        return noted[0], noted[1]


def rate(fps: Any) -> Rate:
    """Return the rate as units of time in a second, and in a frame; USUAL_RATE for what is no rate."""
    pace = Fraction(fps).limit_denominator(1 << 16) if is_rate(fps) else USUAL_RATE
    return pace.numerator, pace.denominator


def is_rate(fps: Any) -> TypeGuard[float]:
    """Return whether a value is a number of frames a second that videos can have."""
    return type(fps) in (int, float) and math.isfinite(fps) and SLOWEST <= fps <= FASTEST


@lru_cache(256)
def _head(width: int, height: int, pace: Rate, count: int) -> bytes:
    brands = _box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2avc1mp41")
    # ``moov`` says where the frames begin, which depends on its own size: so it is made twice.
    start = len(brands) + len(_moov(width, height, pace, count, 0)) + MDAT_HEAD
    # The size of ``mdat`` has 64 bits (1 instead of a size), as long videos exceed 4 GiB.
    payload = MDAT_HEAD + count * h264.size_of(width, height)
    moov = _moov(width, height, pace, count, start)
    return brands + moov + struct.pack(">I4sQ", 1, b"mdat", payload)


def _moov(width: int, height: int, pace: Rate, count: int, start: int) -> bytes:
    """Return ``moov`` for frames that begin at ``start``. The size does not depend on ``start``."""
    # Flags: the track is enabled and in the movie (3), the data are in this file (1). The language is undetermined
    # (0x55C4), the volume 1.0 and the resolution 72 dpi, as the documents say for files that do not care.
    second, frame = pace
    duration = count * frame
    wide, high = h264.shown(width), h264.shown(height)
    track = 1
    return _box(
        b"moov",
        _full(
            b"mvhd", 1, 0, struct.pack(">QQIQIH10x", 0, 0, second, duration, 1 << 16, 1 << 8), _MATRIX, bytes(24),
            struct.pack(">I", track + 1),
        ),
        _box(
            b"trak",
            _full(
                b"tkhd", 1, 3, struct.pack(">QQI4xQ16x", 0, 0, track, duration), _MATRIX,
                struct.pack(">II", wide << 16, high << 16),
            ),
            _box(
                b"mdia",
                _full(b"mdhd", 1, 0, struct.pack(">QQIQHH", 0, 0, second, duration, 0x55C4, 0)),
                _full(b"hdlr", 0, 0, struct.pack(">I4s12x", 0, b"vide"), b"film\0"),
                _box(
                    b"minf",
                    _full(b"vmhd", 0, 1, bytes(8)),
                    _box(b"dinf", _full(b"dref", 0, 0, struct.pack(">I", 1), _full(b"url ", 0, 1))),
                    _box(
                        b"stbl",
                        _full(b"stsd", 0, 0, struct.pack(">I", 1), _avc1(width, height)),
                        _full(b"stts", 0, 0, struct.pack(">III", 1, count, frame)),
                        _full(b"stsc", 0, 0, struct.pack(">IIII", 1, 1, count, 1)),
                        _full(b"stsz", 0, 0, struct.pack(">II", h264.size_of(width, height), count)),
                        _full(b"co64", 0, 0, struct.pack(">IQ", 1, start)),
                    ),
                ),
            ),
        ),
    )


def _avc1(width: int, height: int) -> bytes:
    wide, high = h264.shown(width), h264.shown(height)
    colors = struct.pack(">4sHHHB", b"nclx", *h264.COLORS, h264.FULL_RANGE << 7)
    return _box(
        b"avc1",
        struct.pack(">6xH16xHHIII", 1, wide, high, 72 << 16, 72 << 16, 0),
        struct.pack(">H32xHh", 1, 24, -1),
        _box(b"avcC", h264.configuration(width, height)),
        _box(b"colr", colors),
        _box(b"pasp", struct.pack(">II", 1, 1)),
    )


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(kind, struct.pack(">I", version << 24 | flags), *parts)


VIEW = View("mp4", "videos to play: every frame uncompressed, in 4:2:0 and 8 bits", (Video, Array), show)
