"""Images, clouds of points and videos in MCAP recordings, against NumPy, Pillow and ffmpeg."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import glassfs
from glassfs.errors import Damaged
from glassfs.library.entry import Entry
from tests.formats.mcap_files import SECOND, START, STORE, Message, compressed, picture, write
from tests.view.videos import play

TYPES = STORE.types
IMAGE, CLOUD = "sensor_msgs/msg/Image", "sensor_msgs/msg/PointCloud2"
RANDOM = np.random.default_rng(3)


def header(number: int = 0) -> Any:
    return TYPES["std_msgs/msg/Header"](TYPES["builtin_interfaces/msg/Time"](number, 0), "camera")


def image(pixels: np.ndarray[Any, Any], encoding: str, *, padding: int = 0, is_big: bool = False) -> Any:
    """Return a message with pixels [height, width, channels], and bytes behind each row."""
    stored = pixels.astype(pixels.dtype.newbyteorder(">" if is_big else "<"))
    rows = np.frombuffer(stored.tobytes(), np.uint8).reshape(len(pixels), -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    return TYPES[IMAGE](header(), *pixels.shape[:2], encoding, int(is_big), rows.shape[1], rows.ravel())


def pixels_of(channels: int, dtype: str) -> np.ndarray[Any, Any]:
    values = RANDOM.integers(0, 1 << 16, (5, 7, channels))
    return values.astype(dtype) if dtype != "u1" else (values % 256).astype(dtype)


def opened(tmp_path: Path, kind: str, *values: Any, views: str = "") -> Entry:
    messages = [Message("/x", kind, START + number * SECOND // 5, value) for number, value in enumerate(values)]
    return glassfs.open(write(tmp_path / "run.mcap", messages), views=views)


def stored_png(raw: bytes) -> np.ndarray[Any, Any]:
    found = np.asarray(Image.open(io.BytesIO(raw)))
    return found if found.ndim == 3 else found[:, :, None]


PNGS = [
    ("rgb8", 3, "u1"), ("rgba8", 4, "u1"), ("bgr8", 3, "u1"), ("bgra8", 4, "u1"), ("mono8", 1, "u1"), ("8UC1", 1, "u1"),
    ("8UC3", 3, "u1"), ("mono16", 1, "<u2"), ("16UC1", 1, "<u2"), ("bayer_rggb8", 1, "u1"), ("bayer_gbrg16", 1, "<u2"),
]


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(("encoding", "channels", "dtype"), PNGS)
def test_pixels_are_png_where_that_is_exact(
    tmp_path: Path, encoding: str, channels: int, dtype: str, padding: int,
) -> None:
    pixels = pixels_of(channels, dtype)
    expected = pixels[:, :, [2, 1, 0, 3][:channels]] if encoding.startswith("bgr") else pixels
    padding *= pixels.itemsize
    big = image(pixels, encoding, padding=padding, is_big=pixels.itemsize > 1)
    with opened(tmp_path, IMAGE, image(pixels, encoding, padding=padding), big) as run:
        images = run["topics/x/images"]
        assert list(images) == ["000000.png", "000001.png"]
        for one in images.values():
            assert np.array_equal(stored_png(one.bytes()), expected)


ARRAYS = [
    ("32FC1", 1, "<f4"), ("64FC1", 1, "<f8"), ("16SC1", 1, "<i2"), ("8SC1", 1, "i1"), ("32SC1", 1, "<i4"),
    ("32FC3", 3, "<f4"), ("8UC2", 2, "u1"), ("8UC4", 4, "u1"), ("yuv422", 2, "u1"), ("yuv422_yuy2", 2, "u1"),
    ("uyvy", 2, "u1"), ("yuyv", 2, "u1"),
]


@pytest.mark.parametrize(("encoding", "channels", "dtype"), ARRAYS)
def test_other_pixels_are_arrays(tmp_path: Path, encoding: str, channels: int, dtype: str) -> None:
    pixels = pixels_of(channels, dtype)
    swapped = image(pixels, encoding, is_big=pixels.itemsize > 1)
    with opened(tmp_path, IMAGE, image(pixels, encoding, padding=8), swapped) as run:
        expected = pixels if channels > 1 else pixels[:, :, 0]
        for name in ("000000.npy", "000001.npy"):
            found = run["topics/x/images"][name].numpy()
            assert found.dtype == np.dtype(dtype) and np.array_equal(found, expected)


def test_unknown_and_short_images_are_bytes(tmp_path: Path) -> None:
    pixels = pixels_of(3, "u1")
    short, long, narrow, empty = (image(pixels, "rgb8") for _ in range(4))
    short.data, long.data, narrow.step = short.data[:-1], np.append(long.data, [1, 2, 3]).astype(np.uint8), 20
    empty.width = 0
    values = image(pixels, "nv12"), short, long, narrow, empty, image(pixels, "rgb8\0"), image(pixels, "")
    with opened(tmp_path, IMAGE, *values) as run:
        images = run["topics/x/images"]
        suffixes = [name.partition(".")[2] for name in images]
        assert suffixes == ["bin", "bin", "png", "bin", "bin", "bin", "bin"]
        assert images["000001.bin"].bytes() == pixels.tobytes()[:-1]
        assert np.array_equal(stored_png(images["000002.png"].bytes()), pixels)
        assert run["topics/x/fields/encoding.jsonl"].text().startswith('"nv12"\n')
        assert "data" not in run["topics/x/fields"]


def test_compressed_images_are_the_stored_bytes(tmp_path: Path) -> None:
    files = {"jpg": picture(1), "png": picture(2, "PNG"), "webp": picture(3, "WEBP"), "bin": b"no image at all"}
    depth = picture(4, "PNG")
    values = [compressed(0, raw) for raw in files.values()]
    values += [compressed(5, bytes(12) + depth, "16UC1; compressedDepth png"), compressed(6, b"")]
    with opened(tmp_path, "sensor_msgs/msg/CompressedImage", *values) as run:
        images = run["topics/x/images"]
        found = [(name.partition(".")[2], one.bytes()) for name, one in images.items()]
        assert found == [*files.items(), ("png", depth), ("bin", b"")]
        lines = [json.loads(line) for line in run["topics/x/messages.jsonl"].text().splitlines()]
        assert lines[0]["data"]["data"] == {"bytes": len(files["jpg"])}


def test_a_listing_names_images_by_their_suffixes_alone(tmp_path: Path) -> None:
    with opened(tmp_path, "sensor_msgs/msg/CompressedImage", compressed(0, picture(1)), compressed(1, b"x")) as run:
        images = run["topics/x/images"]
        assert "000000.jpg" in images and "000001.bin" in images
        for name in ("000000.png", "000001.jpg", "0.jpg", "000002.bin", "00000a.jpg", ".jpg"):
            assert name not in images
        assert images["000001"].bytes() == b"x"


POINT_FIELDS = {"x": ("<f4", 0, 7, 1), "ring": ("<u2", 6, 4, 1), "t": ("<f8", 8, 8, 1), "n": ("i1", 17, 1, 3)}
STRIDE = 22


def cloud(rows: int, width: int, *, gap: int = 0, is_big: bool = False) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return a message with random points, and the array that shows them."""
    order = ">" if is_big else "<"
    formats = [(np.dtype(dtype).newbyteorder(order), count) if count > 1 else np.dtype(dtype).newbyteorder(order)
               for dtype, _, _, count in POINT_FIELDS.values()]
    offsets = [offset for _, offset, _, _ in POINT_FIELDS.values()]
    stored = np.dtype({"names": list(POINT_FIELDS), "formats": formats, "offsets": offsets, "itemsize": STRIDE})
    raw = np.zeros((rows, width * STRIDE + gap), np.uint8)
    points = np.zeros((rows, width), stored)
    for name in POINT_FIELDS:
        points[name] = RANDOM.integers(0, 100, points[name].shape)
    raw[:, : width * STRIDE] = np.frombuffer(points.tobytes(), np.uint8).reshape(rows, -1)
    fields = [TYPES["sensor_msgs/msg/PointField"](name, offset, kind, count)
              for name, (_, offset, kind, count) in POINT_FIELDS.items()]
    step = raw.shape[1]
    message = TYPES[CLOUD](header(), rows, width, fields, is_big, STRIDE, step, raw.ravel(), True)
    packed = np.dtype([(name, dtype, (count,)) if count > 1 else (name, dtype)
                       for name, (dtype, _, _, count) in POINT_FIELDS.items()])
    return message, points.astype(packed).ravel()


