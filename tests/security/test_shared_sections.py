"""A5: metadata that many index entries share, and views that show them for each entry, take little memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.conftest import Scale
from tests.security import bombs
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.places import make_folder
from tests.security.users import Child
from tests.waiting import wait_until

MIB = 1 << 20
PEAK, SETTLED = 100 * MIB, 60 * MIB
LS_SECONDS, READ_SECONDS, SETTLE_SECONDS = 60.0, 300.0, 30.0
LINKS = ["a.kdb/by-task", "a.kdb/by-success"]
TABLES = ["a.kdb/episodes.parquet", "a.kdb/episodes.jsonl", "a.kdb/episodes.csv", "a.kdb/data.js"]
JOINED = ["index.html", "episodes.jsonl", "episodes.csv", "by-task", "episodes.parquet"]
FAST = [LINKS[0]]
MOST_READ = 128 * MIB


def visited(path: Path) -> int:
    """List a directory and those in it, or read the beginning of a file; return the number of names or bytes.

    A table that is too large for so small a container is refused, which takes little memory as well.
    """
    try:
        is_directory = path.is_dir()
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return MOST_READ
    if is_directory:
        return sum(1 + len(os.listdir(path / name)) for name in os.listdir(path))
    size = 0
    with path.open("rb", buffering=0) as file:
        while size < MOST_READ and (data := file.read(MIB)):
            size += len(data)
    return size


def check_memory(daemon: Daemon, cache: int, start: int) -> None:
    """``cache`` is the cache size in MiB, ``start`` the memory in bytes before the readers."""
    peak = daemon.resident("VmHWM")
    assert peak <= cache * MIB + PEAK, f"{peak // MIB} MiB"
    wait_until(lambda: daemon.resident("VmRSS") <= start + SETTLED, SETTLE_SECONDS, "memory as before the readers")


@pytest.mark.parametrize("path", [
    path if path in FAST else pytest.param(path, marks=pytest.mark.slow) for path in (*LINKS, *TABLES, *JOINED)
])
def test_shared_metadata_take_little_memory(shared: Shared, place: Path, scale: Scale, path: str) -> None:
    count = scale(10_000, 100_000) if path in LINKS else scale(300, 3_000)
    cache = scale(32, 64)
    source = make_folder(place / "source")
    bombs.write_episodes(source / "a.kdb", count, text=b"a" if path in JOINED else b"\x01")
    daemon = shared(source, options=[f"cache_size={cache}M"])
    daemon.status()
    start = daemon.resident("VmRSS")
    child = Child(visited, daemon.path / ".glassfs/views" / path)
    assert child.result(LS_SECONDS if path in LINKS else READ_SECONDS) >= min(count, 100)
    check_memory(daemon, cache, start)


@pytest.mark.slow
def test_overlapping_metadata_take_little_memory(shared: Shared, place: Path, scale: Scale) -> None:
    source = make_folder(place / "source")
    count, cache = scale(2_000, 100_000), scale(32, 64)
    bombs.write_episodes(source / "a.kdb", count, step=1)
    daemon = shared(source, options=[f"cache_size={cache}M"])
    daemon.status()
    start = daemon.resident("VmRSS")
    for path in LINKS:
        assert Child(visited, daemon.path / ".glassfs/views" / path).result(READ_SECONDS) > count
    check_memory(daemon, cache, start)


@pytest.mark.slow
def test_many_readers_of_shared_metadata_take_little_memory(shared: Shared, place: Path) -> None:
    cache = 64
    source = make_folder(place / "source")
    for name in "abcdefgh":
        bombs.write_episodes(source / f"{name}.kdb", 3000, text=b"a" if name < "e" else b"\x01")
    daemon = shared(source, options=[f"cache_size={cache}M"])
    daemon.status()
    start = daemon.resident("VmRSS")
    files = [f"{name}{path[1:]}" for path in (*TABLES, "a.kdb/by-task") for name in "abcdefgh"]
    children = [Child(visited, daemon.path / ".glassfs/views" / files[number % len(files)]) for number in range(25)]
    assert min(child.result(READ_SECONDS) for child in children) > 100
    check_memory(daemon, cache, start)
