"""A2: the status of a mount is complete however long it is, and reading it delays no other request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.security.conftest import Shared
from tests.security.places import read_or_refusal, write_store
from tests.security.users import Child

READERS = 17


@pytest.mark.slow
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
