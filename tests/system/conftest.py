"""Fixtures and helpers of the system tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mounts import COMMAND, is_mounted, require
from tests.waiting import SECONDS


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """A directory to mount at. A mount left there is removed."""
    require()
    place = tmp_path / "mnt"
    place.mkdir()
    yield place
    if is_mounted(place):
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextmanager
def in_foreground(
    *words: str | Path, stderr: Any = subprocess.DEVNULL, variables: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``glassfs mount -f`` with these words; send SIGTERM at the end, upon which it must exit with status 0."""
    process = subprocess.Popen(
        [*COMMAND, "mount", "-f", *map(str, words)], stderr=stderr, env=os.environ | dict(variables or {}),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def pid_of(mountpoint: Path) -> int:
    """Return the process id of the daemon of a mount."""
    number: int = json.loads((mountpoint / ".glassfs/status.json").read_text())["pid"]
    return number
