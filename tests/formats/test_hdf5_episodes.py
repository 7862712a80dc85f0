"""Episodes of robomimic, LIBERO and ALOHA: tables, steps, videos, pages and rows of joined tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from tests.cli.glassfs_command import glassfs as run
from tests.formats.hdf5_files import h5py, jpeg, values, write_aloha, write_robomimic


def test_robomimic_has_a_table_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    with glassfs.open(path) as opened:
        rows = list(opened.episodes())
        assert [row["episode_name"] for row in rows] == ["demo_8", "demo_10", "demo_12"]
        assert [row["num_frames"] for row in rows] == [6, 7, 8]
        first = rows[0]
        assert first["language_instruction"] == "lift the cube"
        assert first["embodiment"] == "Panda"
        assert (first["fps"], first["action_dim"], first["state_dim"]) == (20.0, 7, 5)
        assert first["total_reward"] == pytest.approx(np.linspace(0, 1, 6).sum())
        assert first["cameras"] == ["obs/agentview_image"]
        assert set(first["channels"]) == {"actions", "rewards", "dones", "states", "obs/eef_pos"}
        assert sorted(opened["episodes"]) == ["0", "1", "2"]
        assert np.array_equal(opened["episodes/1/actions"].numpy(), opened["data/demo_10/actions"].numpy())


def test_robomimic_episodes_have_steps_videos_and_pages(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5", options={"chunks": (1, 12, 10, 3), "compression": "gzip"})
    with glassfs.open(path, views="all") as opened:
        demo = opened["data/demo_8"]
        steps = demo["steps.parquet"].table().to_pandas()
        assert len(steps) == 6 and "obs/eef_pos" in {name.split(".")[0] for name in steps.columns}
        assert demo["obs/agentview_image.mp4"].file_size > 100
        assert demo["index.html"].file_size > 100
        frame = np.asarray(demo["obs/agentview_image/000002.png"].image())
        assert np.array_equal(frame, values((6, 12, 10, 3), "u1")[2])


@pytest.mark.parametrize("is_compressed", [False, True])
def test_aloha_is_one_episode(tmp_path: Path, is_compressed: bool) -> None:
    path = write_aloha(tmp_path / "episode_0.hdf5", is_compressed=is_compressed)
    with glassfs.open(path, views="all") as opened:
        row = next(iter(opened.episodes()))
        assert (row["fps"], row["num_frames"], row["action_dim"], row["state_dim"]) == (50.0, 5, 14, 14)
        assert row["cameras"] == ["observations/images/top"]
        assert opened["observations/images/top.mp4"].file_size > 100
        assert len(opened["steps.parquet"].table()) == 5
        frames = values((5, 12, 16, 3), "u1")
        if is_compressed:
            assert opened["observations/images/top/000003.jpg"].bytes() == jpeg(frames[3])
        else:
            assert np.array_equal(np.asarray(opened["observations/images/top/000003.png"].image()), frames[3])


def test_episodes_of_all_kinds_join(tmp_path: Path) -> None:
    write_robomimic(tmp_path / "lift.hdf5")
    write_aloha(tmp_path / "episode_0.hdf5")
    with glassfs.open(tmp_path) as opened:
        rows = list(opened.episodes())
    assert [(row["container"], row["position"]) for row in rows] == [
        ("episode_0.hdf5", 0), ("lift.hdf5", 0), ("lift.hdf5", 1), ("lift.hdf5", 2),
    ]


def test_other_files_have_no_episodes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["data/x"] = np.arange(3)
        file["action"] = np.zeros((3, 2))
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert sorted(opened) == ["action.npy", "data"]
        assert sorted(opened["data"]) == ["x.npy"]


def write_demonstrations(path: Path, count: int) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(count):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["model_file"] = "x" * 10_000
            demo.attrs["language_instruction"] = f"task {number}"
            for name in ("actions", "rewards", "obs/position", "obs/velocity"):
                demo[name] = np.full((3, 2) if name == "actions" else (3,), float(number))
    return path


def test_episodes_are_described_by_few_requests(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    path = write_demonstrations(tmp_path / "made.hdf5", 200)
    with glassfs.open(path) as opened:
        rows = [json.loads(line) for line in opened["episodes.jsonl"].bytes().splitlines()]
    assert [row["total_reward"] for row in rows] == [3.0 * number for number in range(200)]
    assert [row["language_instruction"] for row in rows] == [f"task {number}" for number in range(200)]
    assert len(asked) < 200  # a worker that takes long describes less at once
    assert "attributes" not in [request["do"] for request in asked if len(request.get("path", ())) == 2]


def test_walk_asks_for_several_groups_at_once(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    path = write_demonstrations(tmp_path / "made.hdf5", 200)
    with glassfs.open(path) as opened:
        found = sum("position.npy" in list(opened[f"data/demo_{number}/obs"]) for number in sorted(range(200), key=str))
    assert found == 200
    assert len(asked) < 200


def test_table_of_episodes_is_kept_for_later_programs(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GLASSFS_CATALOGUE", "yes")
    path = write_demonstrations(tmp_path / "made.hdf5", 1_500)
    os.utime(path, (1e9, 1e9))
    first = run("episodes", path)
    assert len(first.lines) == 1_500
    asked.clear()
    assert run("episodes", path).lines == first.lines
    assert asked == []
    write_demonstrations(path, 3)
    os.utime(path, (1e9 + 9, 1e9 + 9))
    assert len(run("episodes", path).lines) == 3
