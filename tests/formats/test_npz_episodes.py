"""Recordings of DreamerV3: an episode in an archive, or a chunk with several."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

import glassfs
from glassfs.content import Group, Omitted
from glassfs.tree.containers.opener import parse
from glassfs.tree.containers.weight import weight_of
from tests.formats import npz_files
from tests.formats.npz_files import saved
from tests.formats.test_npz import CRC, patched_entry
from tests.helpers import open_bytes, opening


@pytest.mark.parametrize("is_compressed", [False, True])
def test_replay_of_dreamer_is_an_episode(tmp_path: Path, is_compressed: bool) -> None:
    values = npz_files.episode()
    path = tmp_path / "replay.npz"
    path.write_bytes(saved(values, is_compressed))
    opened = glassfs.open(path, views="parquet+mp4+html")
    assert {"steps.parquet", "image.mp4", "index.html"} <= set(opened)
    steps = parquet.read_table(io.BytesIO(opened["steps.parquet"].bytes())).to_pydict()
    assert steps["frame"] == list(range(npz_files.STEPS))
    for name in ("reward", "is_last", "log_distance"):
        assert steps[name] == values[name].tolist()
    assert steps["action.3"] == values["action"][:, 3].tolist()
    table = parse(opening(path)).episodes()
    assert table is not None and table.records is not None
    (row,) = table.records.block(0)
    assert row["num_frames"] == npz_files.STEPS and row["action_dim"] == 4 and row["cameras"] == ["image"]
    assert row["total_reward"] == pytest.approx(values["reward"].sum())
    assert row["channels"] == ["action", "reward", "is_first", "is_last", "is_terminal", "log_distance"]


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("dtype", ["?", "u1", ">f4"])
def test_replay_is_cut_where_episodes_begin(tmp_path: Path, is_compressed: bool, dtype: str) -> None:
    """The first episode has its end alone, as chunks begin anywhere."""
    values = npz_files.episode()
    cuts = [0, 3, 4, npz_files.STEPS]
    values["is_first"] = np.isin(np.arange(npz_files.STEPS), cuts[1:]).astype(dtype)
    values["action"] = np.asfortranarray(values["action"]).astype(">f8")
    path = tmp_path / "chunk.npz"
    path.write_bytes(saved(values, is_compressed))
    opened = glassfs.open(path, views="parquet+mp4+html+lerobot")
    rows = list(opened.episodes())
    assert [(row["position"], row["num_frames"]) for row in rows] == [(0, 3), (1, 1), (2, npz_files.STEPS - 4)]
    assert "steps.parquet" not in opened and np.array_equal(opened["action"].numpy(), values["action"])
    for number, (first, end) in enumerate(pairwise(cuts)):
        episode = opened[f"episodes/{number}"]
        assert rows[number]["total_reward"] == pytest.approx(values["reward"][first:end].sum())
        assert rows[number]["cameras"] == ["image"] and "episode_number.npy" not in episode
        for name in ("action", "image", "is_first", "reward", "log_distance"):
            assert np.array_equal(episode[name].numpy(), values[name][first:end])
        assert len(episode["steps.parquet"].table()) == end - first
        assert {"index.html", "image.mp4"} <= set(episode)
    info = json.loads(opened["lerobot/unknown/meta/info.json"].bytes())
    assert (info["total_episodes"], info["total_frames"]) == (3, npz_files.STEPS)


@pytest.mark.parametrize(("starts", "lengths"), [
    ([], [12]), ([0], [12]), ([11], [11, 1]), (range(12), [1] * 12),
], ids=["none", "first", "last", "all"])
@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_replay_is_cut_at_any_start(starts: Sequence[int], lengths: list[int], shape: tuple[int, ...]) -> None:
    values = npz_files.episode()
    values["is_first"] = np.isin(np.arange(npz_files.STEPS), list(starts)).reshape(shape)
    table = open_bytes(saved(values)).episodes()
    assert table is not None and table.records is not None
    assert [row["num_frames"] for row in table.records.block(0)] == lengths


def test_starts_of_a_million_episodes_take_four_bytes_each() -> None:
    """A few kilobytes say that each step begins an episode."""
    count = 1_000_000
    flags = np.ones(count, bool)
    stored = saved({"action": flags, "reward": flags, "is_first": flags}, is_compressed=True)
    table = open_bytes(stored).episodes()
    assert table is not None and table.rows == count and len(stored) < 10_000
    assert weight_of(table, 1 << 30) < 6 * count


@pytest.mark.parametrize("change", [
    {"is_first": np.zeros(npz_files.STEPS, bool)}, {"is_first": np.zeros((npz_files.STEPS, 0), bool)},
    {"is_first": np.zeros(npz_files.STEPS, "S3")},
])
def test_replay_without_starts_is_one_episode(change: dict[str, Any]) -> None:
    table = open_bytes(saved(npz_files.episode() | change)).episodes()
    assert table is not None and table.rows == 1 and table.directory == b""


def test_damaged_starts_join_no_episodes() -> None:
    """Several episodes must not look like one: there are none, and the reason is named."""
    values = npz_files.episode() | {"is_first": np.ones(npz_files.STEPS, bool)}
    opened = open_bytes(patched_entry(saved(values), b"is_first.npy", CRC, "<L", 1))
    assert opened.episodes() is None
    assert isinstance(opened.root, Group)
    (omitted,) = (one.content for one in opened.root.members() if one.name == (b"episodes",))
    assert isinstance(omitted, Omitted) and omitted.is_damage


@pytest.mark.parametrize("change", [
    {"reward": np.zeros(npz_files.STEPS + 1)}, {"is_first": np.array(True)}, {"action": np.array([{}], object)},
    {"reward": np.zeros(0), "action": np.zeros((0, 3)), "is_first": np.zeros(0, bool)},
])
def test_other_archives_are_no_episodes(change: dict[str, Any]) -> None:
    assert open_bytes(saved(npz_files.episode() | change)).episodes() is None
    without = {name: array for name, array in npz_files.episode().items() if name != "is_first"}
    assert open_bytes(saved(without)).episodes() is None


def test_damaged_rewards_have_no_sum() -> None:
    data = saved(npz_files.episode())
    table = open_bytes(patched_entry(data, b"reward.npy", CRC, "<L", 1)).episodes()
    assert table is not None and table.records is not None
    (row,) = table.records.block(0)
    assert row["total_reward"] is None and row["num_frames"] == npz_files.STEPS
