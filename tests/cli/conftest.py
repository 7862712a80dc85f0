"""Fixtures: containers to run the commands on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter
from writers.wshard import WShardWriter

from tests.remote.s3 import Bucket, S3Server

VALUES = np.arange(300_000, dtype="f8")
FRAMES = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a kastore file with folders, an array of several chunks, and one of zeros."""
    path = tmp_path_factory.mktemp("cli") / "store.kas"
    with KastoreWriter(path) as writer:
        writer.add("nodes/time", VALUES)
        writer.add("nodes/flags", np.array([1, 2], "u4"))
        writer.add("zeros", np.zeros(500_000))
        writer.add(b"odd\nname", [1])
    path.chmod(0o640)
    return path


@pytest.fixture(scope="session")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("cli") / "robot.kdb")


def write_robot(path: Path, frames: Any = FRAMES, task: str = "pick") -> Path:
    images = [{"cam": frame} for frame in frames]
    with KinoWriter(path, created=0) as writer:
        writer.add_episode(np.ones((len(images), 2)), np.zeros((len(images), 1)), images=images, task=task)
    return path


@pytest.fixture(scope="session")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an episode of which one compressed block of three does not decode."""
    path = tmp_path_factory.mktemp("cli") / "damaged.wshard"
    values = np.arange(2000, dtype=np.float32)
    with WShardWriter(path, codec="zstd", episode={"episode_id": "e", "length_T": 2000}) as writer:
        writer.add_channel("good", values)
        writer.add_channel("bad", values[::-1].copy())
        writer.add("reward", values)
    from glassfs.library import open_tree

    attributes = open_tree(path).lookup("/signal/bad.npy").xattrs()
    offset = int(attributes["user.glassfs.offset"])
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 20)
    return path


@pytest.fixture
def s3(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Serve ``bucket``, a fixture of the test's module; credentials are in the environment."""
    with S3Server({"bucket": bucket}) as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "glass")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "see-through")
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield server


def sparse_store(path: Path, size: int) -> Path:
    """Write a sparse kastore file with one array, ``long.npy``, of ``size`` zero bytes."""
    key, start = b"long", 136
    with path.open("wb") as file:
        file.write(b"\x89KAS\r\n\x1a\n" + struct.pack("<HHIQ40x", 1, 0, 1, start + size))
        file.write(struct.pack("<B7xQQQQ24x", 1, 128, len(key), start, size) + key)
        file.truncate(start + size)
    return path
