"""Datasets of LeRobot, compared with the containers they are made of."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from writers.kinodb import KinoWriter

import glassfs
from glassfs.cache import BlockCache
from glassfs.codec import h264
from glassfs.content.episodes import Camera, Features, Signal
from glassfs.datasets.joined import Audience, Joins
from glassfs.errors import Changed
from glassfs.library import open_tree
from glassfs.source import Named
from glassfs.source.local import LocalStore
from glassfs.tree import Tree
from glassfs.tree.containers.containers import ContainerSettings
from glassfs.tree.sources.sources import Sources
from glassfs.view import chosen, mp4
from glassfs.view.lerobot import statistics
from glassfs.view.lerobot.dataset import LONGEST_NAME, plan_of
from glassfs.view.lerobot.statistics import NAMES, of_numbers
from tests.formats.hdf5_files import write_aloha
from tests.formats.kinodb_files import floats
from tests.formats.wshard_files import channels_of, made
from tests.helpers import attributes_of
from tests.layouts import files as layouts
from tests.waiting import wait_until

DEFAULTS = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
SIGNALS = {
    "observation.state": "state", "action": "action", "next.reward": "reward", "next.done": "is_terminal",
}
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FILM = "videos/observation.images.front/chunk-000/file-000.mp4"
RATES = [10.0, 15.0, 29.97, 50.0]


def write(path: Path, *tasks: str, frames: int = 5, fps: float = 10.0, size: tuple[int, int] = (6, 8),
          embodiment: str = "arm", first: int = 0, cameras: tuple[str, ...] = ("front",)) -> Path:
    """Write a KinoDB file with an episode for each task, each a frame longer than the previous one.

    Images are of one gray: ``first``, more by one for each frame, by 10 for each episode, by 50 for each camera.
    """
    with KinoWriter(path) as writer:
        for number, task in enumerate(tasks):
            count = frames + number
            shots = [
                {
                    camera: np.full((*size, 3), first + 10 * number + at + 50 * sorted(cameras).index(camera), np.uint8)
                    for camera in cameras
                }
                for at in range(count)
            ]
            writer.add_episode(
                state=floats(count, 3) + first + number, action=floats(count, 2) - number, images=shots, task=task,
                embodiment=embodiment, fps=fps, reward=np.arange(count, dtype="f4"),
            )
    return path


def bytes_of(tree: Tree, path: str) -> bytes:
    """Return a file, and check that its size is that of its bytes and that ranges agree."""
    file = tree.file(path)
    size = file.size
    whole = file.read(0, size + 1)
    assert len(whole) == size
    assert file.read(size // 3, 1000) == whole[size // 3 :][:1000]
    return whole


def table_of(tree: Tree, path: str) -> pd.DataFrame:
    return pq.read_table(io.BytesIO(bytes_of(tree, path))).to_pandas()


def info_of(tree: Tree, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes_of(tree, f"{path}/meta/info.json"))
    return found


def data_of(tree: Tree, path: str) -> pd.DataFrame:
    """Return the rows of all data files."""
    found = [
        table_of(tree, f"{path}/data/{chunk}/{name}")
        for chunk in names(tree, f"{path}/data") for name in names(tree, f"{path}/data/{chunk}")
    ]
    return pd.concat(found, ignore_index=True)


def names(tree: Tree, path: str) -> list[str]:
    return sorted(tree.directory(path).names())


def values(tree: Tree, path: str) -> Any:
    return np.load(io.BytesIO(bytes_of(tree, path)))


def frames_of(film: bytes, width: int, height: int, fps: float) -> list[bytes]:
    """Return the frames of an MP4 file without their numbers; check these, and what stands before the frames."""
    size, start = h264.size_of(width, height), len(mp4.head(width, height, fps, 1))
    frames = [film[at : at + size] for at in range(start, len(film), size)]
    assert film[:start] == mp4.head(width, height, fps, len(frames))
    assert [one[: h264.HEAD] for one in frames] == [h264.head(width, height, at) for at in range(len(frames))]
    return [one[h264.HEAD :] for one in frames]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    yield tmp_path / "data"


@pytest.mark.parametrize("fps", RATES)
def test_a_container_is_a_dataset(folder: Path, fps: float) -> None:
    write(folder / "a.kdb", "pick", "слово", "", "pick", frames=1, fps=fps)
    with open_tree(folder / "a.kdb", views="lerobot+mp4") as tree:
        info = info_of(tree, "/lerobot/arm")
        assert info["codebase_version"] == "v3.0" and info["robot_type"] == "arm" and info["fps"] == fps
        assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (4, 1 + 2 + 3 + 4, 3)
        assert info["splits"] == {"train": "0:4"}
        assert list(info["features"]) == [*SIGNALS, "observation.images.front", *DEFAULTS]
        assert info["features"]["observation.images.front"]["shape"] == [6, 8, 3]
        data = data_of(tree, "/lerobot/arm")
        assert list(data["index"]) == list(range(10))
        for number in range(4):
            rows = data[data["episode_index"] == number]
            for feature, name in SIGNALS.items():
                expected = values(tree, f"/episodes/{number}/{name}.npy")
                assert np.array_equal(np.stack(rows[feature].to_list()), expected), feature
            assert list(rows["frame_index"]) == list(range(len(rows)))
            assert np.array_equal(rows["timestamp"], (np.arange(len(rows)) / fps).astype("f4"))
        films = [bytes_of(tree, f"/episodes/{number}/images/front.mp4") for number in range(4)]
        frames = [frame for film in films for frame in frames_of(film, 8, 6, fps)]
        assert frames_of(bytes_of(tree, f"/lerobot/arm/{FILM}"), 8, 6, fps) == frames
        tasks = table_of(tree, "/lerobot/arm/meta/tasks.parquet")
        assert list(tasks.index) == ["pick", "слово", ""] and list(tasks["task_index"]) == [0, 1, 2]
        assert list(data.groupby("episode_index")["task_index"].first()) == [0, 1, 2, 0]
        episodes = table_of(tree, f"/lerobot/arm/{EPISODES}")
        assert list(episodes["length"]) == [1, 2, 3, 4]
        assert list(episodes["dataset_from_index"]) == [0, 1, 3, 6]
        assert list(episodes["dataset_to_index"]) == [1, 3, 6, 10]
        assert [list(one) for one in episodes["tasks"]] == [["pick"], ["слово"], [""], ["pick"]]
        key = "videos/observation.images.front"
        assert not episodes[f"{key}/file_index"].any() and not episodes[f"{key}/chunk_index"].any()
        assert np.allclose(episodes[f"{key}/from_timestamp"], np.array([0, 1, 3, 6]) / fps)
        assert np.allclose(episodes[f"{key}/to_timestamp"], np.array([1, 3, 6, 10]) / fps)


def test_other_features_are_other_datasets(folder: Path) -> None:
    write(folder / "a.kdb", "pick")
    write(folder / "b.kdb", "pick", "pick", size=(7, 9))
    write(folder / "c.kdb", "pick", embodiment="../x")
    with open_tree(folder, views="lerobot") as tree:
        assert names(tree, "/lerobot") == ["..%2Fx", "arm", "arm~2"]
        infos = [info_of(tree, f"/lerobot/{name}") for name in ("arm", "arm~2")]
        shapes = [info["features"]["observation.images.front"]["shape"] for info in infos]
        assert shapes == [[8, 10, 3], [6, 8, 3]]  # as decoded: of odd sides one row or column more


def test_frames_without_an_image_show_the_previous_one(folder: Path) -> None:
    front = [{"front": np.full((4, 4, 3), at, np.uint8)} if at != 1 else {} for at in range(3)]
    with KinoWriter(folder / "a.kdb") as writer:
        writer.add_episode(state=floats(3, 2), action=floats(3, 2), images=front, embodiment="arm")
    with open_tree(folder / "a.kdb", views="lerobot+mp4") as tree:
        film = bytes_of(tree, f"/lerobot/arm/{FILM}")
        assert film == bytes_of(tree, "/episodes/0/images/front.mp4")
        stats = json.loads(bytes_of(tree, "/lerobot/arm/meta/stats.json"))
        assert np.allclose(np.ravel(stats["observation.images.front"]["mean"]), np.mean([0, 0, 2]) / 255)


def test_what_cannot_be_in_a_dataset_is_named(folder: Path) -> None:
    deep = {"deep": np.zeros((2, 2, 5), np.uint8)}
    with KinoWriter(folder / "a.kdb") as writer:
        writer.add_episode(state=floats(2, 2), action=floats(2, 2), embodiment="arm", images=[deep] * 2)
        writer.add_episode(state=floats(0, 2), action=floats(0, 2), embodiment="arm", images=[])
    with open_tree(folder / "a.kdb", views="lerobot") as tree:
        assert "deep: has images of 2 x 2 pixels" in attributes_of(tree.directory("/lerobot/arm"))["omitted"]
        assert attributes_of(tree.directory("/lerobot")) == {"omitted": "1 episodes: has no steps"}
        assert names(tree, "/lerobot/arm") == ["data", "meta"]


@pytest.mark.parametrize("writer", layouts.ALL, ids=lambda writer: str(writer.__name__))
def test_a_file_of_a_layout_is_a_dataset(folder: Path, writer: layouts.Writer) -> None:
    path, rows = writer(folder)
    with open_tree(folder, views="lerobot") as tree, glassfs.open(path, views="mp4") as container:
        (dataset,) = names(tree, "/lerobot")
        info, data = info_of(tree, f"/lerobot/{dataset}"), data_of(tree, f"/lerobot/{dataset}")
        state = info["features"].get("observation.state", {"shape": [None]})["shape"]
        assert [[row["state_dim"]] for row in container.episodes()] == [state] * len(rows)
        films: dict[str, list[bytes]] = {}
        for number in range(len(rows)):
            place = f"episodes/{number}/" if "episodes" in container else ""
            steps = data[data["episode_index"] == number]
            for feature, paths in layouts.FEATURES[writer.__name__].items():
                if feature.startswith("observation.images."):
                    film = container[f"{place}{paths[0]}.mp4"].bytes()
                    films.setdefault(feature, []).extend(frames_of(film, 12, 10, info["fps"])[: len(steps)])
                    continue
                arrays = [container[place + one].numpy()[: len(steps)] for one in paths]
                parts = [array.reshape(len(steps), -1) for array in arrays]
                found = np.stack(steps[feature].to_list()).reshape(len(steps), -1)
                np.testing.assert_array_equal(found, np.concatenate(parts, 1).astype(found.dtype), feature)
        for feature, frames in films.items():
            film = bytes_of(tree, f"/lerobot/{dataset}/videos/{feature}/chunk-000/file-000.mp4")
            assert frames_of(film, 12, 10, info["fps"]) == frames


def test_containers_of_one_episode_are_a_dataset(folder: Path) -> None:
    for number in range(3):
        write_aloha(folder / f"aloha_{number}.hdf5")
        channels = {"joint_pos": floats(4, 3) + number, "rgb": np.full((4, 6, 8, 3), number, np.uint8)}
        shard = made(channels_of(channels, **{"action/ctrl": floats(4, 2), "reward": floats(4, 1)[:, 0]}))
        (folder / f"{number}.wshard").write_bytes(shard)
    with open_tree(folder, views="lerobot") as tree:
        found = {name: info_of(tree, f"/lerobot/{name}") for name in names(tree, "/lerobot")}
        by_state = {one["features"]["observation.state"]["shape"][0]: name for name, one in found.items()}
        assert [one["total_episodes"] for one in found.values()] == [3, 3]
        for state, path in ((14, "aloha_{}.hdf5/observations/qpos"), (3, "{}.wshard/signal/joint_pos")):
            data = data_of(tree, f"/lerobot/{by_state[state]}")
            for number in range(3):
                rows = data[data["episode_index"] == number]
                wanted = values(tree, f"/{path.format(number)}.npy")
                assert np.array_equal(np.stack(rows["observation.state"].to_list()), wanted)


def test_episodes_have_their_statistics(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of two episodes, whose borders are not those of containers; ``stats.json`` is their aggregate."""
    monkeypatch.setattr("glassfs.content.table.PIECE", 2 * 1500)
    write(folder / "a.kdb", "pick", "place", "pick")
    write(folder / "b.kdb", "push", first=100)
    write(folder / "c.kdb", "push", "pull", "push", first=200)
    with open_tree(folder, views="lerobot") as tree:
        rows = pq.read_table(io.BytesIO(bytes_of(tree, f"/lerobot/arm/{EPISODES}"))).to_pylist()
        data = data_of(tree, "/lerobot/arm")
        total = json.loads(bytes_of(tree, "/lerobot/arm/meta/stats.json"))
    assert len(rows) == 7
    for number, row in enumerate(rows):
        own = data[data["episode_index"] == number]
        for feature in (*SIGNALS, *DEFAULTS):
            found = np.stack(own[feature].to_numpy()).reshape(len(own), -1)
            for name, values in zip(NAMES, of_numbers([found], len(own)).values, strict=True):
                np.testing.assert_allclose(row[f"stats/{feature}/{name}"], values, 1e-6, 1e-9, err_msg=feature + name)
            assert row[f"stats/{feature}/count"] == [len(own)]
        assert type(row["stats/next.done/max"][0]) is bool and type(row["stats/index/min"][0]) is int
        assert np.shape(row["stats/observation.images.front/q50"]) == (3, 1, 1)
        assert (row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) == (0, 0)
    means = np.array([row["stats/observation.images.front/mean"] for row in rows])
    counts = np.array([row["stats/observation.images.front/count"] for row in rows])
    weighted = (means * counts.reshape(-1, 1, 1, 1)).sum(0) / counts.sum()
    np.testing.assert_allclose(total["observation.images.front"]["mean"], weighted)


