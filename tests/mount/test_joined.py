"""Tables and links over all containers of a folder: episodes, tree sequences, and folders that mix formats."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
import tskit
from writers.kinodb import KinoWriter

from tests.conftest import Scale
from tests.formats.tree_files import write_random, write_trees
from tests.mount.conftest import Mounted
from tests.waiting import wait_until

TASKS = ("pick up the red block", "open the drawer", "push the red button", "wave")
OUTCOMES = (True, False, None)
FAILED_RED = "select container, position from '{}' where not success and language_instruction like '%red%'"
SCHEMA = {"codec": "json", "type": "object", "properties": {"seed": {"type": "integer"}, "model": {"type": "string"}}}
EPISODES = {"episodes.parquet", "episodes.jsonl", "by-task", "by-success"}


def write_takes(path: Path, number: int, episodes: int = 3) -> None:
    """Write a container with an old mtime, whose tasks and outcomes depend on ``number``."""
    path.parent.mkdir(exist_ok=True)
    with KinoWriter(path) as writer:
        for episode in range(episodes):
            writer.add_episode(
                np.zeros((2, 2), "<f4"), np.zeros((2, 1), "<f4"), task=TASKS[(number + episode) % len(TASKS)],
                success=OUTCOMES[(number // 4 + episode) % len(OUTCOMES)],
            )
    os.utime(path, (10**9, 10**9))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, beside a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_failed_episodes_whose_instruction_contains_a_word(
    mounted: Mounted, folder: Path, scale: Scale,
) -> None:
    expected = []
    count = scale(30, 1000)
    for number in range(count):
        name = f"part_{number % 10}/take_{number:05d}.kdb"
        write_takes(folder / name, number)
        expected += [
            (name, episode) for episode in range(3)
            if "red" in TASKS[(number + episode) % 4] and OUTCOMES[(number // 4 + episode) % 3] is False
        ]
    assert expected
    whole = []
    for _ in range(2):  # the second mount uses the catalogue
        with mounted(folder) as mount:
            table = mount.path / ".glassfs/views/episodes.parquet"
            with duckdb.connect() as connection:
                found = connection.execute(FAILED_RED.format(table)).fetchall()
            assert found == sorted(expected, key=lambda found: (os.fsencode(found[0]), found[1]))
            whole.append(table.read_bytes())
            assert len(whole[-1]) == table.stat().st_size
            assert mount.status()["open_containers"] == []
            assert mount.descriptors() < 64
    assert whole[0] == whole[1]
    assert (folder.parent / "glassfs/catalogue.sqlite").stat().st_size > 0


def test_trees_of_a_folder_are_a_table(mounted: Mounted, folder: Path) -> None:
    sequences = [write_random(folder / f"{number}.trees", number) for number in range(6)]
    write_trees(folder / "more/a.trees", schema=SCHEMA, metadata={"seed": 5, "model": "WF"}, units="generations")
    for _ in range(2):  # the second mount uses the catalogue
        with mounted(folder) as mount:
            views = mount.path / ".glassfs/views"
            assert sorted({*os.listdir(views)} - {*os.listdir(folder)}) == [
                "arrays.csv", "arrays.html", "arrays.jsonl", "arrays.parquet",
                "index.html", "trees.csv", "trees.jsonl", "trees.parquet",
            ]
            arrays = pq.read_table(views / "arrays.parquet").to_pandas()
            assert {*arrays["container"]} == {str(path.relative_to(folder)) for path in folder.rglob("*.trees")}
            assert "edges/left" in {*arrays["name"]}
            for read in (pd.read_parquet, pl.read_parquet, lambda path: pq.read_table(path).to_pandas()):
                found = read(views / "trees.parquet")
                assert list(found["num_trees"])[:6] == [one.num_trees for one in sequences]
                assert list(found["num_samples"])[:6] == [one.num_samples for one in sequences]
                assert list(found["metadata.seed"])[-1] == 5
            wanted = "container, \"metadata.model\""
            query = f"select {wanted} from '{views}/trees.parquet' where time_units = 'generations'"
            with duckdb.connect() as connection:
                assert connection.execute(query).fetchall() == [("more/a.trees", "WF")]
            only = pq.read_table(views / "trees.parquet", columns=["container", "metadata.seed"])
            assert only.column_names == ["container", "metadata.seed"]
            with pytest.raises(FileNotFoundError):
                (views / "episodes.parquet").stat()
            assert tskit.load(mount.path / ".glassfs/source/0.trees").num_trees == sequences[0].num_trees


@pytest.mark.slow
def test_tables_come_and_go_with_their_containers(mounted: Mounted, folder: Path) -> None:
    write_trees(folder / "a.trees")
    (folder / "sub").mkdir()
    with mounted(folder, options=["views=parquet+jsonl+by-task", "catalogue=no"]) as mount:
        tables = {"trees.parquet", "trees.jsonl", "arrays.parquet", "arrays.jsonl"}
        assert {*os.listdir(mount.path)} == {".glassfs", "a.trees", "sub", *tables}
        for name in EPISODES:
            assert not (mount.path / name).exists()
        with open(mount.path / "trees.jsonl", "rb", buffering=0) as before:
            data = (mount.path / "trees.jsonl").read_bytes()
            write_trees(folder / "sub/c.trees")
            write_takes(folder / "sub/b.kdb", 1)
            wait_until((mount.path / "episodes.jsonl").exists)
            wait_until(lambda: {*os.listdir(mount.path)} >= EPISODES)
            wait_until(lambda: len((mount.path / "trees.jsonl").read_text().splitlines()) == 2)
            assert before.read() == data
        (folder / "sub/b.kdb").unlink()
        wait_until(lambda: not (mount.path / "episodes.jsonl").exists())
        wait_until(lambda: not EPISODES & {*os.listdir(mount.path)})
        assert mount.status()["options"]["catalogue"] is False
    assert not (folder.parent / "glassfs").exists()


def test_tables_of_hdf5_are_listed_once_their_rows_are_known(mounted: Mounted, folder: Path) -> None:
    """No suffix promises them: a program that finds one by its name does, and so does the catalogue from then on."""
    pytest.importorskip("h5py")
    from tests.formats.hdf5_files import write_robomimic

    for name in ("a.hdf5", "b.h5"):
        write_robomimic(folder / name)
        os.utime(folder / name, (10**9, 10**9))
    own = {"a.hdf5", "b.h5"}
    with mounted(folder, options=["views=parquet+by-task"]) as mount:
        every = mount.path / ".glassfs/views"
        for _ in range(2):  # the kernel has both listings, and that there is no such name
            assert {*os.listdir(mount.path)} - {".glassfs"} == own == {*os.listdir(every)}
            assert not (mount.path / "index.html").exists()
        # The first program to look for a name of views that the root was not listed with.
        assert (every / "index.html").stat().st_size
        wait_until(lambda: {*os.listdir(mount.path)} - {".glassfs"} == own | EPISODES - {"episodes.jsonl"})
        wait_until(lambda: {*os.listdir(every)} >= own | EPISODES | {"index.html", "lerobot"})
        assert len(pq.read_table(mount.path / "episodes.parquet")) == 6
    with mounted(folder, options=["views=all"]) as mount:
        assert {*os.listdir(mount.path)} >= own | EPISODES | {"index.html", "lerobot"}
        assert mount.status()["open_containers"] == []
    # Rows of another version of a file are not those of this one.
    write_trees(folder / "c.trees")
    for name in own:
        (folder / name).write_bytes(b"no HDF5 any more")
    with mounted(folder, options=["views=parquet"]) as mount:
        assert {*os.listdir(mount.path)} >= own | {"c.trees", "trees.parquet"}
        assert "episodes.parquet" not in os.listdir(mount.path)
