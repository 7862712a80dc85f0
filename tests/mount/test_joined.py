"""Tables and links over all episodes of a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import duckdb
import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.waiting import wait_until

TASKS = ("pick up the red block", "open the drawer", "push the red button", "wave")
OUTCOMES = (True, False, None)
FAILED_RED = "select container, position from '{}' where not success and language_instruction like '%red%'"


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
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    folder.mkdir()
    for number in range(12):
        write_takes(folder / f"part {number % 3}" / f"take_{number:03d}.kdb", number)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "glassfs"


def queried(table: Path) -> list[tuple[str, int]]:
    with duckdb.connect() as connection:
        return [(name, position) for name, position in connection.execute(FAILED_RED.format(table)).fetchall()]


def test_failed_episodes_whose_instruction_contains_a_word(
    mounted: Mounted, tmp_path: Path, cache: Path, scale: Scale,
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
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
            assert queried(table) == sorted(expected, key=lambda found: (os.fsencode(found[0]), found[1]))
            whole.append(table.read_bytes())
            assert len(whole[-1]) == table.stat().st_size
            assert mount.status()["open_containers"] == []
            assert mount.descriptors() < 64
    assert whole[0] == whole[1]
    assert (cache / "catalogue.sqlite").stat().st_size > 0


@pytest.mark.slow
def test_table_changes_except_in_an_open_file(mounted: Mounted, dataset: Path) -> None:
    with mounted(dataset, options=["views=jsonl"]) as mount:
        table = mount.path / "episodes.jsonl"

        def containers() -> set[str]:
            return {json.loads(line)["container"] for line in table.read_text().splitlines()}

        with open(table, "rb", buffering=0) as before:
            data = table.read_bytes()
            write_takes(dataset / "new/later.kdb", 1)
            (dataset / "part 0/take_000.kdb").unlink()
            wait_until(lambda: "new/later.kdb" in containers() and "part 0/take_000.kdb" not in containers())
            assert before.read() == data
        write_takes(dataset / "new/later.kdb", 2, episodes=5)
        wait_until(lambda: len(table.read_text().splitlines()) == 3 * 11 + 5)


@pytest.mark.slow
def test_mount_can_do_without_the_catalogue(mounted: Mounted, dataset: Path, cache: Path) -> None:
    with mounted(dataset, options=["views=jsonl", "catalogue=no"]) as mount:
        assert len((mount.path / "episodes.jsonl").read_text().splitlines()) == 36
        assert mount.status()["options"]["catalogue"] is False
    assert not cache.exists()
