"""Videos as MP4: ffmpeg plays them, ranges are independent, and frames may be missing, damaged or of other kinds."""

from __future__ import annotations

import json
import random
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content import Blob, Content, EncodedImage, Image, Memory, Unreadable, Video, images
from glassfs.errors import Changed, Damaged, TooLarge
from glassfs.view import mp4, planes
from tests.view.videos import KEY, PLACE, boxes, data_of, flat, patches, play, played, raw, rgb, run, stored, video
from tests.view.views import memory_below

RED = (200, 30, 60)


def noise(width: int, height: int, channels: int, seed: int, dtype: str = "u1") -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, (height, width, channels), dtype, endpoint=True)


@given(
    st.integers(1, 50), st.integers(1, 50), st.integers(1, 5), st.integers(1, 4), st.booleans(),
    st.sampled_from(["u1", "<u2"]), st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_any_range_is_that_of_the_whole(
    width: int, height: int, count: int, channels: int, is_planar: bool, dtype: str, seed: int,
) -> None:
    frames = [raw(noise(width, height, channels, seed + number, dtype), is_planar) for number in range(count)]
    made = video(frames, width, height)
    data = data_of(made)
    whole = data.read(0, data.size)
    head = len(whole) - count * h264.size_of(width, height)
    assert whole[head - 16 :][:8] == b"\0\0\0\1mdat"
    assert data_of(made).whole() == whole
    chance, cache = random.Random(seed), BlockCache(1 << 20)
    for _ in range(10):
        start = chance.randrange(len(whole))
        end = min(len(whole), start + chance.choice((1, 9, 300, 5000, len(whole))))
        assert data_of(made, cache).read(start, end - start) == whole[start:end]


def test_only_the_frames_of_a_range_are_made() -> None:
    asked: list[int] = []
    frame = raw(flat(40, 40, *RED))

    def counted(number: int) -> Content:
        asked.append(number)
        return frame

    data = data_of(Video(KEY, 100, 10, 40, 40, counted))
    size = h264.size_of(40, 40)
    head = data.size - 100 * size
    assert not asked
    data.read(0, head)
    assert not asked
    data.read(head + 50 * size + 7, 10)
    assert asked == [50]
    data.read(head + 50 * size + 100, 10)
    assert asked.count(50) == 1
    data.read(head + 70 * size - 1, 2)
    # Those behind a range may be made ahead of their reader.
    assert {69, 70} <= set(asked[1:]) <= {51, 69, 70, 71}


def test_the_index_is_before_the_frames_and_each_is_a_key_frame() -> None:
    found = boxes(bytes(data_of(video([raw(flat(101, 84, *RED))] * 3, 101, 84)).whole()))
    assert list(found)[:2] == [b"ftyp", b"moov"]
    assert b"stss" not in found and b"edts" not in found
    assert struct.unpack(">IQQIQ", found[b"mdhd"][:32]) == (1 << 24, 0, 0, 10, 3)
    assert struct.unpack(">II", found[b"tkhd"][-8:]) == (102 << 16, 84 << 16)
    assert b"colrnclx" + struct.pack(">HHHB", 1, 13, 6, 0x80) in found[b"stsd"]


@pytest.mark.parametrize(("width", "height", "fps"), [(64, 48, 10), (101, 85, 29.97), (640, 480, 0.1)])
def test_ffprobe_finds_the_declared_properties(tmp_path: Path, width: int, height: int, fps: float) -> None:
    path = tmp_path / "film.mp4"
    frames = [raw(noise(width, height, 3, seed)) for seed in range(4)]
    path.write_bytes(data_of(video(frames, width, height, fps)).whole())
    words = ("ffprobe", "-hide_banner", "-v", "warning", "-count_frames", "-show_streams", "-of", "json", str(path))
    (found,) = json.loads(run(*words))["streams"]
    assert (found["width"], found["height"]) == (width + width % 2, height + height % 2)
    assert (found["nb_frames"], found["nb_read_frames"]) == ("4", "4")
    numerator, denominator = map(int, found["avg_frame_rate"].split("/"))
    assert numerator / denominator == pytest.approx(fps)
    assert float(found["duration"]) == pytest.approx(4 / fps, abs=1e-6)
    assert (found["profile"], found["has_b_frames"]) == ("Constrained Baseline", 0)
    assert (found["color_range"], found["color_space"]) == ("pc", "smpte170m")
    assert (found["color_transfer"], found["color_primaries"]) == ("iec61966-2-1", "bt709")


@pytest.mark.slow
@pytest.mark.parametrize("fps", [10, 29.97, 0.25])
def test_seeking_finds_the_same_frames_as_playing(tmp_path: Path, fps: float) -> None:
    path, count = tmp_path / "film.mp4", 12
    path.write_bytes(data_of(video([raw(noise(48, 32, 3, seed)) for seed in range(count)], 48, 32, fps)).whole())
    whole = play("-i", str(path))
    size = len(whole) // count
    for number in range(count):
        start = (number - 0.4) / fps if number else 0
        assert play("-ss", f"{start:.6f}", "-i", str(path), "-frames:v", "1") == whole[number * size :][:size]


@pytest.mark.parametrize(("width", "height", "fps"), [
    (64, 48, 10), (100, 84, 29.97), (33, 17, 0.5), (1, 1, 1000), (640, 480, 30), (16, 16, 1 / 3), (1000, 2, 60),
])
def test_ffmpeg_returns_every_sample(width: int, height: int, fps: float) -> None:
    frames = [noise(width, height, 1, seed) for seed in range(5)]
    for image, frame in zip(played(video([raw(one) for one in frames], width, height, fps)), frames, strict=True):
        assert np.array_equal(image.luma[:height, :width], np.maximum(frame[..., 0], 1))


@pytest.mark.parametrize(("fps", "expected"), [
    (10, (10, 1)), (29.97, (2997, 100)), (30000 / 1001, (30000, 1001)), (0.1, (1, 10)), (1 / 3, (1, 3)),
    (1e4, (10000, 1)), (1e-4, (1, 10000)), (0, (10, 1)), (-1, (10, 1)), (float("nan"), (10, 1)),
    (float("inf"), (10, 1)), (1e9, (10, 1)), (1e-9, (10, 1)),
])
def test_rates(fps: float, expected: tuple[int, int]) -> None:
    assert mp4.rate(fps) == expected


@pytest.mark.parametrize("kind", ["raw", "planar", "alpha", "png", "jpeg", "png of a palette"])
def test_flat_patches_keep_their_colors(kind: str) -> None:
    pixels = patches(96, 64, 1)
    alpha = np.concatenate((pixels, np.zeros((64, 96, 1), np.uint8)), 2)
    frame: Content = {
        "raw": lambda: raw(pixels), "planar": lambda: raw(pixels, True), "alpha": lambda: raw(alpha),
        "png": lambda: stored(pixels, "png"), "jpeg": lambda: stored(pixels, "jpeg", quality=100, subsampling=0),
        "png of a palette": lambda: stored(pixels, "png", mode="P"),
    }[kind]()
    assert abs(rgb(played(video([frame], 96, 64))[0], 96, 64) - pixels).max() <= 3


@pytest.mark.parametrize("options", [{"subsampling": 2}, {"progressive": True}, {"keep_rgb": True}])
def test_kinds_of_jpeg(options: dict[str, object]) -> None:
    """JPEGs stored as RGB are not taken for YCbCr."""
    pixels = patches(64, 64, 3)
    found = rgb(played(video([stored(pixels, "jpeg", quality=98, **options)], 64, 64))[0], 64, 64)
    assert abs(found - pixels)[8:24, 8:24].max() <= 5


def test_gray_images_keep_their_samples() -> None:
    pixels = np.repeat(np.arange(64, dtype=np.uint8)[:, None, None] * 4, 32, 1)
    for frame in (raw(pixels), stored(pixels[..., 0], "png"), raw(np.concatenate((pixels, pixels // 2), 2), True)):
        (image,) = played(video([frame], 32, 64))
        assert np.array_equal(image.luma, np.maximum(pixels[..., 0], 1))
        assert (image.blue == 128).all() and (image.red == 128).all()


@pytest.mark.parametrize("is_png", [False, True])
def test_16_bits_are_scaled_by_range_of_first_frame(is_png: bool) -> None:
    first = np.array([[1000, 2000], [3000, 1500]], "<u2")
    second = np.array([[0, 65535], [2000, 3100]], "<u2")
    frames = [stored(pixels, "png") if is_png else raw(pixels[..., None]) for pixels in (first, second)]
    one, two = played(video(frames, 2, 2, 100))
    assert one.luma.tolist() == [[1, 128], [255, 64]]
    assert two.luma.tolist() == [[1, 255], [128, 255]]
    # A reader of the second frame alone gets the same range.
    alone = data_of(video(frames, 2, 2))
    size = h264.size_of(2, 2)
    assert alone.read(alone.size - size, size) == data_of(video(frames, 2, 2)).whole()[-size:]
    assert played(video([raw(np.full((4, 4, 1), 700, "<u2"))], 4, 4))[0].luma[0, 0] == 1


def test_range_comes_from_first_readable_frame() -> None:
    damaged = Image(KEY, Unreadable(8, Damaged("lost")), 2, 2, 1, 16)
    pixels = np.array([[10, 20], [30, 10]], "<u2")[..., None]
    data = data_of(video([damaged, raw(pixels)], 2, 2))
    size = h264.size_of(2, 2)
    with pytest.raises(Damaged, match="frame 0: lost"):
        data.read(data.size - 2 * size, 1)
    image = data.read(data.size - size, size)
    assert [image[9], image[10], image[25], image[26]] == [1, 128, 255, 1]


def test_missing_frames_show_the_previous_one() -> None:
    pixels = [patches(40, 40, seed) for seed in range(2)]
    made = video([raw(pixels[0]), stored(pixels[1], "png")], 40, 40, present=[2, 5], count=8)
    found = played(made)
    for number in (0, 1):
        assert {int(value) for plane in found[number] for value in plane.flat} == {planes.GRAY}
    for number in range(2, 8):
        assert abs(rgb(found[number], 40, 40)[:32, :32] - pixels[number >= 5][:32, :32]).max() <= 3
    nothing = played(video([], 20, 20, present=[], count=2))
    assert all((image.luma == planes.GRAY).all() for image in nothing)


@pytest.mark.parametrize("size", [(10, 7), (200, 100), (1, 1), (31, 900)])
def test_frames_of_another_size_are_scaled(size: tuple[int, int]) -> None:
    other = flat(*size, *RED)
    frames = [raw(flat(61, 33, 0, 0, 0)), raw(other), raw(other, True), stored(other, "jpeg"), stored(other, "png")]
    for image in played(video(frames, 61, 33))[1:]:
        assert abs(rgb(image, 61, 33) - RED).max() <= 3


def test_scaling_in_strips_has_no_seams(monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = np.repeat(np.arange(100, dtype=np.uint8)[:, None, None] * 2, 30, 1)
    for frame in (raw(ramp), stored(ramp[..., 0], "png")):
        for size in ((50, 150), (30, 100)):
            (whole,) = played(video([frame], *size))
            with monkeypatch.context() as patched:
                patched.setattr(planes, "strip_rows", lambda width: 16)
                (strips,) = played(video([frame], *size))
            assert abs(whole.luma.astype(int) - strips.luma).max() <= 1


DAMAGES: dict[str, Content] = {
    "unreadable": Image(KEY, Unreadable(40 * 40 * 3, Damaged("lost")), 40, 40, 3),
    "no image": Blob(KEY, Memory(b"hello")),
    "no JPEG": EncodedImage(KEY, Memory(b"\xff\xd8\xff\xe0hello"), "jpeg"),
    "no PNG": EncodedImage(KEY, Memory(b"\x89PNG"), "png"),
    "cut PNG": EncodedImage(KEY, Memory(stored(noise(40, 40, 3, 0), "png").data.read(0, 2000)), "png"),
    "cut JPEG": EncodedImage(KEY, Memory(stored(noise(40, 40, 3, 0), "jpeg").data.read(0, 900)), "jpeg"),
}


@pytest.mark.parametrize("damaged", DAMAGES.values(), ids=DAMAGES)
def test_damaged_frame_fails_only_its_ranges(damaged: Content) -> None:
    good = raw(flat(40, 40, *RED))
    data, size = data_of(video([good, damaged, good], 40, 40)), h264.size_of(40, 40)
    first = data.size - 3 * size
    data.read(0, first + size)
    for start, length in ((first + size, 1), (first + size - 1, 2), (data.size - size - 1, 2), (0, data.size)):
        with pytest.raises(Damaged, match=r"^frame 1: "):
            data.read(start, length)
    assert data.read(data.size - size, size)[9:] == data.read(first, size)[9:]


def test_passing_errors_are_not_remembered() -> None:
    good = raw(flat(40, 40, *RED))
    answers: list[Exception | Content] = [Changed("gone"), good]

    def frame(number: int) -> Content:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    data = data_of(Video(KEY, 1, 10, 40, 40, frame))
    with pytest.raises(Changed):
        data.whole()
    assert data.whole() == data_of(video([good], 40, 40)).whole()


def png_of(width: int, height: int) -> bytes:
    """Return a small PNG file that claims to have so many pixels."""
    file = bytearray(stored(noise(8, 8, 3, 0), "png").data.whole())
    file[16:24] = struct.pack(">II", width, height)
    file[29:33] = struct.pack(">I", zlib.crc32(file[12:29]))
    return bytes(file)


@pytest.mark.parametrize("frame", [
    EncodedImage(KEY, Memory(png_of(100_000, 100_000)), "png"),
    EncodedImage(KEY, Unreadable(images.MOST_BYTES + 1, Damaged("never read")), "jpeg"),
    EncodedImage(KEY, Memory(stored(noise(8, 8, 3, 0), "jpeg").data.read(0, 600) + b"\xff\xda" * 200), "jpeg"),
    Image(KEY, Unreadable(3 * 10**10, Damaged("never read")), 100_000, 100_000, 3),
], ids=["PNG bomb", "stored", "scans", "raw"])
def test_too_large_frames_are_refused_unread(frame: Content) -> None:
    data = data_of(video([raw(flat(40, 40, *RED)), frame], 40, 40))
    size = h264.size_of(40, 40)
    with memory_below(8 << 20), pytest.raises(TooLarge, match="frame 1"):
        data.read(data.size - size, 10)
    data.read(0, data.size - size)


def never(number: int) -> Content:
    raise AssertionError(number)


@pytest.mark.parametrize(("count", "width", "height", "reason"), [
    (5, 100_000, 100_000, "100000 x 100000 pixels is too large"), (5, 16_385, 1, "too large"),
    (5, 1, 16_385, "too large"), (5, 16_000, 16_000, "too large"), (1 << 32, 16, 16, "4294967296 frames is too long"),
    (1 << 60, 16, 16, "too long"), (1 << 31, 16, 16, "too long"),
    *((*none, "shows nothing") for none in ((0, 5, 5), (5, 0, 5), (5, 5, 0))),
])
def test_impossible_videos_are_refused(count: int, width: int, height: int, reason: str) -> None:
    with pytest.raises(Damaged if reason == "shows nothing" else TooLarge, match=reason):
        list(mp4.show(Video(KEY, count, 10, width, height, never), BlockCache(), PLACE))


def test_longest_video_takes_no_memory() -> None:
    frame = raw(flat(640, 480, *RED))
    with memory_below(30 << 20):
        data = data_of(Video(KEY, mp4.MOST_FRAMES, 30, 640, 480, lambda number: frame))
        size = h264.size_of(640, 480)
        assert data.size // size == mp4.MOST_FRAMES
        assert data.read(data.size - size, 9) == h264.head(640, 480, mp4.MOST_FRAMES - 1)
        data.read(data.size // 2, 1 << 20)


@pytest.mark.parametrize(("width", "height"), [(16_384, 2_160), (2_160, 16_384)])
def test_large_frames_are_made_in_strips(width: int, height: int) -> None:
    """Reading takes the memory of one frame and one strip."""
    zeros = Memory(bytes(width * height * 3))
    data = data_of(video([Image(KEY, zeros, width, height, 3)], width, height), BlockCache(256 << 20))
    with memory_below(h264.size_of(width, height) + planes.strip_cost(width, height)):
        data.read(data.size // 2, 1000)


@pytest.mark.parametrize("budget", [1 << 20, 8 << 20, 64 << 20])
def test_many_readers_share_a_small_budget(budget: int) -> None:
    """Nested reservations of memory do not deadlock."""
    frames: list[Content] = [stored(patches(320, 240, seed), "jpeg") for seed in range(4)]
    frames += [raw(patches(320, 240, seed)) for seed in range(4)] + [stored(patches(100, 80, 1), "png")] * 2
    whole = data_of(video(frames, 320, 240)).whole()
    data = data_of(video(frames, 320, 240), BlockCache(budget))

    def reader(number: int) -> bool:
        starts = range(number * 20_000, data.size, 100_000)
        return all(data.read(start, min(100_000, data.size - start)) == whole[start:][:100_000] for start in starts)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(reader, range(6)))
