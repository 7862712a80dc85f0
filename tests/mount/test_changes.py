"""Containers change while mounted: readers see old bytes, new bytes or an error, never a mix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.changing import (
    HEADER,
    LENGTH,
    REFUSALS,
    assert_seen_soon,
    replace,
    shows,
    write,
    write_in_folder,
)
from tests.mount.conftest import Mounted
from tests.mount.mounts import Mount, is_running, opened
from tests.waiting import wait_until

DATA = "signal/data.npy"


@pytest.mark.parametrize(("kind", "put"), [
    ("raw", replace), pytest.param("compressed", replace, marks=pytest.mark.slow),
    pytest.param("raw", write, marks=pytest.mark.slow),
])
def test_changed_container_shows_within_a_second(
    mounted: Mounted, tmp_path: Path, kind: str, put: Callable[[Path, int, str], None],
) -> None:
    """In a mount of one container the kernel may keep pages and attributes for hours."""
    path = tmp_path / "changing"
    write(path, 1, kind)
    with mounted(path) as mount:
        data = mount.path / DATA

        def change(version: int) -> Callable[[], bool]:
            assert shows(data, version - 1)()
            inode = data.stat().st_ino
            put(path, version, kind)
            changed = path.stat().st_mtime_ns
            return lambda: (
                shows(data, version)() and data.stat().st_mtime_ns == changed
                and (put is write or data.stat().st_ino != inode)
            )

        assert_seen_soon(change)
        assert is_running(mount.pid)
        assert mount.status()["pid"] == mount.pid
        wait_until(lambda: mount.path.stat().st_mtime_ns == path.stat().st_mtime_ns)


def has_noticed(mount: Mount) -> bool:
    """Return whether the daemon knows that a source has changed."""
    return any("has changed" in line for line in mount.log_lines())


def assert_old_or_refused(descriptor: int, version: int) -> None:
    """Check that reads give bytes of ``version`` or an error, never an early end."""
    position = HEADER
    while position < HEADER + LENGTH:
        try:
            data = os.pread(descriptor, 300_000, position)
        except OSError as error:
            assert error.errno in REFUSALS, error
            position += 200_000
        else:
            assert set(data) == {version}
            position += len(data)


@pytest.mark.parametrize("change", [
    "rewritten", *(pytest.param(change, marks=pytest.mark.slow) for change in ("truncated", "emptied")),
])
def test_open_file_keeps_its_bytes_or_is_refused(mounted: Mounted, tmp_path: Path, change: str) -> None:
    path = tmp_path / "changing"
    write(path, 1)
    with mounted(path) as mount, opened(mount.path / DATA, os.O_DIRECT) as early, opened(mount.path / DATA) as late:
        assert set(os.pread(early, 1000, HEADER)) == {1}
        assert set(os.pread(late, 1000, HEADER)) == {1}
        if change == "rewritten":
            write(path, 2)
        else:
            os.truncate(path, path.stat().st_size // 2 if change == "truncated" else 0)
        for is_enough in (lambda: True, lambda: has_noticed(mount), lambda: True):
            wait_until(is_enough)
            assert_old_or_refused(early, 1)
            assert_old_or_refused(late, 1)
        assert is_running(mount.pid)


@pytest.mark.parametrize("in_folder", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_replacement_of_the_same_size_and_time(mounted: Mounted, tmp_path: Path, in_folder: bool) -> None:
    """`cp -p` and rsync make these: only the inode number differs."""
    path = write_in_folder(tmp_path)
    os.utime(path, ns=(0, 10**18))
    with mounted(path.parent if in_folder else path) as mount:
        shown = mount.path / (f"changing/{DATA}" if in_folder else DATA)
        for version in (2, 3):
            assert shows(shown, version - 1)()
            beside = tmp_path / "beside"
            write(beside, version)
            os.utime(beside, ns=(0, 10**18))
            beside.replace(path)
            wait_until(shows(shown, version))
