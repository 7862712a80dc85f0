"""A2: the status of a mount is whole however long it is, and nobody hangs on a mount that does not answer."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.security.conftest import Shared
from tests.security.daemons import run_within
from tests.security.places import make_folder, read_or_refusal, write_file, write_store
from tests.security.users import Child

SOURCES = 300
READERS = 17
PATIENCE = 30.0


def long_sources(place: Path) -> list[Path]:
    folder = make_folder(place / ("a folder with a long name " * 7))
    return [write_store(folder / f"{number:03d} {'n' * 180}.kas") for number in range(SOURCES)]


def snapshot(path: Path) -> tuple[int, bytes]:
    """The size of the opened file, and all its bytes. One more look-up would be of another snapshot."""
    with open(path, "rb", buffering=0) as file:
        parts = []
        while part := file.read(1000):
            parts.append(part)
        return os.fstat(file.fileno()).st_size, b"".join(parts)


def test_a_long_status_is_whole(shared: Shared, place: Path) -> None:
    sources = long_sources(place)
    daemon = shared(*sources)
    path = daemon.path / ".glassfs/status.json"
    for name in os.listdir(daemon.path):
        if name != ".glassfs":
            assert (daemon.path / name / "word.npy").stat().st_size
    size, data = Child(snapshot, path).result(PATIENCE)
    assert size == len(data) > 4 << 10
    status: dict[str, Any] = json.loads(data)
    assert status["sources"] == [str(source) for source in sources]
    assert status["pid"] == daemon.pid


@pytest.mark.slow
def test_the_size_of_a_status_is_that_of_its_bytes(shared: Shared, place: Path) -> None:
    """At each fresh look-up, also while more and more is open, so that it grows."""
    sources = long_sources(place)
    daemon = shared(place / sources[0].parent.name)
    path = daemon.path / ".glassfs/status.json"
    lengths = set()
    for source in sources[:60]:
        assert (daemon.path / source.name / "word.npy").stat().st_size
        size, data = Child(snapshot, path).result(PATIENCE)
        assert size == len(data)
        assert json.loads(data)["pid"] == daemon.pid
        lengths.add(len(json.dumps(json.loads(data))))
    assert len(lengths) > 1 and max(lengths) > 4 << 10


def test_readers_of_a_long_status_do_not_stop_the_mount(shared: Shared, place: Path) -> None:
    """More of them than the daemon has threads, over and over, and beside them somebody who reads a file.

    It is long for its mount point's sake, whose letters are six each in JSON: there is no list that could be cut.
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
        assert b"harmless" in beside.result(PATIENCE)
        assert [reader.result(PATIENCE) for reader in readers] == [5] * READERS
    finally:
        daemon.end()  # lets go of readers that hang


@pytest.mark.slow
def test_status_of_a_mount_that_does_not_answer(shared: Shared, place: Path) -> None:
    """The others are told of, and the command ends. Mounts of other people's may take their time as well."""
    one, other = (shared(make_folder(place / name)) for name in ("one", "other"))
    write_file(place / "one/file", "text")
    os.kill(one.pid, signal.SIGSTOP)
    resume = threading.Timer(4 * PATIENCE, os.kill, (one.pid, signal.SIGCONT))
    resume.start()
    try:
        said = run_within(PATIENCE, sys.executable, "-m", "glassfs", "status")
        as_json = run_within(PATIENCE, sys.executable, "-m", "glassfs", "status", "--json")
    finally:
        os.kill(one.pid, signal.SIGCONT)
        resume.cancel()
    assert said is not None and as_json is not None, "the command hangs"
    lines = {str(daemon.path): [line for line in said.splitlines() if str(daemon.path) in line]
             for daemon in (one, other)}
    assert ["does not answer" in line for line in lines[str(one.path)]] == [True], said
    assert [f"pid {other.pid}" in line for line in lines[str(other.path)]] == [True], said
    assert [json.loads(line)["mountpoint"] for line in as_json.splitlines()].count(str(one.path)) == 1
    again = run_within(PATIENCE, sys.executable, "-m", "glassfs", "status")
    assert again is not None and f"pid {one.pid}" in again
