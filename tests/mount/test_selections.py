"""Selections in real mounts, exports and fsspec: in words, and in a file."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import glassfs
from glassfs.filesystem import GlassfsFileSystem
from tests.cli.glassfs_command import glassfs as command
from tests.datasets.test_selections import write_takes
from tests.mount.conftest import Mounted
from tests.mount.mounts import COMMAND, Mount, bytes_below
from tests.waiting import wait_until

CHOSEN = ["a.kdb:1", "b.kdb:1", "sub/c.kdb:1", "sub/c.kdb:3"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, count in (("a.kdb", 3), ("b.kdb", 2), ("sub/c.kdb", 4)):
        write_takes(tmp_path / "data" / name, count)
    (tmp_path / "data/notes.txt").write_text("plain")
    (tmp_path / "data/inner.toml").write_text('sources = ["/etc"]')
    return tmp_path


def write_selection(folder: Path, text: str) -> Path:
    path = folder / "s.toml"
    path.write_text(f'sources = ["data"]\n{text}\n')
    return path


def rows_in(mount: Mount) -> list[str]:
    table = pq.read_table(io.BytesIO((mount.path / "episodes.parquet").read_bytes())).to_pylist()
    return [f"{row['container']}:{row['position']}" for row in table]


def test_mount_of_a_selection(mounted: Mounted, folder: Path) -> None:
    source = write_selection(folder, 'where = "success"\nexclude = ["gone.kdb"]\ntrim = "1:-1"\nevery = 2')
    with mounted(source, options=["views=parquet+mp4"]) as mount:
        root = mount.path
        assert sorted(os.listdir(root)) == [".glassfs", "a.kdb", "b.kdb", "episodes.parquet", "sub"]
        assert rows_in(mount) == CHOSEN
        for name in CHOSEN:
            container, _, number = name.rpartition(":")
            assert number in os.listdir(root / container / "episodes")
            assert np.load(root / container / f"episodes/{number}/reward.npy").tolist() == [1, 3]
            assert json.loads((root / container / f"episodes/{number}/meta/episode.json").read_bytes())["fps"] == 5
        for hidden in ("notes.txt", "inner.toml", "a.kdb/episodes/0"):
            assert not (root / hidden).exists()
        # Raw files are what is stored.
        assert (root / ".glassfs/source/a.kdb").read_bytes() == (folder / "data/a.kdb").read_bytes()
        assert os.getxattr(root, "user.glassfs.omitted") == b"gone.kdb: episode: is excluded, but not there"
        (line,) = (root / ".glassfs/omitted.jsonl").read_text().splitlines()
        assert json.loads(line)["name"] == "gone.kdb"


def test_mount_of_a_selection_in_words_follows_its_sources(mounted: Mounted, folder: Path, tmp_path: Path) -> None:
    at = tmp_path / "at"
    at.mkdir()
    words = ["--where", "success", "--trim", "1:-1", "--every", "2", "-o", "views=parquet"]
    done = subprocess.run(
        [*COMMAND, "mount", *words, "--log-file", "log", "data", "at"], capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    try:
        read = at / "episodes.parquet"
        assert pq.read_table(io.BytesIO(read.read_bytes()))["position"].to_pylist() == [1, 1, 1, 3]
        assert os.listdir(at / "a.kdb/episodes") == ["1"]
        write_takes(folder / "data/a.kdb", 6)
        write_takes(folder / "data/new.kdb", 2)
        wait_until(lambda: os.listdir(at / "a.kdb/episodes") == ["1", "3", "5"] and "new.kdb" in os.listdir(at))
        assert np.load(at / "a.kdb/episodes/5/reward.npy").tolist() == [1, 3]
        wait_until(lambda: pq.read_table(io.BytesIO(read.read_bytes())).num_rows == 7)
    finally:
        assert command("umount", "at").status == 0
    assert "Traceback" not in Path("log").read_text()


def test_mistakes_are_named_before_anything_is_mounted(folder: Path) -> None:
    (folder / "at").mkdir()
    write_selection(folder, 'where = "sucess"')
    done = command("mount", "s.toml", "at")
    assert (done.status, done.errors) == (1, ["glassfs: s.toml:2: sucess: unknown column; did you mean success?"])


def test_exports_tables_and_trees_are_equal(folder: Path) -> None:
    write_selection(folder, 'where = "success"\ntrim = "1:-1"\nevery = 2\n[splits]\ntrain = "0:50%"\nvalid = "50%:"')
    done = command("export", "s.toml", "out")
    assert done.status == 0, done.errors
    with glassfs.open("s.toml") as opened:
        files = bytes_below(folder / "out")
        for name in CHOSEN:
            container, _, number = name.rpartition(":")
            assert files[f"{container}/episodes/{number}/reward.npy"] == (
                opened[f"{container}/episodes/{number}/reward.npy"].bytes()
            )
        rows = list(opened.episodes())
    assert len([path for path in files if path.endswith("reward.npy")]) == 4
    assert [row["splits"] for row in rows] == [["train"], ["train"], ["valid"], ["valid"]]
    found = [json.loads(line) for line in command("episodes", "s.toml").lines]
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert command("info", "s.toml").lines[0].endswith("4 episodes, 8 frames")
    verified = command("verify", "s.toml")
    assert (verified.status, verified.errors) == (0, ["3 containers, 0 faults"])


@pytest.mark.slow
def test_worker_processes_see_the_selection(folder: Path) -> None:
    write_selection(folder, 'where = "success"\ntrim = "1:-1"\nevery = 2\n[splits]\ntrain = ":"')
    assert command("episodes", "--jobs", "2", "s.toml").lines == command("episodes", "s.toml").lines
    verified = command("verify", "--jobs", "2", "s.toml")
    assert (verified.status, verified.errors[-1]) == (0, "3 containers, 0 faults")


def test_fsspec_has_selections(folder: Path) -> None:
    write_selection(folder, 'where = "success"\ntrim = "1:-1"\nevery = 2')
    for system in (GlassfsFileSystem("s.toml"), GlassfsFileSystem("data", where="success", trim="1:-1", every=2)):
        for one in (system, pickle.loads(pickle.dumps(system))):
            assert [name.rpartition("/")[2] for name in one.ls("sub/c.kdb/episodes", detail=False)] == ["1", "3"]
            assert np.load(io.BytesIO(one.cat_file("a.kdb/episodes/1/reward.npy"))).tolist() == [1, 3]
            assert not one.exists("notes.txt")
    whole = GlassfsFileSystem("data")
    assert whole.exists("notes.txt") and len(whole.ls("a.kdb/episodes")) == 3
