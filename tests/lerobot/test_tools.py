"""Tools of LeRobot: episodes of a copy are appended, deleted, split and merged; ``lerobot-doctor`` finds no fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cli.glassfs_command import glassfs
from tests.lerobot import client
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import EMBODIMENT, IMAGES, Episode, demand_samples, episode, opened, write

client.require()

DEFAULTS = {"timestamp", "frame_index", "episode_index", "index", "task_index"}


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The dataset of ``written``, exported."""
    done = glassfs("export", "--views", "lerobot", folder, "lerobot", tmp_path / "out")
    assert done.status == 0, done.errors
    return tmp_path / "out/lerobot" / EMBODIMENT


@pytest.fixture
def native(copy: Path, tmp_path: Path) -> Path:
    """A dataset with the same features that LeRobot itself wrote, of two episodes."""
    features = json.loads((copy / "meta/info.json").read_bytes())["features"]
    given = {
        name: {"dtype": one["dtype"], "shape": tuple(one["shape"]), "names": one["names"]}
        for name, one in features.items() if name not in DEFAULTS
    }
    dataset = client.dataset_class().create(
        "local/native", fps=10, features=given, root=tmp_path / "native", robot_type=EMBODIMENT, use_videos=True,
    )
    for seed in (6, 7):
        append(dataset, episode(seed, 11))
    dataset.finalize()
    return tmp_path / "native"


def append(dataset: Any, one: Episode) -> None:
    """Record an episode, as ``lerobot-record`` does."""
    for step in range(one.steps):
        dataset.add_frame({
            "observation.state": one.state[step], "action": one.action[step],
            "next.reward": one.reward[step : step + 1], "next.done": one.done[step : step + 1], "task": one.task,
            **{IMAGES + name: frames[step] for name, frames in one.cameras.items()},
        })
    dataset.save_episode()


def columns(root: Path) -> dict[str, str]:
    """Return the names and types of the columns that a dataset has for each episode."""
    schema = pq.read_schema(root / "meta/episodes/chunk-000/file-000.parquet")
    return {field.name: str(field.type).replace(" not null", "") for field in schema}


def test_episodes_have_the_columns_that_lerobot_writes(copy: Path, native: Path) -> None:
    assert columns(copy) == columns(native)


def test_an_episode_is_appended(copy: Path, written: list[Episode]) -> None:
    new = episode(9, 14, "a new task")
    dataset = opened(copy)
    append(dataset, new)
    dataset.finalize()
    again = opened(copy)
    assert (again.num_episodes, again.num_frames) == (len(written) + 1, sum(one.steps for one in written) + 14)
    assert again[len(again) - 1]["task"] == "a new task"
    assert again[len(again) - 1]["action"].numpy().tobytes() == new.action[-1].tobytes()
    assert again.meta.stats["action"]["count"] == [again.num_frames]


def test_episodes_are_deleted(copy: Path, written: list[Episode], tmp_path: Path) -> None:
    found = client.tools().delete_episodes(opened(copy), [1], tmp_path / "fewer", "local/fewer")
    left = [written[0], *written[2:]]
    assert [one["length"] for one in found.meta.episodes] == [one.steps for one in left]
    assert found.meta.stats["action"]["count"] == [sum(one.steps for one in left)]
    assert found[len(found) - 1]["action"].numpy().tobytes() == left[-1].action[-1].tobytes()
    rows = np.concatenate([one.action for one in left])
    np.testing.assert_allclose(found.meta.stats["action"]["mean"], rows.mean(0), 1e-5)


def test_a_dataset_is_split(copy: Path, written: list[Episode], tmp_path: Path) -> None:
    found = client.tools().split_dataset(opened(copy), {"train": [0, 1, 2], "val": [3, 4]}, tmp_path / "parts")
    for name, parts in (("train", written[:3]), ("val", written[3:])):
        assert found[name].num_episodes == len(parts)
        rows = np.concatenate([one.state for one in parts])
        np.testing.assert_allclose(found[name].meta.stats["observation.state"]["mean"], rows.mean(0), 1e-4, 1e-6)
        assert np.shape(found[name].meta.stats[f"{IMAGES}wrist"]["std"]) == (3, 1, 1)


def test_copies_are_merged(copy: Path, written: list[Episode], tmp_path: Path, mounted: Mounting) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "more/c.kdb", [episode(8)])
    parts = [opened(copy), opened(mounted(tmp_path / "more"))]
    found = client.tools().merge_datasets(parts, output_repo_id="local/all", output_dir=tmp_path / "all")
    demand_samples(found, [*written, episode(8)], 10)
    assert found.meta.stats["action"]["count"] == [sum(one.steps for one in written) + episode(8).steps]


def test_doctor_finds_no_fault(tmp_path: Path, mounted: Mounting) -> None:
    write(tmp_path / "a.kdb", [episode(seed, 120) for seed in range(3)])
    write(tmp_path / "b.kdb", [episode(seed, 150, "put it down") for seed in range(3, 5)])
    words = [sys.executable, "-m", "lerobot_doctor.cli", "check", str(mounted(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[PASS]" in done.stdout and "[FAIL]" not in done.stdout, done.stdout + done.stderr