def test_sizes_are_known_without_statistics(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "a.kdb", "pick", "place")
    with open_tree(folder, views="lerobot") as tree:
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "_of_episode", None)
            size = tree.file(f"/lerobot/arm/{EPISODES}").size
        assert len(bytes_of(tree, f"/lerobot/arm/{EPISODES}")) == size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_stats_are_strict_json(folder: Path, value: float) -> None:
    with KinoWriter(folder / "a.kdb") as writer:
        writer.add_episode(state=floats(6, 3), action=np.full((6, 2), value, "f4"), embodiment="arm")
    with open_tree(folder, views="lerobot") as tree:
        found = json.loads(bytes_of(tree, "/lerobot/arm/meta/stats.json"), parse_constant=pytest.fail)
    assert found["action"]["mean"] == [0, 0]


def test_encoded_images_are_one_feature(folder: Path) -> None:
    """Frame 3 of the camera was missed: the video shows the one before, and statistics count it."""
    write_aloha(folder / "a.hdf5", steps=6, is_compressed=True, missed=(3,))
    write_aloha(folder / "b.hdf5", steps=6, is_compressed=True, missed=(3,))
    with open_tree(folder, views="lerobot") as tree:
        features = info_of(tree, "/lerobot/unknown")["features"]
        assert [name for name in features if "image" in name] == ["observation.images.top"]
        assert features["observation.images.top"]["dtype"] == "video"
        film = bytes_of(tree, "/lerobot/unknown/videos/observation.images.top/chunk-000/file-000.mp4")
        shown = frames_of(film, 16, 12, 50)
        assert len(shown) == 12 and shown[3] == shown[2] != shown[4] and shown[:6] == shown[6:]
        assert json.loads(bytes_of(tree, "/lerobot/unknown/meta/stats.json"))["observation.images.top"]["count"] == [12]


