"""Containers whose bytes are all one version number, and readers that detect mixed versions."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

from tests.waiting import wait_until

LENGTH = 3 << 20
HEADER = 128
REFUSALS = (errno.EIO, errno.ESTALE)
SOON = 1.0
"""Seconds after which the manual says a change is visible."""
TRIES = 20
GIVEN_UP_SECONDS = 5.0
"""Within this time versions are given up that no process uses."""


def write(path: Path, version: int, kind: str = "raw") -> None:
    """Write a container with an array of bytes that are all ``version``."""
    data = np.full(LENGTH, version, np.uint8)
    if kind == "raw":
        with KastoreWriter(path) as store:
            store.add("signal/data", data)
    else:
        with WShardWriter(path, codec="zstd") as writer:
            writer.add_channel("data", data.reshape(-1, 64))


def write_in_folder(folder: Path, kind: str = "raw") -> Path:
    """Write version 1 into a folder of its own, as ``changing``."""
    path = folder / "folder/changing"
    path.parent.mkdir()
    write(path, 1, kind)
    return path


def replace(path: Path, version: int, kind: str = "raw") -> None:
    beside = path.with_name("beside")
    write(beside, version, kind)
    beside.replace(path)


def versions(data: bytes) -> set[int]:
    """Return the versions of the bytes after the header."""
    return set(data[HEADER:])


def shows(path: Path, version: int) -> Callable[[], bool]:
    """Return a condition: the file has the bytes of this version only."""

    def check() -> bool:
        try:
            data = path.read_bytes()
        except OSError as error:
            assert error.errno in (*REFUSALS, errno.ENOENT), error
            return False
        return len(data) == HEADER + LENGTH and versions(data) == {version}

    return check


def assert_seen_soon(change: Callable[[int], Callable[[], bool]], least: int = 3) -> None:
    """Call ``change(version)``, which returns the condition that its change is visible, and wait for that.

    At least one of ``TRIES`` changes must be visible within ``SOON``: a busy machine may be late many times.
    """
    seconds: list[float] = []
    while len(seconds) < least or (min(seconds) > SOON and len(seconds) < TRIES):
        is_seen = change(2 + len(seconds))
        begun = time.monotonic()
        wait_until(is_seen)
        seconds.append(time.monotonic() - begun)
    assert min(seconds) <= SOON, seconds


class Readers:
    """Threads that open and read a file repeatedly and count what they see."""

    def __init__(self, path: Path, direct: bool, count: int = 4) -> None:
        self.path = path
        self.flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self._is_ending = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        for thread in self._threads:
            thread.join()

    def wait_for_rounds(self, rounds: int = 1) -> None:
        """Wait until each thread may have read the file ``rounds`` times more."""
        least = self.seen.total() + len(self.wrong) + rounds * len(self._threads)
        wait_until(lambda: self.seen.total() + len(self.wrong) >= least)

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                self._read()
            except OSError as error:
                name = errno.errorcode[error.errno or 0]
                self.seen[name] += 1
                if error.errno not in (*REFUSALS, errno.ENOENT):
                    self.wrong.append(name)

    def _read(self) -> None:
        """Check that one handle shows all bytes of one version."""
        descriptor = os.open(self.path, self.flags)
        try:
            size = os.fstat(descriptor).st_size
            data = b""
            while piece := os.pread(descriptor, 400_000, len(data)):
                data += piece
            found = versions(data)
            if len(found) != 1:
                self.wrong.append(f"a mix of {sorted(found)} in {len(data)} bytes")
            elif len(data) != HEADER + LENGTH or size != len(data):
                self.wrong.append(f"{len(data)} bytes of {size}")
            else:
                self.seen[str(found.pop())] += 1
        finally:
            os.close(descriptor)
