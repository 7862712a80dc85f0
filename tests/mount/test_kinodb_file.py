"""A KinoDB file of 20 MB: a copy of the mount, an export, and a decoder of its own for this test say the same."""

from __future__ import annotations

import filecmp
import io
import json
import math
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from writers.kinodb import Frame, KinoWriter, jpeg, png

from tests.mount.conftest import Mounted
from tests.mount.mounts import glassfs

CAMERAS = ("front", "wrist", "depth/left")


@dataclass
class Decoded:
    """An episode, decoded by walking through the file's bytes in the order of docs/formats/kinodb.md."""

    described: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]
    images: dict[tuple[str, int], tuple[int, int, int, bytes]]


class Cursor:
    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def take(self, size: int) -> bytes:
        self.position += size
        return self.data[self.position - size : self.position]

    def field(self, layout: str) -> Any:
        (value,) = struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))
        return value

    def text(self) -> str:
        return self.take(self.field("H")).decode()


def decode(data: bytes) -> Iterator[Decoded]:
    magic, _, _, _, _, index_offset, index_length = struct.unpack_from("<4sHHQQQQ", data)
    assert magic == b"KINO"
    for position in range(index_length // 64):
        entry = struct.unpack_from("<QIHHQQQQQQ", data, index_offset + 64 * position)
        number, frames, action_dim, state_dim, actions, _, images, images_length, metadata, _ = entry
        yield Decoded(
            _metadata(Cursor(data, metadata), position, number, frames, state_dim, action_dim),
            _records(Cursor(data, actions), frames, state_dim, action_dim),
            _images(Cursor(data, images), frames, images + images_length),
        )


def _metadata(cursor: Cursor, position: int, number: int, frames: int, states: int, actions: int) -> dict[str, Any]:
    embodiment, task = cursor.text(), cursor.text()
    fps, success, has_reward = cursor.field("f"), cursor.field("B"), cursor.field("B")
    return {
        "position": position, "episode_id": number, "embodiment": embodiment, "language_instruction": task,
        "fps": fps, "success": {1: False, 2: True}.get(success), "num_frames": frames,
        "total_reward": cursor.field("f") if has_reward == 1 else None, "state_dim": states, "action_dim": actions,
    }


def _records(cursor: Cursor, frames: int, states: int, actions: int) -> dict[str, np.ndarray[Any, Any]]:
    rows: dict[str, list[Any]] = {"state": [], "action": [], "reward": [], "is_terminal": []}
    for _ in range(frames):
        rows["state"].append([cursor.field("f") for _ in range(states)])
        rows["action"].append([cursor.field("f") for _ in range(actions)])
        rows["reward"].append(cursor.field("f"))
        rows["is_terminal"].append(cursor.field("B") != 0)
    return {name: np.array(values, "?" if name == "is_terminal" else "<f4") for name, values in rows.items()}


def _images(cursor: Cursor, frames: int, end: int) -> dict[tuple[str, int], tuple[int, int, int, bytes]]:
    found = {}
    for frame in range(frames):
        for _ in range(cursor.field("H")):
            name, width, height = cursor.text(), cursor.field("I"), cursor.field("I")
            channels, _ = cursor.field("B"), cursor.field("B")
            found[name, frame] = (width, height, channels, cursor.take(cursor.field("I")))
    assert cursor.position == end
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve episodes of three cameras: raw colour, JPEG or PNG, and raw grey; some of them missing here and there."""
    path = tmp_path_factory.mktemp("kinodb") / "run.kdb"
    generator = np.random.default_rng(8)
    with KinoWriter(path) as writer:
        for episode in range(12):
            frames = 20 + episode
            writer.add_episode(
                generator.normal(size=(frames, episode % 4)), generator.normal(size=(frames, 7)),
                generator.normal(size=frames), images=_video(generator, frames, episode),
                embodiment="widowx", task=f"task {episode} \"quoted\" ü", fps=10.0 + episode / 3,
                success=(None, True, False)[episode % 3], total_reward=None if episode % 2 else episode / 7,
            )
    assert 18 << 20 < path.stat().st_size < 24 << 20
    return path


def _video(generator: np.random.Generator, frames: int, episode: int) -> Iterator[Frame]:
    from writers.kinodb import Stored

    encode = (jpeg, png)[episode % 2]
    for frame in range(frames):
        shown: dict[str, Any] = {
            "front": generator.integers(0, 200, (120, 160, 3), np.uint8),
            "wrist": Stored(encode(generator.integers(0, 255, (40, 50, 3), np.uint8)), 50, 40),
            "depth/left": generator.integers(0, 200, (60, 80), np.uint8),
        }
        if frame % 5 == 4:
            del shown[CAMERAS[episode % 3]]
        yield shown


@pytest.fixture(scope="module")
def episodes(dataset: Path) -> list[Decoded]:
    return list(decode(dataset.read_bytes()))


@pytest.fixture(scope="module")
def exported(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exported") / "run"
    done = glassfs("export", dataset, target)
    assert (done.returncode, done.stderr) == (0, "")
    return target


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_copy_export_and_decoder_agree(
    mounted: Mounted, dataset: Path, exported: Path, episodes: list[Decoded], tmp_path: Path,
) -> None:
    copy = tmp_path / "copy"
    with mounted(dataset) as mount:
        subprocess.run(["cp", "-r", mount.path, copy], check=True)
    names = files_below(copy)
    assert names - {".glassfs/status.json"} == files_below(exported)
    same, different, failed = filecmp.cmpfiles(copy, exported, files_below(exported), shallow=False)
    assert (different, failed) == ([], [])
    assert len(same) == len(files_below(exported))
    expected = {"meta/file.json", ".glassfs/status.json"}
    for number, episode in enumerate(episodes):
        expected |= check_episode(copy / f"episodes/{number}", f"episodes/{number}", episode)
    assert names == expected
    assert len(episodes) == 12
    assert json.loads((copy / "meta/file.json").read_bytes())["num_frames"] == sum(20 + n for n in range(12))


def check_episode(folder: Path, path: str, episode: Decoded) -> set[str]:
    """Asserts that the files of an episode have the decoded values; the paths of these files."""
    found = {f"{path}/meta/episode.json"}
    described = json.loads((folder / "meta/episode.json").read_bytes())
    assert described.keys() == episode.described.keys()
    for name, value in episode.described.items():
        assert described[name] == value or math.isclose(described[name], value, rel_tol=1e-6), name
    for name, values in episode.arrays.items():
        array = np.load(folder / f"{name}.npy")
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(array, values.reshape(array.shape))
        assert array.shape[0] == episode.described["num_frames"]
        found.add(f"{path}/{name}.npy")
    for (camera, frame), (width, height, channels, data) in episode.images.items():
        ending = "jpg" if data.startswith(b"\xff\xd8\xff") else "png"
        file = folder / f"images/{camera}/{frame:06d}.{ending}"
        found.add(f"{path}/images/{camera}/{frame:06d}.{ending}")
        if len(data) == width * height * channels:
            with Image.open(file) as image:
                assert image.size == (width, height)
                assert image.tobytes() == data
        else:
            assert file.read_bytes() == data
            with Image.open(io.BytesIO(data)) as image:
                assert image.size == (width, height)
    return found
