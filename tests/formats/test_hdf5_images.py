"""Images in HDF5 files, in whatever holds their bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import glassfs
from tests.formats.hdf5_files import h5py

FRAMES = np.random.default_rng(3).integers(0, 255, (5, 24, 32, 3), np.uint8)


def encoded(frame: Any, media: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, media)
    return out.getvalue()


def rows_of(file: Any, images: list[bytes], kind: str) -> None:
    longest = max(map(len, images)) + 9
    if kind == "variable":
        rows = file.create_dataset("cam", (len(images),), dtype=h5py.vlen_dtype("u1"))
        for number, image in enumerate(images):
            rows[number] = np.frombuffer(image, "u1")
    elif kind == "bytes":
        padded = b"".join(image.ljust(longest, b"\0") for image in images)
        file["cam"] = np.frombuffer(padded, "u1").reshape(len(images), longest)
    else:
        file["cam"] = np.array(images, f"{'S' if kind == 'strings' else 'V'}{longest}")


@pytest.mark.parametrize("media", ["jpeg", "png"])
@pytest.mark.parametrize("kind", ["variable", "bytes", "strings", "opaque"])
def test_rows_that_are_images_are_frames(tmp_path: Path, kind: str, media: str) -> None:
    images = [encoded(frame, media) for frame in FRAMES]
    images[1] = b""  # a frame that the camera missed
    path = tmp_path / "images.h5"
    with h5py.File(path, "w") as file:
        rows_of(file, images, kind)
        file["link"] = h5py.SoftLink("/cam")
    suffix = "jpg" if media == "jpeg" else "png"
    with glassfs.open(path, views="mp4") as opened:
        assert opened["cam.mp4"].file_size > 100
        for number in (0, 2, 4):
            assert opened[f"cam/{number:06d}.{suffix}"].bytes() == images[number]
            assert opened[f"link/{number:06d}.{suffix}"].bytes() == images[number]
        assert len(list(opened["cam"])) == len(images)


@pytest.mark.parametrize("kind", ["opaque", "bytes"])
def test_single_image_is_a_file(tmp_path: Path, kind: str) -> None:
    image = encoded(FRAMES[0], "png")
    path = tmp_path / "image.h5"
    with h5py.File(path, "w") as file:
        file["thumbnail"] = np.void(image) if kind == "opaque" else np.frombuffer(image, "u1")
        file["link"] = h5py.SoftLink("/thumbnail")
    with glassfs.open(path) as opened:
        assert opened["thumbnail.png"].bytes() == image == opened["link.png"].bytes()
        assert np.array_equal(np.asarray(opened["thumbnail"].image()), FRAMES[0])


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"], ids=["png", "jpeg"])
@pytest.mark.parametrize(("kind", "shown"), [
    ("variable", ["cam", "values.npy"]), ("bytes", ["cam.npy"]), ("strings", ["cam.jsonl"]), ("opaque", ["cam.bin"]),
])
def test_bytes_that_only_begin_like_images_stay_what_they_are(
    tmp_path: Path, kind: str, shown: list[str], start: bytes,
) -> None:
    path = tmp_path / "images.h5"
    with h5py.File(path, "w") as file:
        rows_of(file, [start + bytes(range(1, 100))] * 3, kind)
    with glassfs.open(path) as opened:
        assert "/".join(shown) in opened and sorted(opened) == shown[:1]
