"""A2: the status of a mount is complete however long it is, and reading it delays no other request."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.security.conftest import Shared
from tests.security.places import make_folder, read_or_refusal, write_store
from tests.security.users import Child

SOURCES = 300
READERS = 17


def long_sources(place: Path) -> list[Path]:
    folder = make_folder(place / ("a folder with a long name " * 7))
    return [write_store(folder / f"{number:03d} {'n' * 180}.kas") for number in range(SOURCES)]


def snapshot(path: Path) -> tuple[int, bytes]:
    """Return the size of the opened file and its bytes. Another look-up would open another snapshot."""
    with open(path, "rb", buffering=0) as file:
        parts = []
        while part := file.read(1000):
            parts.append(part)
        return os.fstat(file.fileno()).st_size, b"".join(parts)


def test_long_status_is_whole_and_grows(shared: Shared, place: Path) -> None:
    """``st_size`` is that of the bytes at each look-up, while more and more containers are open."""
    sources = long_sources(place)
    several, folder = shared(*sources), shared(sources[0].parent)
    status = several.status()
    assert (status["sources"], status["pid"]) == ([str(source) for source in sources], several.pid)
    lengths = set()
    for source in sources[:40]:
        assert (folder.path / source.name / "word.npy").stat().st_size
        for daemon in (several, folder):
            size, data = Child(snapshot, daemon.path / ".glassfs/status.json").result()
            assert size == len(data)
            assert json.loads(data)["pid"] == daemon.pid
        lengths.add(len(json.dumps(json.loads(data))))
    assert len(lengths) > 1 and max(lengths) > 4 << 10


def test_many_readers_of_a_long_status_do_not_stop_the_mount(shared: Shared, place: Path) -> None:
    """More readers than the daemon has threads, and beside them one that reads a file.

    The status is long because of its mount point, whose characters are six each in JSON.
    """
    point = place.joinpath(*["ü" * 100] * 10)
    point.mkdir(parents=True)
    daemon = shared(write_store(place / "a.kas"), write_store(place / "b.kas"), at=point)
    path = daemon.path / ".glassfs/status.json"

    def read_often() -> int:
        return sum(json.loads(path.read_bytes())["pid"] == daemon.pid for _ in range(5))

    readers = [Child(read_often) for _ in range(READERS)]
    beside = Child(read_or_refusal, daemon.path / "a.kas/word.npy")
    try:
        assert b"harmless" in beside.result()
        assert [reader.result() for reader in readers] == [5] * READERS
    finally:
        daemon.end()  # releases readers that hang
