"""Mounts start and end: signals, killed daemons, unmounting under a reader."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.gallery import npy
from tests.mount.mounts import COMMAND, PATIENCE, glassfs, is_mounted, is_running, mountinfo
from tests.system.conftest import pid_of
from tests.waiting import wait_until

DATA = np.arange(1 << 20, dtype="<u4")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lifecycle") / "some.kas"
    with KastoreWriter(path) as writer:
        writer.add("data", DATA)
    return path


@pytest.mark.slow
def test_daemon_holds_nothing_of_its_parent(mounted: Mounted, store: Path) -> None:
    """Neither terminal, working directory, session, nor an inherited pipe."""
    with mounted(store) as mount:
        assert mount.said == ""
        assert (mount.path / "data.npy").read_bytes() == npy(DATA)
        process = Path(f"/proc/{mount.pid}")
        assert os.readlink(process / "cwd") == "/"
        assert [os.readlink(process / f"fd/{number}") for number in range(3)] == ["/dev/null"] * 3
        assert os.getsid(mount.pid) != os.getsid(0)
        ends: dict[str, set[int]] = {}
        for name in os.listdir(process / "fd"):
            target = os.readlink(process / "fd" / name)
            if target.startswith("pipe:"):
                flags = (process / "fdinfo" / name).read_text().split("flags:")[1].split()[0]
                ends.setdefault(target, set()).add(int(flags, 8) & os.O_ACCMODE)
        # Both ends of the daemon's own pipes are in it, except of the one from which its guard reads.
        for child in (process / f"task/{mount.pid}/children").read_text().split():
            ends.pop(os.readlink(f"/proc/{child}/fd/0"))
        assert all(modes == {os.O_RDONLY, os.O_WRONLY} for modes in ends.values()), ends
        mount.unmount()
        assert os.listdir(mount.path) == []
        wait_until(lambda: not is_running(mount.pid))


def test_relative_paths(fuse: None, store: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / store.name).symlink_to(store)
    try:
        done = glassfs("mount", store.name, "mnt", "--log-file", "log", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "mnt/data.npy").read_bytes() == npy(DATA)
        assert "is mounted at" in (tmp_path / "log").read_text()
    finally:
        done = glassfs("umount", "mnt", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not is_mounted(tmp_path / "mnt")


def test_link_to_a_mount_point_is_as_good_as_its_path(mounted: Mounted, store: Path, tmp_path: Path) -> None:
    """A live mount there is found and unmounted, a dead one is replaced, a signal removes one made at the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/../real")
    with mounted(store, at=tmp_path / "real") as mount:
        assert "is mounted there already" in glassfs("mount", store, tmp_path / "link").stderr
        assert (tmp_path / "link/data.npy").exists()
        os.kill(mount.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(mount.pid))
        done = glassfs("mount", store, tmp_path / "link")
        assert (done.returncode, done.stderr) == (0, "")
        assert is_mounted(tmp_path / "real")
        os.kill(pid_of(tmp_path / "link"), signal.SIGTERM)
        wait_until(lambda: not is_mounted(tmp_path / "real"))
    with mounted(store, at=tmp_path / "real"):
        done = glassfs("umount", tmp_path / "link")
        assert (done.returncode, done.stderr) == (0, "")
        assert not is_mounted(tmp_path / "real")


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("what", ["another mount", "a disk"])
def test_signal_removes_no_other_file_system(mounted: Mounted, store: Path, tmp_path: Path, what: str) -> None:
    """One that was mounted over this mount, or in its place after a lazy unmount while a file of it is open."""
    with mounted(store) as first, (first.path / "data.npy").open("rb"):
        if what == "a disk":
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", first.path], check=True)
        else:
            first.unmount("--lazy")
            (tmp_path / "other").mkdir()
            assert glassfs("mount", tmp_path / "other", first.path).returncode == 0
        there = mountinfo(first.path)[-1]
        os.kill(first.pid, signal.SIGTERM)
        wait_until(lambda: not is_running(first.pid))
        assert mountinfo(first.path)[-1] == there
        subprocess.run(["umount", first.path], check=True)
        subprocess.run(["umount", "-l", first.path], check=False, capture_output=True)


def test_auto_unmount(mounted: Mounted, store: Path) -> None:
    """fusermount unmounts even after kill -9.

    It checks only once whether the mount is dead: on a busy machine that may be too early.
    """

    def is_cleaned_up() -> bool:
        with mounted(store, options=["auto_unmount"]) as mount:
            os.kill(mount.pid, signal.SIGKILL)
            with suppress(AssertionError):
                wait_until(lambda: not is_mounted(mount.path), 10)
            return not is_mounted(mount.path)

    assert any(is_cleaned_up() for _ in range(5))


@pytest.mark.slow
def test_many_mounts_at_once(fuse: None, store: Path, tmp_path: Path, scale: Scale) -> None:
    places = [tmp_path / str(number) for number in range(scale(4, 8))]
    for place in places:
        place.mkdir()
    starting = [
        subprocess.Popen([*COMMAND, "mount", store, place], stderr=subprocess.PIPE, text=True)
        for place in places
    ]
    try:
        for process in starting:
            _, errors = process.communicate(timeout=2 * PATIENCE)
            assert (process.returncode, errors) == (0, "")
        for place in places:
            assert (place / "data.npy").stat().st_size == len(npy(DATA))
    finally:
        done = glassfs("umount", *places)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(map(is_mounted, places))
