"""Images and clouds of points in messages of known types, as files of their own (docs/formats/mcap.md §5).

A picture is made when it is looked up, from its message alone; its payload is a range of the message. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from glassfs.content import (
    Array,
    Blob,
    Content,
    Converted,
    Data,
    EncodedImage,
    Gathered,
    Image,
    Series,
    Slice,
    Unreadable,
    Video,
    dtypes,
)
from glassfs.content.images import MOST_BYTES, opened
from glassfs.errors import LASTING, Damaged
from glassfs.formats.mcap.messages import Messages
from glassfs.formats.mcap.recording import Schema
from glassfs.lazy import np

DIGITS = 6
IMAGES, CLOUDS = ("CompressedImage", "CompressedVideo", "Image", "RawImage"), ("PointCloud2", "PointCloud")
_TYPE = re.compile(rf"(?:sensor_msgs|foxglove|foxglove_msgs)[/.](?:msg/)?({'|'.join((*IMAGES, *CLOUDS))})")
SIGNATURES = ((rb"\xff\xd8\xff", "jpeg"), (rb"\x89PNG\r\n\x1a\n", "png"), (rb"RIFF.{4}WEBP", "webp"))
DEPTH_HEADER = 12
"""Bytes before the PNG of a compressed depth image."""
ORDERS = {"bgr": [2, 1, 0], "bgra": [2, 1, 0, 3]}
"""The order of channels where it is another one than in PNG."""
CHANNELS = {"rgb": 3, "rgba": 4, "bgr": 3, "bgra": 4, "yuv422": 2, "uyvy": 2, "yuyv": 2}
KINDS = {"U": "u", "S": "i", "F": "f"}
_PIXELS = re.compile(r"(rgba?|bgra?|mono|bayer_[a-z]{4}|yuv422|uyvy|yuyv)(8|16|_yuy2)?|(8|16|32|64)([USF])C([1-4])")
PACKETS = ("h264", "h265", "vp9", "av1")
"""Formats of videos, each of whose packets is a file."""
POINT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
"""Types of fields of points: those of ROS, and those of Foxglove, whose signed ones come second."""
FOXGLOVE_TYPES = {1: "u1", 2: "i1", 3: "u2", 4: "i2", 5: "u4", 6: "i4", 7: "f4", 8: "f8"}


class Pictures(NamedTuple):
    """The images or clouds in messages of a type, named ``kind``.

    ``decode`` returns the values of a message, ``slots`` are the places of fields in them, that of ``data`` among them.
    """

    kind: str
    messages: Messages
    decode: Callable[[memoryview], list[Any]]
    slots: Mapping[str, int]

    @property
    def name(self) -> bytes:
        return b"points" if self.kind in CLOUDS else b"images"

    @property
    def directory(self) -> Series:
        """The directory of all pictures."""
        return Series(self.name, range(self.messages.count), self.picture, DIGITS, is_mixed=True)

    def videos(self) -> Iterator[Video]:
        """Yield a video of images, if the first one can be shown; its size is that of the video. Reads it."""
        if self.kind in CLOUDS or not self.messages.count:
            return
        first = self.picture(0)
        size = (first.width, first.height) if isinstance(first, Image) else None
        if isinstance(first, EncodedImage):
            with suppress(Damaged), opened(first.data.read(0, min(first.data.size, MOST_BYTES)), first.media) as image:
                size = image.size
        if size is not None:
            yield Video(self.name, self.messages.count, self._rate, *size, self.picture)

    def picture(self, number: int) -> Content:
        """Return the picture in a message."""
        key = b"%0*d" % (DIGITS, number)
        try:
            payload = self.messages.payload(number)
            self.messages.demand_small(payload.size)
            message = payload.read(0, payload.size)
            values = self.decode(memoryview(message))
            fields = {name: values[slot] for name, slot in self.slots.items()}
            data = Slice(payload, message.find(fields["data"].tobytes()), len(fields["data"]))
            if self.kind in CLOUDS:
                return _points(key, data, fields)
            if self.kind.startswith("Compressed"):
                return _encoded(key, data, fields["format"])
            return _pixels(key, data, fields) or Blob(key, data)
        except LASTING as error:
            return Blob(key, Unreadable(1, error))
        except (KeyError, AttributeError, TypeError):  # the file may define types of these names otherwise
            return Blob(key, Unreadable(1, Damaged("has other fields than its type")))

    def _rate(self) -> float:
        """Return the mean rate of the images, 0 if it is unknown. Raises Damaged."""
        times = self.messages.column("log_time")
        first, last = (int.from_bytes(times.read(at, 8), "little") for at in (0, times.size - 8))
        return 1e9 * (self.messages.count - 1) / (last - first) if last > first else 0.0


def pictures_of(schema: Schema | None) -> str:
    """Return which pictures messages with a schema have, empty if none."""
    found = _TYPE.fullmatch(schema.name) if schema else None
    return found[1] if found else ""


def _encoded(key: bytes, data: Data, form: str) -> Content:
    """Return an image, or a packet of a video, as it is stored."""
    if "compressedDepth" in form:
        start = min(DEPTH_HEADER, data.size)
        data = Slice(data, start, data.size - start)
    head = data.read(0, min(16, data.size))
    media = next((media for found, media in SIGNATURES if re.match(found, head, re.DOTALL)), "")
    media = media or (form if form in PACKETS else "")
    return EncodedImage(key, data, media) if media else Blob(key, data)


def _pixels(key: bytes, data: Data, fields: Mapping[str, Any]) -> Content | None:
    """Return an image of pixels: with those that PNG has as such, others as an array; None if they are unknown."""
    found = _PIXELS.fullmatch(fields["encoding"])
    if found is None:
        return None
    name, bits, wide, kind, count = found.groups()
    channels = int(count or CHANNELS.get(name, 1))
    size = int(wide or (bits if bits in ("8", "16") else 8)) // 8
    dtype = f"{KINDS[kind or 'U']}{size}"
    width, height, step, row = fields["width"], fields["height"], fields["step"], fields["width"] * channels * size
    if not (width and height and 0 < row <= step and step * height <= data.size):
        return None
    pixels: Data = Gathered(data, 0, row, step, height)
    order, is_big = ORDERS.get(name), bool(fields.get("is_bigendian")) and size > 1
    if order or is_big:
        def converted(raw: bytes) -> bytes:
            values = np.frombuffer(raw, ("<", ">")[is_big] + dtype).reshape(-1, channels)
            return bytes((values[:, order] if order else values).astype("<" + dtype).tobytes())

        pixels = Converted(pixels, channels * size, channels * size, row * height, converted)
    if name in ("yuv422", "uyvy", "yuyv") or kind not in (None, "U") or size > 2 or (kind and channels not in (1, 3)):
        shape = (height, width, channels) if channels > 1 else (height, width)
        return Array(key, pixels, ("<" if size > 1 else "|") + dtype, shape)
    return Image(key, pixels, width, height, channels, 8 * size)


def _points(key: bytes, data: Data, fields: Mapping[str, Any]) -> Content:
    """Return a cloud as an array of structures without gaps. Raises Damaged for fields that are none."""
    is_ros, order = "point_step" in fields, ">" if fields.get("is_bigendian") else "<"
    stride = fields["point_step"] if is_ros else fields["point_stride"]
    types = POINT_TYPES if is_ros else FOXGLOVE_TYPES
    try:
        names, formats, offsets = [], [], []
        for name, offset, kind, *count in fields["fields"]:
            names.append(name)
            formats.append((order + types[kind], count[0]) if count and count[0] > 1 else order + types[kind])
            offsets.append(offset)
        stored = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": stride})
        packed = np.dtype([(name, stored[name].newbyteorder("<")) for name in names])
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged("has fields of points that contradict one another") from error
    rows, width = (fields["height"], fields["width"]) if is_ros else (1, data.size // max(1, stride))
    step = fields["row_step"] if is_ros and rows > 1 else width * stride
    if step < width * stride or rows * step > data.size or not names or packed.itemsize > stride:
        raise Damaged("has fewer points than it says, or fields that overlap")
    lines = Gathered(data, 0, width * stride, max(1, step), rows)
    total = rows * width

    def convert(raw: bytes) -> bytes:
        return bytes(np.frombuffer(raw, stored).astype(packed).tobytes())

    points = Converted(lines, stride, packed.itemsize, total * packed.itemsize, convert)
    return Array(key, points, dtypes.description_of(packed), (total,))
