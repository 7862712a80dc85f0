"""Small recordings in the layouts of data sets, and what is known of their episodes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.formats.hdf5_files import h5py

STEPS = 7
FILM = np.random.default_rng(5).integers(0, 255, (STEPS + 1, 10, 12, 3), np.uint8)
Rows = list[dict[str, Any]]
Writer = Callable[[Path], tuple[Path, Rows]]
"""Writes a file into a folder; returns its path, and values that the rows of its episodes have."""


def numbers(*shape: int, dtype: str = "f4") -> Any:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def jpeg(frame: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "JPEG")
    return out.getvalue()


def write(path: Path, contents: Mapping[str, Any]) -> Path:
    """Write arrays by path, and attributes by path and name, to an HDF5 file or an NPZ archive."""
    if path.suffix == ".npz":
        np.savez(path, **contents)
        return path
    with h5py.File(path, "w") as file:
        for name, value in contents.items():
            place, has_attribute, attribute = name.partition("@")
            if has_attribute:
                file.require_group(place or "/").attrs[attribute] = value
            else:
                file[place] = value
    return path


def isaaclab(folder: Path) -> tuple[Path, Rows]:
    contents: dict[str, Any] = {"data@env_args": json.dumps({"env_name": "Stack", "env_kwargs": {"control_freq": 20}})}
    rows = []
    for number in (10, 0, 2):
        demo = f"data/demo_{number}"
        contents |= {
            f"{demo}@success": number != 2, f"{demo}@ep_meta": json.dumps({"lang": f"stack {number}"}),
            f"{demo}/actions": numbers(STEPS, 7), f"{demo}/obs/joint_pos": numbers(STEPS, 9),
            f"{demo}/states/articulation/robot/pose": numbers(STEPS, 7), f"{demo}/obs/table_cam": FILM[:STEPS],
            f"{demo}/initial_state/robot": numbers(1, 9), f"{demo}/next_obs/joint_pos": numbers(STEPS, 9),
        }
        rows.append({
            "episode_name": f"demo_{number}", "num_frames": STEPS, "fps": 20.0, "success": number != 2,
            "language_instruction": f"stack {number}", "splits": ["train"] if number else ["valid"],
            "cameras": ["obs/table_cam"], "action_dim": 7, "state_dim": 9, "env_name": "Stack",
        })
    contents |= {"mask/train": np.array([b"demo_10", b"demo_2"]), "mask/valid": np.array([b"demo_0"])}
    return write(folder / "isaaclab.hdf5", contents), sorted(rows, key=lambda row: int(row["episode_name"][5:]))


def sparse(folder: Path) -> tuple[Path, Rows]:
    """Write a file of robomimic in which success follows from rewards."""
    options = {"reward_shaping": False, "control_freq": 10, "robots": ["Panda"]}
    contents: dict[str, Any] = {"data@env_args": json.dumps({"env_kwargs": options})}
    for number in range(2):
        rewards = (np.arange(STEPS) == STEPS - 1) * float(number)
        contents |= {f"data/demo_{number}/{name}": value for name, value in (
            ("actions", numbers(STEPS, 7)), ("states", numbers(STEPS, 32, dtype="f8")), ("rewards", rewards),
            ("dones", np.arange(STEPS) // (STEPS - 1)),
        )}
    return write(folder / "sparse.hdf5", contents), [
        {
            "success": bool(number), "total_reward": float(number), "state_dim": 32, "embodiment": "Panda", "fps": 10.0,
            "channels": ["actions", "dones", "rewards", "states"], "splits": None,
        }
        for number in range(2)
    ]


def aloha(folder: Path) -> tuple[Path, Rows]:
    contents = {
        "action": numbers(STEPS, 14), "observations/qpos": numbers(STEPS, 14),
        "observations/images/top": FILM[:STEPS], "language_raw": np.array([b"pick up the cup"]),
    }
    return write(folder / "aloha.hdf5", contents), [{
        "num_frames": STEPS, "action_dim": 14, "state_dim": 14, "fps": 50.0,
        "language_instruction": "pick up the cup", "cameras": ["observations/images/top"],
    }]


def robotwin(folder: Path) -> tuple[Path, Rows]:
    images = [jpeg(frame) for frame in FILM[:STEPS]]
    contents = {
        "joint_action/vector": numbers(STEPS, 14, dtype="f8"), "endpose/left_endpose": numbers(STEPS, 7),
        "observation/head_camera/rgb": np.array(images, f"S{max(map(len, images)) + 3}"),
    }
    return write(folder / "robotwin.hdf5", contents), [
        {"num_frames": STEPS, "action_dim": 14, "cameras": ["observation/head_camera/rgb"]},
    ]


def minari(folder: Path) -> tuple[Path, Rows]:
    contents: dict[str, Any] = {"@env_spec": json.dumps({"id": "PointMaze-v3"})}
    for number in range(3):
        steps = STEPS + number
        contents |= {f"episode_{number}/{name}": value for name, value in (
            ("actions", numbers(steps, 6)), ("rewards", np.ones(steps)), ("terminations", np.zeros(steps, bool)),
            ("observations/state", numbers(steps + 1, 17)), ("observations/goal", numbers(steps + 1, 3)),
        )}
        contents[f"episode_{number}@id"] = 5 + number
    return write(folder / "minari.hdf5", contents), [
        {
            "episode_id": 5 + number, "num_frames": STEPS + number, "total_reward": STEPS + number, "state_dim": 17,
            "env_name": "PointMaze-v3",
        }
        for number in range(3)
    ]


def maniskill(folder: Path) -> tuple[Path, Rows]:
    contents: dict[str, Any] = {}
    for number in range(2):
        contents |= {f"traj_{number}/{name}": value for name, value in (
            ("actions", numbers(STEPS, 8)), ("terminated", np.zeros(STEPS, bool)),
            ("success", np.arange(STEPS) > STEPS * number), ("obs/agent/qpos", numbers(STEPS + 1, 9)),
            ("env_states/actors/cube", numbers(STEPS + 1, 13)), ("obs/sensor_data/base/rgb", FILM),
            ("obs/sensor_data/base/depth", numbers(STEPS + 1, 10, 12, 1, dtype="i2")),
        )}
    return write(folder / "maniskill.h5", contents), [
        {"success": not number, "state_dim": 9, "cameras": ["obs/sensor_data/base/rgb"], "num_frames": STEPS}
        for number in range(2)
    ]


def d4rl(folder: Path, name: str = "d4rl.hdf5") -> tuple[Path, Rows]:
    terminals, timeouts = np.arange(20) == 5, np.arange(20) == 12
    contents = {
        "observations": numbers(20, 11), "actions": numbers(20, 3), "rewards": numbers(20), "terminals": terminals,
        "timeouts": timeouts, "infos/qpos": numbers(20, 5), "metadata/seed": np.array(3),
    }
    return write(folder / name, contents), [
        {"num_frames": end - first, "total_reward": sum(range(first, end)), "state_dim": 11, "action_dim": 3}
        for first, end in ((0, 6), (6, 13), (13, 20))
    ]


def ogbench(folder: Path) -> tuple[Path, Rows]:
    return d4rl(folder, "ogbench.npz")


def droid(folder: Path) -> tuple[Path, Rows]:
    contents = {
        "action/cartesian_position": numbers(STEPS, 6), "action/gripper_position": numbers(STEPS),
        "observation/robot_state/joint_positions": numbers(STEPS, 7), "@success": True, "@failure": False,
    }
    return write(folder / "trajectory.h5", contents), [{"num_frames": STEPS, "success": True, "action_dim": 7}]


def dreamer(folder: Path) -> tuple[Path, Rows]:
    contents = {
        "action": numbers(20, 4), "reward": numbers(20), "is_first": np.isin(np.arange(20), [0, 6, 13]),
        "image": np.repeat(FILM[:1], 20, 0),
    }
    return write(folder / "dreamer.npz", contents), [
        {"num_frames": end - first, "total_reward": sum(range(first, end)), "cameras": ["image"]}
        for first, end in ((0, 6), (6, 13), (13, 20))
    ]


def episode_ends(folder: Path) -> tuple[Path, Rows]:
    contents = {
        "data/action": numbers(20, 2), "data/state": numbers(20, 5), "data/img": np.repeat(FILM[:1], 20, 0),
        "meta/episode_ends": np.array([6, 13, 20]),
    }
    return write(folder / "ends.npz", contents), [
        {"num_frames": steps, "action_dim": 2, "state_dim": 5, "cameras": ["data/img"]} for steps in (6, 7, 7)
    ]


STATE, ACTION, REWARD, IMAGES = "observation.state", "action", "next.reward", "observation.images."
FEATURES: dict[str, dict[str, list[str]]] = {
    "isaaclab": {ACTION: ["actions"], STATE: ["obs/joint_pos"], f"{IMAGES}table_cam": ["obs/table_cam"]},
    "sparse": {ACTION: ["actions"], STATE: ["states"], REWARD: ["rewards"], "next.done": ["dones"]},
    "aloha": {ACTION: ["action"], STATE: ["observations/qpos"], f"{IMAGES}top": ["observations/images/top"]},
    "robotwin": {ACTION: ["joint_action/vector"], f"{IMAGES}head_camera": ["observation/head_camera/rgb"]},
    "minari": {ACTION: ["actions"], STATE: ["observations/state"], "observation.goal": ["observations/goal"]},
    "maniskill": {ACTION: ["actions"], STATE: ["obs/agent/qpos"], f"{IMAGES}base": ["obs/sensor_data/base/rgb"]},
    "d4rl": {ACTION: ["actions"], STATE: ["observations"], REWARD: ["rewards"]},
    "ogbench": {ACTION: ["actions"], STATE: ["observations"], REWARD: ["rewards"]},
    "droid": {
        ACTION: ["action/cartesian_position", "action/gripper_position"],
        "action.gripper_position": ["action/gripper_position"],
        STATE: ["observation/robot_state/joint_positions"],
    },
    "dreamer": {ACTION: ["action"], REWARD: ["reward"], f"{IMAGES}image": ["image"]},
    "episode_ends": {ACTION: ["data/action"], STATE: ["data/state"], f"{IMAGES}img": ["data/img"]},
}
"""The paths of what each feature of a dataset of LeRobot has: arrays one after another, or a camera."""
ALL = (isaaclab, sparse, aloha, robotwin, minari, maniskill, d4rl, ogbench, droid, dreamer, episode_ends)