@pytest.mark.parametrize(("rows", "width", "gap", "is_big"), [
    (1, 9, 0, False), (3, 4, 0, False), (3, 4, 7, False), (2, 5, 3, True), (1, 0, 0, False), (1, 4, 11, False),
])
def test_clouds_are_arrays_of_structures(tmp_path: Path, rows: int, width: int, gap: int, is_big: bool) -> None:
    message, expected = cloud(rows, width, gap=gap, is_big=is_big)
    with opened(tmp_path, CLOUD, message) as run:
        assert list(run["topics/x/points"]) == ["000000.npy"]
        found = run["topics/x/points/000000.npy"].numpy()
        assert found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("change", [
    {"point_step": 8}, {"width": 1 << 31}, {"height": 1 << 31}, {"row_step": 1}, {"data": np.zeros(5, np.uint8)},
    {"fields": []}, {"point_step": 0}, {"datatype": 0}, {"datatype": 9}, {"offset": 1 << 31}, {"count": 1 << 31},
    {"name": "ring"},
])
def test_clouds_that_contradict_themselves_are_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    message, _ = cloud(2, 3)
    for name, value in change.items():
        setattr(message if hasattr(message, name) else message.fields[0], name, value)
    good, expected = cloud(2, 3)
    with opened(tmp_path, CLOUD, message, good) as run:
        points = run["topics/x/points"]
        with pytest.raises(Damaged):
            next(iter(points.values())).bytes()
        assert np.array_equal(points["000001.npy"].numpy(), expected)


def test_videos_have_the_rate_of_the_log_times(tmp_path: Path) -> None:
    values = [compressed(number, picture(number)) for number in range(6)]
    with opened(tmp_path, "sensor_msgs/msg/CompressedImage", *values, views="mp4") as run:
        video = run["topics/x/images.mp4"].bytes()
        (tmp_path / "x.mp4").write_bytes(video)
        frames = play("-i", str(tmp_path / "x.mp4"))
        means = [np.frombuffer(frames, np.uint8).reshape(6, -1)[:, :80].mean(1)]
        assert np.abs(means - np.arange(6) * 20.0).max() < 3
