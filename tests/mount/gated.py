"""A format of another package whose containers open and read only while no gate is closed, for tests of waiting.

A container is a head, the path of a folder, and padding. While the folder has a file ``open``, opening the container
waits, unless its work is canceled, and while it has ``read``, so does reading its ``data.bin``, except from the
beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.test_plugins import write_distribution
from tests.waiting import wait_until

MODULE = '''
import os
import time

from glassfs import work
from glassfs.content import Blob, Container, Group, Member
from glassfs.content.data import SizedData
from glassfs.formats.registry import Format

MAGIC = b"GATED\\0\\0\\0"


def wait(folder, name, check):
    gate = os.path.join(folder, name)
    if os.path.exists(gate):
        with open(gate + "-waits", "a") as file:
            file.write(".")
    while os.path.exists(gate):
        check()
        time.sleep(0.002)


class Gated(SizedData):
    def __init__(self, folder, fill):
        super().__init__(8 << 20)
        self.folder, self.fill = folder, fill

    def read_into(self, buffer, offset):
        if offset:
            wait(self.folder, "read", lambda: None)
        buffer[:] = self.fill * len(buffer)


def open_gated(opening):
    text = opening.source.read(8, opening.source.size - 8)
    folder = os.fsdecode(text.split(b"\\n")[0])
    wait(folder, "open", work.check)
    data = Gated(folder, text[-1:])
    return Container("gated", "1", Group(b"", lambda: [Member((b"data",), Blob(b"data", data))]), [opening.source])


FORMAT = Format("gated", lambda head: head.startswith(MAGIC), open_gated)
'''


def install(target: Path) -> None:
    """Install the package into a new folder for PYTHONPATH."""
    target.mkdir()
    write_distribution(target, "glassfs_gated", MODULE, "gated = glassfs_gated:FORMAT")


class Gates:
    """The gates of containers, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def write(self, path: Path, fill: str = "a") -> None:
        """Write a container whose data are full of one character."""
        path.write_bytes(b"GATED\0\0\0" + bytes(self._folder) + b"\n" + fill.encode())

    @contextmanager
    def closed(self, name: str) -> Iterator[None]:
        """Close a gate for the duration of the block."""
        try:
            (self._folder / name).touch()
            yield
        finally:
            (self._folder / name).unlink()
            (self._folder / f"{name}-waits").unlink(missing_ok=True)

    def waits(self, name: str) -> int:
        """Return how many requests have come to a closed gate."""
        return (self._folder / f"{name}-waits").stat().st_size

    def wait(self, name: str) -> None:
        """Return when a request waits at a gate."""
        wait_until((self._folder / f"{name}-waits").exists, what=f"a request at the gate {name!r}")
