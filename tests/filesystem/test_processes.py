"""Threads, pickles, and other processes."""

from __future__ import annotations

import gc
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from glassfs.filesystem import GlassfsFileSystem
from tests.conftest import Scale
from tests.filesystem.conftest import ranges, write_values
from tests.helpers import in_fork

LONGEST_PICKLE = 2000


def test_concurrent_reads_return_the_right_data(place: Path, files: dict[str, bytes], scale: Scale) -> None:
    """One file system for all of them, new to it."""
    fs = GlassfsFileSystem(place, cache_size=1 << 20)

    def work(seed: int) -> int:
        wrong = 0
        for number, (name, start, end) in enumerate(ranges(files, scale(100, 1000), seed)):
            if number % 3:
                got = fs.cat_file(name, start, end)
            else:
                with fs.open(name) as file:
                    file.seek(start)
                    got = file.read(end - start)
            wrong += got != files[name][start:end]
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [0] * 8


def test_threads_make_and_drop_what_they_share(place: Path, scale: Scale) -> None:
    """What one gives up is never what another one has just got."""
    def work(_: int) -> int:
        read = 0
        for _ in range(scale(50, 500)):
            fs = GlassfsFileSystem(place / "iris.idv")
            read += len(fs.cat_file("columns/Label.npy", 0, 6))
            del fs
        return read

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [6 * scale(50, 500)] * 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_opens_its_own_tree(place: Path, files: dict[str, bytes]) -> None:
    fs = GlassfsFileSystem(place)
    wanted = ranges(files, 50, 6)
    assert fs.cat_ranges(*zip(*wanted, strict=True)) == [files[name][start:end] for name, start, end in wanted]
    file = fs.open("notes.txt")

    def child() -> bool:
        nonlocal fs
        assert fs.cat_ranges(*zip(*wanted, strict=True)) == [files[name][start:end] for name, start, end in wanted]
        assert GlassfsFileSystem(place).exists("robot.kdb") and pickle.loads(pickle.dumps(fs)) == fs
        del fs
        gc.collect()
        return True

    assert in_fork(child)
    assert fs.cat_file("notes.txt") == file.read() == b"plain\n"


def test_a_pickle_is_a_name(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(place)
    fs = GlassfsFileSystem("robot.kdb", views="parquet", cache_size=1 << 20)
    fs.find("")
    pickled = pickle.dumps(fs)
    assert len(pickled) < LONGEST_PICKLE
    monkeypatch.chdir(tmp_path)
    there = pickle.loads(pickled)
    assert there == fs and hash(there) == hash(fs) and there._opened is fs._opened
    assert "episodes.parquet" in there.ls("", detail=False) == fs.ls("", detail=False)
    opened = pickle.dumps(fsspec.open(f"glassfs://notes.txt::{place}"))
    assert len(opened) < LONGEST_PICKLE
    with pickle.loads(opened) as file:
        assert file.read() == b"plain\n"


def test_making_one_opens_nothing(tmp_path: Path) -> None:
    fs = GlassfsFileSystem(tmp_path / "later.kas")
    pickled = pickle.dumps(fs)
    write_values(tmp_path / "later.kas", 1.0)
    assert fs.exists("values.npy") and pickle.loads(pickled).exists("values.npy")


def test_json_is_another_way_to_hand_it_on(place: Path) -> None:
    fs = fsspec.filesystem("glassfs", fo=str(place / "robot.kdb"), views="parquet")
    assert json.loads(fs.to_json())["protocol"] == "glassfs"
    assert fsspec.AbstractFileSystem.from_json(fs.to_json()) == fs


def test_what_is_asked_for_tells_them_apart(place: Path) -> None:
    def made(**options: object) -> GlassfsFileSystem:
        return fsspec.filesystem("glassfs", **{"fo": str(place / "robot.kdb")} | options)

    first = made()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(made).result() == first  # of fsspec's own file systems, threads have their own
    others = [made(fo=str(place)), made(views="all"), made(cache_size=1), made(spool="/tmp"),
              made(fo="s3://b/run.kdb"), made(fo="s3://b/run.kdb", target_options={"key": "a"}),
              made(fo="s3://b/run.kdb", target_options={"key": "b"})]
    assert len({first, *others}) == len(others) + 1
    assert len({one.fsid for one in others}) == len(others)
