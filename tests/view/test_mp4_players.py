"""Videos as MP4 in ffmpeg: it warns of nothing, counts the frames, and returns every sample."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from glassfs.content import Content
from tests.optional import without
from tests.view.videos import Pixels, data_of, raw, shown, video

pytestmark = pytest.mark.skipif(
    shutil.which("ffmpeg") is None or shutil.which("ffprobe") is None, reason=without("ffmpeg"),
)
QUIET = ("-hide_banner", "-nostdin", "-v", "warning")


def run(*words: str) -> bytes:
    """Run a program that must not warn, and return its output."""
    done = subprocess.run(words, capture_output=True, check=False, timeout=120)
    # Of its own format for full range, when it turns that into RGB.
    lines = [line for line in done.stderr.splitlines() if b"deprecated pixel format used" not in line]
    assert (done.returncode, lines) == (0, [])
    return done.stdout


def frames_of(path: Path, *options: str, before: Sequence[str] = ()) -> bytes:
    words = ("ffmpeg", *QUIET, *before, "-i", str(path), "-fps_mode", "passthrough", *options, "-f", "rawvideo", "-")
    return run(*words)


def written(path: Path, frames: Sequence[Content], width: int, height: int, fps: float) -> bytes:
    file = bytes(data_of(video(frames, width, height, fps)).whole())
    path.write_bytes(file)
    return file


def noise(width: int, height: int, seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize(("width", "height", "fps"), [
    (64, 48, 10), (100, 84, 29.97), (33, 17, 0.5), (1, 1, 1000), (640, 480, 30), (16, 16, 1 / 3), (1000, 2, 60),
])
def test_ffmpeg_returns_every_sample(tmp_path: Path, width: int, height: int, fps: float) -> None:
    path = tmp_path / "film.mp4"
    file = written(path, [raw(noise(width, height, seed)) for seed in range(5)], width, height, fps)
    played = np.frombuffer(frames_of(path), np.uint8).reshape(5, -1)
    wide, high = width + width % 2, height + height % 2
    for image, samples in zip(shown(file).images, played, strict=True):
        planes = (plane[: high // part, : wide // part] for part, plane in zip((1, 2, 2), image[1:], strict=True))
        assert samples.tobytes() == b"".join(plane.tobytes() for plane in planes)


@pytest.mark.parametrize(("width", "height", "fps"), [(64, 48, 10), (101, 85, 29.97), (640, 480, 0.1)])
def test_ffprobe_finds_the_declared_properties(tmp_path: Path, width: int, height: int, fps: float) -> None:
    path = tmp_path / "film.mp4"
    written(path, [raw(noise(width, height, seed)) for seed in range(4)], width, height, fps)
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
    path = tmp_path / "film.mp4"
    count = 12
    written(path, [raw(noise(48, 32, seed)) for seed in range(count)], 48, 32, fps)
    played = frames_of(path)
    size = len(played) // count
    for number in range(count):
        found = frames_of(path, "-frames:v", "1", before=("-ss", f"{(number - 0.4) / fps if number else 0:.6f}"))
        assert found == played[number * size :][:size]
