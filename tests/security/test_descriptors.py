"""A1, A6: many containers, and containers of many files, are read with few descriptors."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter, write_chunked

from tests.mount.gallery import npy
from tests.security.conftest import Shared
from tests.security.places import write_store
from tests.waiting import wait_until

CONTAINERS = 500
FEW = 200
CHUNK = 64 << 10


def read_part(path: Path | str, size: int, offset: int) -> bytes:
    """Read without read-ahead by the kernel."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["stay", "are deleted", "are changed"])
def test_partly_read_images_hold_no_descriptors(shared: Shared, place: Path, source: Path, fate: str) -> None:
    frame = np.full((100, 100, 3), 7, "u1")
    with KinoWriter(place / "one.kdb") as writer:
        writer.add_episode(np.zeros((1, 1), "f4"), np.zeros((1, 1), "f4"), images=[{"cam": frame}])
    for number in range(CONTAINERS):
        shutil.copyfile(place / "one.kdb", source / f"{number:04d}.kdb")
    daemon = shared(source)
    for number in range(CONTAINERS):
        shown = daemon.path / f"{number:04d}.kdb/episodes/0/images/cam/000000.png"
        assert read_part(shown, 100, 0).startswith(b"\x89PNG")
        if fate == "are deleted":
            (source / f"{number:04d}.kdb").unlink()
        elif fate == "are changed":
            os.utime(source / f"{number:04d}.kdb")
        if number % FEW == 0:  # what was deleted is given up a moment later
            wait_until(lambda: daemon.descriptors() < FEW)
    shutil.copyfile(place / "one.kdb", source / "new.kdb")
    wait_until(lambda: (daemon.path / "new.kdb").is_dir())
    with Image.open(io.BytesIO((daemon.path / "new.kdb/episodes/0/images/cam/000000.png").read_bytes())) as picture:
        assert np.array_equal(np.asarray(picture), frame)
    assert daemon.descriptors() < FEW


def bytes_read(pid: int) -> int:
    """Return how many bytes a process has read so far, from any file."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


@pytest.mark.slow
def test_image_read_in_pieces_is_read_once(shared: Shared, source: Path) -> None:
    """Also if so many other look-ups come between two pieces that the file has to be looked up again."""
    video = np.random.default_rng(1).integers(0, 255, (10, 300, 400, 3), np.uint8)
    with WShardWriter(source / "film.wshard", codec="none") as writer:
        writer.add_channel("rgb", video, modality="rgb")
    for number in range(100):
        write_store(source / f"{number:03d}.kas")
    daemon = shared(source)
    wait_until(lambda: daemon.status()["all_code_loaded"])  # reading modules counts as well
    shown = [daemon.path / f"film.wshard/signal/rgb/{t:06d}.png" for t in range(10)]
    size = shown[0].stat().st_size
    whole: list[list[bytes]] = [[] for _ in shown]
    read = 0
    for offset in range(0, size, CHUNK):
        before = bytes_read(daemon.pid)
        for parts, path in zip(whole, shown, strict=True):
            parts.append(read_part(path, CHUNK, offset))
        read += bytes_read(daemon.pid) - before
        for number in range(100):
            os.stat(daemon.path / f"{number:03d}.kas/word.npy")
    for t, parts in enumerate(whole):
        with Image.open(io.BytesIO(b"".join(parts))) as picture:
            assert np.array_equal(np.asarray(picture), video[t])
    assert video.nbytes <= read < 2.1 * video.nbytes, "once for the checksum of the block, once for the images"


def limited(descriptors: int) -> list[str]:
    return ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]


@pytest.mark.slow
def test_manifest_of_more_parts_than_descriptors(shared: Shared, source: Path) -> None:
    parts = 1100
    reward, joints = np.arange(parts, dtype="<f4"), np.arange(parts * 2, dtype="<f4").reshape(parts, 2)
    manifest = write_chunked(source, "long", {"reward": reward, "signal/joints": joints}, 1)
    alone, folder = shared(manifest, before=limited(256)), shared(source, before=limited(256))
    for root in (alone.path, folder.path / manifest.name):
        assert root.is_dir(), "the manifest is shown as a plain file"
        assert (root / "reward.npy").read_bytes() == npy(reward)
        assert (root / "signal/joints.npy").read_bytes() == npy(joints)
        for number in range(0, parts, 7):
            part = root / f"chunks/{number:04d}"
            assert (part / "signal/joints.npy").read_bytes() == npy(joints[number : number + 1]), number
    for number in range(0, parts, 50):
        part = folder.path / f"long_chunk_{number:04d}.wshard"
        assert (part / "reward.npy").read_bytes() == npy(reward[number : number + 1])
    assert "Too many open files" not in alone.log_text() + folder.log_text()
