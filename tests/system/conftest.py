"""What the tests of the system side share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounts import is_mounted, missing


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """A directory to mount at, with nothing mounted there afterwards."""
    reason = missing("3") and missing("2")
    if reason:
        pytest.skip(reason)
    place = tmp_path / "mnt"
    place.mkdir()
    yield place
    if is_mounted(place):
        subprocess.run(["umount", "-l", str(place)], check=False)
