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


def replace_alike(path: Path, version: int, kind: str) -> None:
    """Replace a container by one of the same size and time, as `cp -p` and rsync do: only the inode differs."""
    beside = path.with_name("beside")
    write(beside, version, kind)
    os.utime(beside, ns=(0, path.stat().st_mtime_ns))
    beside.replace(path)


@pytest.mark.parametrize(("kind", "put", "in_folder"), [
    ("raw", replace, False), ("raw", replace_alike, True), *(
        pytest.param(*words, marks=pytest.mark.slow) for words in (
            ("compressed", replace, False), ("raw", write, False), ("raw", replace_alike, False),
        )
    ),
])
def test_changed_container_shows_within_a_second(
    mounted: Mounted, tmp_path: Path, kind: str, put: Callable[[Path, int, str], None], in_folder: bool,
) -> None:
    """In a mount of one container the kernel may keep pages and attributes for hours."""
    path = write_in_folder(tmp_path, kind)
    with mounted(path.parent if in_folder else path) as mount:
        root = mount.path / "changing" if in_folder else mount.path
        data = root / DATA

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
        wait_until(lambda: root.stat().st_mtime_ns == path.stat().st_mtime_ns)


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
