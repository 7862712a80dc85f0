"""A daemon that runs for long neither grows nor leaks descriptors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.mounts import Mount
from tests.waiting import wait_until

FILES = 50
GROWTH = 3 << 20
"""Bytes that the daemon may grow by."""


@pytest.fixture
def store(mounted: Mounted, tmp_path: Path) -> Iterator[Mount]:
    with KastoreWriter(tmp_path / "some.kas") as store:
        for number in range(FILES):
            store.add(f"group/array_{number}", np.arange(100))
    with mounted(tmp_path / "some.kas") as mount:
        yield mount


def open_and_close(paths: list[str], times: int) -> None:
    """Open files ``times`` times in two threads; every tenth opening reads."""

    def work(start: int) -> None:
        for number in range(start, times, 2):
            descriptor = os.open(paths[number % len(paths)], os.O_RDONLY)
            if number % 10 == 0:
                os.pread(descriptor, 64, 0)
            os.close(descriptor)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


@pytest.mark.slow
def test_memory_and_descriptors_stay_flat_over_many_openings(store: Mount, scale: Scale) -> None:
    openings = scale(10_000, 30_000, 10_000_000)
    paths = [str(store.path / f"group/array_{number}.npy") for number in range(FILES)]
    open_and_close(paths, openings // 5)
    memory, descriptors = store.resident(), store.descriptors()
    open_and_close(paths, openings - openings // 5)
    assert store.resident() - memory < GROWTH
    wait_until(lambda: store.descriptors() <= descriptors)
    # The files and the directories above them; the kernel sends the last releases asynchronously.
    wait_until(lambda: store.status()["nodes"]["references"] <= FILES + 10)
    assert store.status()["errors"] == 0


@pytest.mark.slow
def test_deleted_files_are_released_whatever_their_names(tmp_path: Path, mounted: Mounted) -> None:
    """The kernel is told the name that it knows, so that it forgets the file and the daemon closes it."""
    names = ("new\nline", "plain", "%41%", "\x1b[31mred")
    files = [tmp_path / "source" / str(number) / name for number in range(10) for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 100)
    with mounted(tmp_path / "source") as mount:
        assert [shown.read_bytes() for shown in mount.path.glob("[0-9]/*")] == [b"x" * 100] * len(files)
        assert len([target for target in mount.open_files() if "/source/" in target]) == len(files)
        for number in range(10):
            shutil.rmtree(tmp_path / "source" / str(number))
        wait_until(lambda: not [target for target in mount.open_files() if "/source/" in target])


@pytest.mark.slow
def test_what_is_known_of_files_is_bounded(tmp_path: Path, mounted: Mounted) -> None:
    """The kernel forgets files that were listed long ago, and keeps those that a process uses."""
    for number in range(25):
        (tmp_path / "source" / str(number)).mkdir(parents=True)
        for name in range(1000):
            (tmp_path / "source" / str(number) / f"{name}").write_bytes(b"%d" % name)
    with mounted(tmp_path / "source") as mount, (mount.path / "0/7").open("rb", buffering=0) as used:
        for number in range(25):
            assert sum(one.stat().st_size for one in os.scandir(mount.path / str(number))) == 2890
        wait_until(lambda: mount.status()["nodes"]["directories"] <= 21_000)
        assert used.read() == b"7"
        assert (mount.path / "0/999").read_bytes() == b"999"