def test_a_replaced_container_is_never_half_shown(folder: Path) -> None:
    write(folder / "a.kdb", "pick", "place")
    write(folder / "b.kdb", "pick")
    with open_tree(folder, views="lerobot") as tree:
        opened = [tree.file(f"/lerobot/arm/{path}") for path in (FILM, "data/chunk-000/file-000.parquet")]
        assert all(file.size for file in opened)
        write(folder / "new", "pick", frames=30, first=99)
        os.replace(folder / "new", folder / "a.kdb")
        for file in opened:
            with pytest.raises(Changed):
                file.read(0, file.size)
    with open_tree(folder, views="lerobot") as tree:
        assert info_of(tree, "/lerobot/arm")["total_frames"] == 30 + 5
        assert tree.lookup("/lerobot/arm/meta/info.json").origin.mtime_ns >= (folder / "a.kdb").stat().st_mtime_ns


def test_a_known_dataset_opens_no_container(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        path = write(folder / f"{number}.kdb", "pick", "place", first=number)
        os.utime(path, (1e9, 1e9 + number))
    found: list[bytes] = []
    for _ in range(2):
        with open_tree(folder, views="lerobot") as tree:
            found.append(bytes_of(tree, "/lerobot/arm/meta/info.json"))
            found.append(bytes_of(tree, "/lerobot/arm/meta/stats.json"))
            assert tree.file(f"/lerobot/arm/{FILM}").size
        monkeypatch.setattr("glassfs.tree.containers.lease.open_container", None)
    assert found[:2] == found[2:]


def test_data_files_have_at_most_their_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.view.lerobot.dataset.FILE_BYTES", 600)
    write(folder / "a.kdb", *["pick"] * 5)
    with open_tree(folder / "a.kdb", views="lerobot") as tree:
        assert len(names(tree, "/lerobot/arm/data/chunk-000")) > 1
        data = data_of(tree, "/lerobot/arm")
        assert list(data["index"]) == list(range(35))
        episodes = table_of(tree, "/lerobot/arm/meta/episodes/chunk-000/file-000.parquet")
        for number, row in episodes.iterrows():
            file = table_of(tree, f"/lerobot/arm/data/chunk-000/file-{row['data/file_index']:03d}.parquet")
            assert (file["episode_index"] == number).sum() == row["length"]


def test_films_are_shorter_than_what_float32_tells_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.view.lerobot.dataset.LONGEST_FILM", 1.2)
    for number in range(2):
        write(folder / f"{number}.kdb", *["pick"] * 3, first=50 * number)
    with open_tree(folder, views="lerobot") as tree:
        films = "/lerobot/arm/videos/observation.images.front/chunk-000"
        assert names(tree, films) == [f"file-{number:03d}.mp4" for number in range(4)]
        episodes = table_of(tree, "/lerobot/arm/meta/episodes/chunk-000/file-000.parquet")
        key = "videos/observation.images.front"
        assert list(episodes[f"{key}/file_index"]) == [0, 0, 1, 2, 2, 3]
        assert list(episodes[f"{key}/from_timestamp"]) == [0, 0.5, 0, 0, 0.5, 0]
        lengths = [len(frames_of(bytes_of(tree, f"{films}/{name}"), 8, 6, 10)) for name in names(tree, films)]
        assert lengths == [5 + 6, 7, 5 + 6, 7]


def test_a_replaced_container_costs_its_episodes_of_a_film(folder: Path) -> None:
    """The others are still read from a file that is open."""
    for number in range(2):
        write(folder / f"{number}.kdb", "pick", first=number)
    with open_tree(folder, views="lerobot") as tree:
        film = tree.file(f"/lerobot/arm/{FILM}")
        os.replace(write(folder / "new", "pick", first=99), folder / "1.kdb")
        with open_tree(folder / "0.kdb", views="mp4") as container:
            alone = bytes_of(container, "/episodes/0/images/front.mp4")
        size = 5 * h264.size_of(8, 6)
        begin = film.size - 2 * size
        assert film.read(begin, size) == alone[-size:]
        with pytest.raises(Changed):
            film.read(begin + size, 1)


def test_blocks_of_rows_agree_with_the_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "a.kdb", *["pick"] * 5)
    wholes = []
    for piece in (1 << 20, 100):
        monkeypatch.setattr("glassfs.content.table.PIECE", piece)
        with open_tree(folder / "a.kdb", views="lerobot") as tree:
            wholes.append(bytes_of(tree, "/lerobot/arm/data/chunk-000/file-000.parquet"))
    assert wholes[0] == wholes[1]


