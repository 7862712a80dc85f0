"""Datasets of LeRobot over episodes whose features are made of other signals and cameras, and of selections."""

from __future__ import annotations

import io
import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from glassfs.content import Records, Selection, Table
from glassfs.content.episodes import Features, Signal, features_text
from glassfs.content.summary import Joined
from glassfs.errors import Refused, TooLarge
from glassfs.library import open_tree
from glassfs.tree import Tree
from glassfs.view.lerobot.dataset import LONGEST_NAME, datasets_of, plan_of
from tests.formats.kinodb_files import floats
from tests.formats.wshard_files import channels_of, made
from tests.helpers import attributes_of
from tests.view import test_lerobot
from tests.view.test_lerobot import (
    DEFAULTS,
    EPISODES,
    SIGNALS,
    bytes_of,
    data_of,
    frames_of,
    info_of,
    names,
    values,
    write,
)

folder = test_lerobot.folder


def select(monkeypatch: pytest.MonkeyPatch, renamed: dict[str, str], dropped: tuple[str, ...] = ()) -> None:
    """Give all joined tables a selection."""
    selection = Selection("a test", renamed, frozenset(dropped))
    monkeypatch.setattr(Joined, "selection", property(lambda table: selection, lambda table, value: None))


def demand_videos(tree: Tree, dataset: str, features: dict[str, list[str]]) -> None:
    """Check that the video of each feature has the frames of these videos of containers, one after another."""
    for feature, paths in features.items():
        frames = [frame for path in paths for frame in frames_of(bytes_of(tree, path), 8, 6, 10)]
        film = bytes_of(tree, f"{dataset}/videos/{feature}/chunk-000/file-000.mp4")
        assert frames_of(film, 8, 6, 10) == frames, feature


def test_signals_of_other_names_are_one_dataset(folder: Path) -> None:
    """A step of each is a state of three floats, and statistics are those of each episode's own signal."""
    for number, name in enumerate(("joint_pos", "qpos", "joint_pos")):
        channels = {"effort": floats(4, 1)[:, 0]} if number == 1 else {}
        blocks = {"action/ctrl": floats(4, 2) - number, "reward": floats(4, 1)[:, 0]}
        channels |= {name: floats(4, 3) + number} | ({} if channels else {"effort": floats(4, 1)[:, 0] + 9})
        (folder / f"{number}.wshard").write_bytes(made(channels_of(channels, **blocks)))
    with open_tree(folder, views="lerobot") as tree:
        (name,) = names(tree, "/lerobot")
        data = data_of(tree, f"/lerobot/{name}")
        rows = pq.read_table(io.BytesIO(bytes_of(tree, f"/lerobot/{name}/{EPISODES}"))).to_pylist()
        assert len(rows) == 3
        for number, signal in enumerate(("joint_pos", "qpos", "joint_pos")):
            own = data[data["episode_index"] == number]
            for feature, path in (("observation.state", signal), ("observation.effort", "effort")):
                wanted = values(tree, f"/{number}.wshard/signal/{path}.npy").reshape(4, -1)
                found = np.stack(own[feature].to_list()).reshape(4, -1)
                np.testing.assert_array_equal(found, wanted)
                np.testing.assert_allclose(rows[number][f"stats/{feature}/mean"], wanted.mean(0), 1e-6)


def test_episodes_of_one_container_may_differ(folder: Path) -> None:
    with h5py.File(folder / "a.hdf5", "w") as file:
        for number in range(6):
            file[f"data/demo_{number}/actions"] = floats(4, 2) + number
            file[f"data/demo_{number}/obs/robot0_{'xy'[number // 2 % 2]}"] = floats(4, 3) * number
    with open_tree(folder / "a.hdf5", views="lerobot") as tree:
        (name,) = names(tree, "/lerobot")
        data = data_of(tree, f"/lerobot/{name}")
        rows = pq.read_table(io.BytesIO(bytes_of(tree, f"/lerobot/{name}/{EPISODES}"))).to_pylist()
        assert len(rows) == 6
        for number, row in enumerate(rows):
            found = np.stack(data[data["episode_index"] == number]["observation.state"].to_list())
            np.testing.assert_array_equal(found, floats(4, 3) * number)
            np.testing.assert_allclose(row["stats/observation.state/mean"], found.mean(0), 1e-6)
        total = json.loads(bytes_of(tree, f"/lerobot/{name}/meta/stats.json"))["observation.state"]
        np.testing.assert_allclose(total["mean"], np.mean([row["stats/observation.state/mean"] for row in rows], 0))


