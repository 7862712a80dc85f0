"""Datasets of files in known layouts: samples equal what the files have at the paths of their roles and cameras."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glassfs import open as open_container
from tests.cli.glassfs_command import glassfs
from tests.formats.hdf5_files import h5py
from tests.layouts import files
from tests.layouts.files import Rows
from tests.lerobot import client
from tests.lerobot.checks import opened

client.require()

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
PATHS: dict[str, dict[str, list[str]]] = {
    "isaaclab": {ACTION: ["actions"], STATE: ["obs/joint_pos"], f"{IMAGES}table_cam": ["obs/table_cam"]},
    "sparse": {ACTION: ["actions"], STATE: ["states"], "next.reward": ["rewards"]},
    "aloha": {ACTION: ["action"], STATE: ["observations/qpos"], f"{IMAGES}top": ["observations/images/top"]},
    "robotwin": {ACTION: ["joint_action/vector"], f"{IMAGES}head_camera": ["observation/head_camera/rgb"]},
    "minari": {ACTION: ["actions"], STATE: ["observations/state"], "next.reward": ["rewards"]},
    "maniskill": {ACTION: ["actions"], STATE: ["obs/agent/qpos"], f"{IMAGES}base": ["obs/sensor_data/base/rgb"]},
    "d4rl": {ACTION: ["actions"], STATE: ["observations"], "next.reward": ["rewards"]},
    "ogbench": {ACTION: ["actions"], STATE: ["observations"], "next.reward": ["rewards"]},
    "droid": {
        ACTION: ["action/cartesian_position", "action/gripper_position"],
        STATE: ["observation/robot_state/joint_positions"],
    },
    "dreamer": {ACTION: ["action"], "next.reward": ["reward"], f"{IMAGES}image": ["image"]},
    "episode_ends": {ACTION: ["data/action"], STATE: ["data/state"], f"{IMAGES}img": ["data/img"]},
}
"""The paths of what each feature has: arrays one after another, or a camera."""


@pytest.mark.parametrize("writer", files.ALL, ids=lambda writer: str(writer.__name__))
def test_samples_equal_the_arrays_of_a_layout(
    writer: Callable[[Path], tuple[Path, Rows]], tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    path, rows = writer(tmp_path / "in")
    demand_arrays(path, PATHS[writer.__name__], [row.get("num_frames", files.STEPS) for row in rows], tmp_path)


def demand_arrays(path: Path, features: Mapping[str, Sequence[str]], lengths: Sequence[int], folder: Path) -> None:
    """Compare all samples of the only dataset over a folder, in which is only this file."""
    # A container that is one episode has no dataset of its own, the folder around it has one.
    done = glassfs("export", "--views", "lerobot", "--allow-omissions", path.parent, "lerobot", folder / "out")
    assert done.status == 0, done.errors
    (root,) = (folder / "out/lerobot").iterdir()
    dataset = opened(root)
    expected = list(episodes_in(path, [one for paths in features.values() for one in paths], lengths))
    assert len(dataset) == sum(lengths) and len(expected) == len(lengths)
    with open_container(path) as container:
        dimensions = {row["state_dim"] for row in container.episodes()}
    assert dimensions == {dataset.features[STATE]["shape"][0] if STATE in dataset.features else None}
    index = 0
    for arrays, steps in zip(expected, lengths, strict=True):
        for step in range(steps):
            sample = dataset[index]
            assert int(sample["frame_index"]) == step
            for name, paths in features.items():
                if name.startswith(IMAGES):
                    demand_frame(sample[name].numpy().transpose(1, 2, 0), pixels(arrays[paths[0]][step]))
                    continue
                parts = [np.ravel(arrays[one][step]).astype(np.float32) for one in paths]
                assert np.array_equal(np.ravel(sample[name].numpy()), np.concatenate(parts)), (name, index)
            index += 1


def episodes_in(path: Path, names: Sequence[str], lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the arrays of each episode by their paths, read without glassfs: of groups with numbers, else cut."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            yield from cut({name: file[name] for name in names}, lengths)
        return
    with h5py.File(path) as file:
        groups = [name for name in (*file, *(f"data/{name}" for name in file.get("data", ()))) if name[-1].isdigit()]
        for name in sorted(groups, key=lambda name: int(re.findall(r"\d+", name)[-1])):
            yield {one: file[name][one][()] for one in names}
        if not groups:
            yield from cut({one: file[one][()] for one in names}, lengths)


def cut(arrays: Mapping[str, Any], lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    first = 0
    for length in lengths:
        yield {name: values[first : first + length] for name, values in arrays.items()}
        first += length


def pixels(frame: Any) -> Any:
    """Return the pixels of a frame as the file has it: raw, or encoded."""
    if getattr(frame, "ndim", 0) == 3:
        return frame
    return np.asarray(Image.open(io.BytesIO(bytes(frame))).convert("RGB"))


def demand_frame(found: Any, expected: Any) -> None:
    """Compare the brightness of noise, which a video keeps well: that of another frame has nothing to do with it."""
    height, width, _ = expected.shape
    found = found[:height, :width]
    assert np.corrcoef(np.ravel(found @ [0.3, 0.6, 0.1]), np.ravel(expected @ [0.3, 0.6, 0.1]))[0, 1] > 0.9
