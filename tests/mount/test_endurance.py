"""What a daemon that runs for long knows of files is bounded, and released with them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.waiting import wait_until


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