@pytest.mark.parametrize("name", ["next_obs/{}", "obs/{}/state"])
def test_features_of_episodes_take_bounded_memory(name: str) -> None:
    """Also those that become equal ones."""
    def features(block: int) -> list[str]:
        return [features_text([Signal("state", "<f4", 2), Signal(name.format(block), "<f4", 2)], ())]

    rows = Records(b"episodes", 1 << 20, lambda block: [{"num_frames": 1}])
    table = Table(b"episodes", 1 << 20, list, rows, features=features)
    with pytest.raises(TooLarge, match="features of episodes"):
        datasets_of(table, 1)


def test_cameras_in_another_order_are_one_dataset(folder: Path) -> None:
    write(folder / "a.kdb", "pick", cameras=("front", "wrist"))
    write(folder / "b.kdb", "pick", "place", cameras=("wrist", "front"), first=3)
    with open_tree(folder, views="lerobot+mp4") as tree:
        assert names(tree, "/lerobot") == ["arm"]
        features = info_of(tree, "/lerobot/arm")["features"]
        assert [name for name in features if "images" in name] == [
            "observation.images.front", "observation.images.wrist",
        ]
        demand_videos(tree, "/lerobot/arm", {
            f"observation.images.{name}": [
                f"/a.kdb/episodes/0/images/{name}.mp4", *(f"/b.kdb/episodes/{one}/images/{name}.mp4" for one in (0, 1)),
            ]
            for name in ("front", "wrist")
        })
        rows = pq.read_table(io.BytesIO(bytes_of(tree, f"/lerobot/arm/{EPISODES}"))).to_pylist()
        for name, more in (("front", 0), ("wrist", 50)):
            means = [np.ravel(row[f"stats/observation.images.{name}/mean"])[0] * 255 for row in rows]
            np.testing.assert_allclose(means, [2 + more, 5 + more, 3 + 10 + 2.5 + more])