def test_hostile_names_are_safe_and_distinct() -> None:
    odd = ["a/b", "a\nb", "{x}", "%2F", "\udc80", "x" * 300, "x" * 301, "..", ""]
    signals = tuple(Signal(f"obs/{name}", "<i4", 2) for name in odd)
    cameras = tuple(Camera(name, 4, 4) for name in odd)
    plan = plan_of(Features(signals, cameras))
    found = [one.name for one in (*plan.columns, *plan.films)]
    assert len(found) == len({*found}) == 2 * len(odd)
    assert all(len(name.encode()) <= LONGEST_NAME for name in found)
    assert not any(set(name) & {*"/%{}\n"} for name in found)


def test_several_actions_are_joined() -> None:
    signals = Signal("action/arm", "<f8", 3), Signal("action/gripper", "<f4", None), Signal("next_obs/x", "<f4", 1)
    plan = plan_of(Features(signals, ()))
    found = {one.name: (one.dtype, one.length) for one in plan.columns}
    assert found == {"action": ("<f4", 4), "action.arm": ("<f4", 3), "action.gripper": ("<f4", 1)}
    assert plan.omitted == ()


def test_closed_containers_are_in_no_shared_dataset(folder: Path) -> None:
    folder.chmod(0o755)
    for number in range(3):
        write(folder / f"{number}.kdb", "pick").chmod(0o600 if number == 1 else 0o644)
    settings = ContainerSettings(BlockCache(8 << 20), views=chosen("lerobot"))
    overview = partial(Joins, audience=Audience(is_shared=True))
    sources = Sources([Named(LocalStore(folder), (), "data")], settings, overview)
    try:
        tree = sources.tree
        assert info_of(tree, "/lerobot/arm")["total_episodes"] == 2
        video = tree.file(f"/lerobot/arm/{FILM}")
        assert video.read(0, video.size)
        (folder / "2.kdb").chmod(0o600)
        with pytest.raises(Changed):
            wait_until(lambda: not video.read(0, video.size))
    finally:
        sources.close()
