"""What a daemon that runs for long must not do: grow, or hold on to descriptors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

from glassfs.codec import compression
from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount
from tests.waiting import wait_until

FILES = 50
CACHE = 4 << 20


@pytest.fixture
def growth(fuse: str) -> int:
    """Bytes that a daemon's memory may vary by. libfuse 2 starts a thread whenever all others are busy."""
    return 3 << 20 if fuse == "3" else 8 << 20


@pytest.fixture
def store(mounted: Mounted, tmp_path: Path) -> Iterator[Mount]:
    with KastoreWriter(tmp_path / "some.kas") as store:
        for number in range(FILES):
            store.add(f"group/array_{number}", np.arange(100))
    with mounted(tmp_path / "some.kas") as mount:
        yield mount


def open_and_close(paths: list[str], times: int) -> None:
    """``times`` openings by two threads; every tenth reads."""

    def work(start: int) -> None:
        for number in range(start, times, 2):
            descriptor = os.open(paths[number % len(paths)], os.O_RDONLY)
            if number % 10 == 0:
                os.pread(descriptor, 64, 0)
            os.close(descriptor)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


def test_memory_and_descriptors_stay_flat_over_many_openings(store: Mount, growth: int, scale: Scale) -> None:
    openings = scale(10_000, 100_000, 10_000_000)
    paths = [str(store.path / f"group/array_{number}.npy") for number in range(FILES)]
    open_and_close(paths, openings // 5)
    memory, descriptors = store.resident(), store.descriptors()
    open_and_close(paths, openings - openings // 5)
    assert store.resident() - memory < growth
    wait_until(lambda: store.descriptors() <= descriptors)
    # What the kernel knows, and directories on the way; the last release may still be on its way.
    wait_until(lambda: store.status()["nodes"]["references"] <= FILES + 10)
    assert store.status()["errors"] == 0


def test_errors_leave_nothing_behind(store: Mount, growth: int, scale: Scale) -> None:
    """Names that are not there, files opened for writing, attributes that are not there."""

    def work(times: int) -> None:
        for number in range(times):
            for call in (
                lambda number=number: os.stat(store.path / f"group/missing_{number}"),
                lambda: os.getxattr(store.path / "group/array_1.npy", "user.nothing"),
                lambda: os.open(store.path / "group/array_1.npy", os.O_RDWR),
            ):
                with pytest.raises(OSError):
                    call()

    times = scale(300, 1000, 100_000)
    work(times)
    memory, descriptors = store.resident(), store.descriptors()
    work(4 * times)
    assert store.resident() - memory < growth
    wait_until(lambda: store.descriptors() <= descriptors)


def test_walking_a_folder_over_and_over(mounted: Mounted, gallery: Gallery, growth: int, scale: Scale) -> None:
    def walk(root: Path) -> int:
        return sum(len(names) for _, _, names in os.walk(root))

    with mounted(gallery.folder) as mount:
        count = walk(mount.path)
        assert count == len(gallery.files) + 1
        for _ in range(10):
            walk(mount.path)
        memory, descriptors = mount.resident(), mount.descriptors()
        for _ in range(scale(20, 60, 10_000)):
            assert walk(mount.path) == count
        assert mount.resident() - memory < growth
        wait_until(lambda: mount.descriptors() <= descriptors)


def test_cache_keeps_to_its_budget_under_load(mounted: Mounted, tmp_path: Path) -> None:
    """24 MB of blocks, in blocks that fit and blocks that do not, read at random by eight threads; budget 4 MB.

    The decoder of the large one needs more than that: while it is at work there is nothing beside it.
    """
    generator = np.random.default_rng(6)
    blocks = {f"block_{number}": generator.integers(0, 9, (100, 15_000)).astype("u1") for number in range(12)}
    blocks["large"] = generator.integers(0, 9, (100, 60_000)).astype("u1")
    with WShardWriter(tmp_path / "blocks.wshard", codec="zstd") as writer:
        for name, block in blocks.items():
            writer.add_channel(name, block)
    most_used = max(CACHE, compression.stream_cost(compression.ZSTD, blocks["large"].nbytes))
    with mounted(tmp_path / "blocks.wshard", options=[f"cache_size={CACHE}"]) as mount:
        limit = mount.resident() + CACHE + (100 << 20)
        most, is_ending = [0], threading.Event()

        def watch() -> None:
            while not is_ending.wait(0.02):
                most[0] = max(most[0], mount.resident())
                assert mount.status()["cache"]["used"] <= most_used

        def read(seed: int) -> None:
            chosen = np.random.default_rng(seed)
            for _ in range(40):
                name = list(blocks)[chosen.integers(len(blocks))]
                expected = blocks[name].tobytes()
                offset = int(chosen.integers(len(expected)))
                descriptor = os.open(mount.path / f"signal/{name}.npy", os.O_RDONLY | os.O_DIRECT)
                try:
                    assert os.pread(descriptor, 100_000, 128 + offset) == expected[offset : offset + 100_000]
                finally:
                    os.close(descriptor)

        with ThreadPoolExecutor(9) as pool:
            watching = pool.submit(watch)
            try:
                list(pool.map(read, range(8)))
            finally:
                is_ending.set()
            watching.result()
        assert 0 < most[0] < limit
