"""Videos of cameras show the same as the images beside them."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from writers.kinodb import Frame, Stored, jpeg, png

from glassfs.content import EncodedImage, Image, Video
from tests.conftest import SAMPLES
from tests.formats.derived import shown_in, whole
from tests.formats.kinodb_files import FRONT, floats, image_group, images_of, written
from tests.helpers import open_bytes
from tests.view.videos import boxes, shown


def test_videos_classify_frames_like_the_tree(tmp_path: Path) -> None:
    """Raw pixels that begin like a signature are raw; an encoded image as long as its pixels is encoded."""
    photo = jpeg(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8))
    shots: list[Frame] = [
        {"c": Stored((b"\xff\xd8\xff" + bytes(range(72)))[:72], 6, 4)}, {"c": FRONT},
        {"c": Stored((b"\x89PNG\r\n\x1a\n" + bytes(range(72)))[:72], 6, 4)}, {"c": Stored(png(FRONT), 6, 4)},
        {"c": Stored(photo, len(photo), 1, 1)}, {"c": Stored(photo[:60], 60, 1, 1)}, {"c": Stored(photo[:70], 6, 4)},
    ]
    count = len(shots)
    data = bytes(written(tmp_path, {"state": floats(count, 1), "action": floats(count, 1), "images": shots}))
    group = image_group(open_bytes(data))
    (video,) = [member.content for member in group.members() if isinstance(member.content, Video)]
    frames = [(type(member.content), member.content.key) for member in images_of(group)]
    assert [kind for kind, _ in frames] == [Image, Image, Image, EncodedImage, EncodedImage, Image, EncodedImage]
    assert [(type(video.frame(number)), video.frame(number).key) for number in range(count)] == frames


SAMPLES_OF_VIDEO = [
    "kinodb/raw_looks_like_jpeg.kdb", "kinodb/mixed_raw.kdb", "kinodb/cli_images.kdb",
    *(pytest.param(f"wshard/{path.name}", marks=pytest.mark.slow) for path in (SAMPLES / "wshard").glob("*.wshard")),
]


@pytest.mark.parametrize("name", SAMPLES_OF_VIDEO)
def test_videos_of_samples_show_their_images(samples: Path, name: str) -> None:
    files = shown_in(samples / name)
    compared = 0
    for place in (place for place in files if place.endswith(".mp4")):
        video = whole(files[place])
        (_, _, count) = struct.unpack(">III", boxes(video)[b"stsz"])
        images = shown(video).images
        frames = {one for one in files if one.startswith(place.removesuffix(".mp4") + "/") and one.endswith(".png")}
        for one in frames:
            number = int(Path(one).stem)
            assert number < count
            colours = np.asarray(Pillow.open(io.BytesIO(whole(files[one]))).convert("RGB")).astype(float)
            luma = colours @ np.array([0.299, 0.587, 0.114])
            height, width = luma.shape
            if images[number].luma.shape == (-(-height // 16) * 16, -(-width // 16) * 16):  # not scaled
                assert abs(images[number].luma[:height, :width] - luma).max() <= 3
                compared += 1
    assert compared or name.startswith("wshard")