def test_renamed_cameras_make_one_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under names that a later session gives: what the catalogue keeps of statistics is not mixed up."""
    write(folder / "a.kdb", "pick", cameras=("front", "wrist"))
    write(folder / "b.kdb", "pick", cameras=("hand", "front"), first=3)
    write(folder / "c.kdb", "pick", cameras=("front", "wrist"), first=7)
    for renamed, other in (({"hand": "wrist"}, "wrist"), ({"hand": "front", "front": "hand", "wrist": "hand"}, None)):
        select(monkeypatch, {f"observation.images.{old}": f"observation.images.{new}" for old, new in renamed.items()})
        with open_tree(folder, views="lerobot+mp4") as tree:
            assert names(tree, "/lerobot") == ["arm"]
            first = [f"/a.kdb/episodes/0/images/{name}.mp4" for name in ("front", "wrist")]
            second = [f"/b.kdb/episodes/0/images/{name}.mp4" for name in ("front", "hand")]
            third = [f"/c.kdb/episodes/0/images/{name}.mp4" for name in ("front", "wrist")]
            rows = pq.read_table(io.BytesIO(bytes_of(tree, f"/lerobot/arm/{EPISODES}"))).to_pylist()
            if other:
                films = zip(("front", other), zip(first, second, third, strict=True), strict=True)
                demand_videos(tree, "/lerobot/arm", {f"observation.images.{name}": [*some] for name, some in films})
                means = [np.ravel(row["stats/observation.images.wrist/mean"])[0] * 255 for row in rows]
                np.testing.assert_allclose(means, [52, 55, 59])
                continue
            # Two names of one episode may be exchanged; two features of one name leave the episode out.
            assert len(rows) == 1
            reason = "2 episodes: two features are called observation.images.hand after a rename"
            assert attributes_of(tree.directory("/lerobot"))["omitted"] == reason
            demand_videos(tree, "/lerobot/arm", {
                "observation.images.hand": second[:1], "observation.images.front": second[1:],
            })
            assert np.ravel(rows[0]["stats/observation.images.hand/mean"])[0] * 255 == pytest.approx(5)


def test_dropped_features_make_one_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "a.kdb", "pick", cameras=("front", "wrist"))
    write(folder / "b.kdb", "pick")
    select(monkeypatch, {}, ("observation.images.wrist", "next.reward"))
    with open_tree(folder, views="lerobot") as tree:
        assert names(tree, "/lerobot") == ["arm"]
        features = info_of(tree, "/lerobot/arm")["features"]
        kept = [name for name in SIGNALS if name != "next.reward"]
        assert list(features) == [*kept, "observation.images.front", *DEFAULTS]
        assert [name for name in data_of(tree, "/lerobot/arm") if name not in DEFAULTS] == kept
        assert "next.reward" not in json.loads(bytes_of(tree, "/lerobot/arm/meta/stats.json"))
        assert "omitted" not in attributes_of(tree.directory("/lerobot"))


def test_unknown_names_of_a_selection_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "a.kdb", "pick")
    select(monkeypatch, {"observation.images.fornt": "observation.images.wrist"}, ("xyz", "action"))
    with open_tree(folder, views="lerobot") as tree:
        assert attributes_of(tree.directory("/lerobot"))["omitted"] == (
            "selection: no episode has observation.images.fornt (did you mean observation.images.front?); "
            "selection: no episode has xyz"
        )
        assert not any(one.is_damage for one in tree.directory("/lerobot").omitted())


def test_a_selection_is_told_what_would_make_one_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "a.kdb", "pick", "place", "push", cameras=("front", "wrist_cam"))
    write(folder / "b.kdb", "pick", "place", cameras=("front", "wrist"))
    write(folder / "c.kdb", "pick", embodiment="leg")
    select(monkeypatch, {})
    with open_tree(folder, views="lerobot") as tree:
        assert names(tree, "/lerobot") == ["arm", "arm~2", "leg"]
        assert attributes_of(tree.directory("/lerobot"))["omitted"] == (
            "arm: 2 datasets instead of one: 3 episodes have observation.images.wrist_cam (6x8), "
            "2 have observation.images.wrist (6x8): "
            'rename = {"observation.images.wrist" = "observation.images.wrist_cam"} or drop both'
        )
    write(folder / "b.kdb", "pick", "place", size=(10, 8))
    with open_tree(folder, views="lerobot") as tree:
        assert attributes_of(tree.directory("/lerobot"))["omitted"] == (
            "arm: 2 datasets instead of one: "
            "3 episodes have observation.images.front (6x8), observation.images.wrist_cam (6x8), "
            "2 have observation.images.front (10x8): "
            'drop = ["observation.images.front", "observation.images.wrist_cam"]'
        )


def test_names_of_a_selection_are_safe() -> None:
    features = Features((Signal("state", "<f4", 2), Signal("done", "|u1", None), Signal("ok", "|u1", None)), ())
    renamed = {"observation.state": "../x{}\n", "observation.ok": "next.success", "next.done": "y" * 400}
    plan = plan_of(features, Selection("", renamed))
    assert [(one.name[:9], one.dtype) for one in plan.columns] == [
        (".._x___"[:9], "<f4"), ("y" * 9, "|u1"), ("next.succ", "|b1"),
    ]
    assert all(len(one.name) <= LONGEST_NAME for one in plan.columns)
    for taken in ("next.done", "timestamp"):
        with pytest.raises(Refused, match=taken):
            plan_of(features, Selection("", {"observation.ok": taken}))
