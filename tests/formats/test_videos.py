"""Videos of cameras show the same as the images beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from writers.kinodb import Frame, Stored, jpeg, png

from glassfs.content import EncodedImage, Image, Video
from tests.formats.kinodb_files import FRONT, image_group, images_of, with_images
from tests.helpers import open_bytes


def test_videos_classify_frames_like_the_tree(tmp_path: Path) -> None:
    """Raw pixels that begin like a signature are raw; an encoded image as long as its pixels is encoded."""
    photo = jpeg(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8))
    shots: list[Frame] = [
        {"c": Stored((b"\xff\xd8\xff" + bytes(range(72)))[:72], 6, 4)}, {"c": FRONT},
        {"c": Stored((b"\x89PNG\r\n\x1a\n" + bytes(range(72)))[:72], 6, 4)}, {"c": Stored(png(FRONT), 6, 4)},
        {"c": Stored(photo, len(photo), 1, 1)}, {"c": Stored(photo[:60], 60, 1, 1)}, {"c": Stored(photo[:70], 6, 4)},
    ]
    count = len(shots)
    group = image_group(open_bytes(bytes(with_images(tmp_path, shots))))
    (video,) = [member.content for member in group.members() if isinstance(member.content, Video)]
    frames = [(type(member.content), member.content.key) for member in images_of(group)]
    assert [kind for kind, _ in frames] == [Image, Image, Image, EncodedImage, EncodedImage, Image, EncodedImage]
    assert [(type(video.frame(number)), video.frame(number).key) for number in range(count)] == frames
