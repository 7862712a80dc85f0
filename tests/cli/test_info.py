"""Test ``glassfs info`` of containers and of folders of containers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from glassfs.cache.catalogue import SWITCH
from glassfs.datasets.batch.found import Opener
from glassfs.sizes import human_size
from tests.cli.glassfs_command import glassfs
from tests.formats.hdf5_files import write_robomimic
from tests.formats.npz_files import npy, zipped


@pytest.fixture
def dataset(robot: Path, store: Path, damaged: Path, tmp_path: Path) -> Path:
    """Return a folder of two KinoDB files, one deep below, a kastore, an episode, a plain file and links."""
    folder = tmp_path / "data"
    (folder / "a" / "b").mkdir(parents=True)
    shutil.copy(robot, folder / "one.kdb")
    shutil.copy(robot, folder / "a" / "b" / "two.bin")
    shutil.copy(store, folder / "a")
    shutil.copy(damaged, folder / "a")
    (folder / "notes.txt").write_text("notes")
    (folder / "link.kdb").symlink_to("one.kdb")
    (folder / "loop").symlink_to(".")
    return folder


def test_a_folder_is_summed_by_format(dataset: Path, robot: Path, store: Path, damaged: Path) -> None:
    found = json.loads(glassfs("info", "--json", dataset).output)
    assert found == {
        "source": str(dataset),
        "formats": {
            "kastore": {"containers": 1, "bytes": store.stat().st_size, "keys": 4},
            "kinodb": {"containers": 2, "bytes": 2 * robot.stat().st_size, "num_episodes": 2, "num_frames": 6},
            "wshard": {"containers": 1, "bytes": damaged.stat().st_size, "num_episodes": 1, "num_frames": 2000},
        },
        "unreadable": [],
        "omitted": [],
    }
    lines = glassfs("info", dataset).lines
    assert lines[0].startswith(f"{dataset}: 4 containers, ") and lines[0].endswith(", 3 episodes, 2,006 frames, 4 keys")
    assert lines[2].startswith("  kinodb: 2, ")
    assert lines[2].endswith(", 2 episodes, 6 frames")


def test_episodes_of_layouts_are_counted_and_zeros_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "data/r.hdf5"
    path.parent.mkdir()
    write_robomimic(path)
    lines = glassfs("info", path).lines
    assert "  episodes: 3, 21 frames" in lines and not [line for line in lines if "block" in line]
    assert json.loads(glassfs("info", "--json", path).output)["facts"]["user_block"] == 0
    size = human_size(path.stat().st_size)
    assert glassfs("info", path.parent).lines == [
        f"{path.parent}: 1 container, {size}, 3 episodes, 21 frames", f"  hdf5: 1, {size}, 3 episodes, 21 frames",
    ]
    assert glassfs("info", "--quick", path.parent).lines[1:] == [f"  hdf5: 1, {size}"]


def test_sums_of_a_folder_come_from_the_catalogue(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)
    for path in dataset.rglob("*"):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    (dataset / "notes.txt").unlink()  # what is no container is looked at each time
    first = glassfs("info", "--json", dataset).output
    opened: list[object] = []
    glimpsed = Opener.glimpsed
    monkeypatch.setattr(Opener, "glimpsed", lambda *words: opened.append(words) or glimpsed(*words))
    assert glassfs("info", "--json", dataset).output == first
    assert opened == []
    os.utime(dataset / "one.kdb")
    assert glassfs("info", "--json", dataset).output == first
    assert len(opened) == 1


def test_a_missing_source_does_not_stop_the_others(dataset: Path, store: Path, tmp_path: Path) -> None:
    done = glassfs("info", "--json", store, tmp_path / "none", dataset)
    assert [json.loads(line)["source"] for line in done.lines] == [str(store), str(dataset)]
    assert done.errors == [f"glassfs: {tmp_path}/none: No such file or directory"]
    assert done.status == 1


def test_cameras_and_success_of_episodes_are_counted(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "robot.kdb"
    image = np.zeros((2, 2, 3), np.uint8)
    with KinoWriter(path, created=0) as writer:
        for number, success in enumerate((True, True, False, None)):
            cameras = {"front": image} | ({"wrist": image} if number == 1 else {})
            writer.add_episode(np.ones((1, 2)), np.zeros((1, 1)), images=[cameras], success=success)
    found = json.loads(glassfs("info", "--json", path).output)
    assert found["cameras"] == {"front": 4, "wrist": 1}
    assert found["success"] == {"yes": 2, "no": 1, "unknown": 1}
    assert glassfs("info", path).lines[-3:-1] == [
        "  cameras: front (in 4), wrist (in 1)", "  success: 2 yes, 1 no, 1 unknown",
    ]
    assert "cameras" not in json.loads(glassfs("info", "--json", "--quick", path).output)
    assert {"cameras", "success"}.isdisjoint(json.loads(glassfs("info", "--json", store).output))


def test_views_are_listed_with_their_paths(tmp_path: Path) -> None:
    path = tmp_path / "robot.kdb"
    image = np.zeros((2, 2, 3), np.uint8)
    with KinoWriter(path, created=0) as writer:
        for _ in range(3):
            writer.add_episode(np.ones((1, 2)), np.zeros((1, 1)), images=[{"front": image, "a/b": image}])
    found = json.loads(glassfs("info", "--json", path).output)["views"]
    assert set(found[".mp4"]) == {"episodes/0/images/front.mp4", "episodes/0/images/a/b.mp4"}
    assert {"episodes.parquet", "episodes/0/steps.parquet"} <= set(found[".parquet"])
    assert found["by-task"] == ["by-task"]
    (line,) = (line for line in glassfs("info", path).lines if line.startswith("  views: "))
    assert "episodes.parquet and 1 more" in line and "front.mp4 and 1 more" in line
    assert "views" not in json.loads(glassfs("info", "--json", "--quick", path).output)


def test_containers_in_a_container(robot: Path, tmp_path: Path) -> None:
    whole = robot.read_bytes()
    path = tmp_path / "runs.npz"
    path.write_bytes(zipped(("a.npy", npy(np.arange(3))), ("robot.kdb", whole), ("cut.kdb", whole[:-9])))
    alone = json.loads(glassfs("info", "--json", robot).output)
    found = json.loads(glassfs("info", "--json", path / "robot.kdb").output)
    for name in ("format", "version", "bytes", "facts", "contents", "raw_bytes"):
        assert found[name] == alone[name], name
    assert glassfs("info", path / "robot.kdb").lines[0].startswith(f"{path}/robot.kdb: kinodb ")
    lines = glassfs("info", path / "cut.kdb").lines
    assert lines[-1].startswith("  unreadable: ") and "cut short" in lines[-1]
    assert json.loads(glassfs("info", "--json", path).output)["contents"]["arrays"] == 1 + alone["contents"]["arrays"]
