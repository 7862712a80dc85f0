"""Mounts start and end, whenever and however: signals, killed daemons, unmounting under a reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.gallery import npy
from tests.mount.mounts import COMMAND, PATIENCE, glassfs, is_mounted, is_running, mountinfo, processes_with
from tests.system.conftest import pid_of
from tests.waiting import wait_until

DATA = np.arange(1 << 20, dtype="<f4")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lifecycle") / "some.wshard"
    with WShardWriter(path, codec="zstd") as writer:
        writer.add("reward", DATA)
    return path


@pytest.mark.slow
def test_daemon_holds_nothing_of_its_parent(mounted: Mounted, store: Path) -> None:
    """Neither terminal, working directory, session, nor an inherited pipe."""
    with mounted(store) as mount:
        assert mount.said == ""
        assert (mount.path / "reward.npy").read_bytes() == npy(DATA)
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


def test_link_to_a_mount_point_is_as_good_as_its_path(mounted: Mounted, store: Path, tmp_path: Path) -> None:
    """A live mount there is found and unmounted, a dead one is replaced, a signal removes one made at the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/../real")
    with mounted(store, at=tmp_path / "real") as mount:
        assert "is mounted there already" in glassfs("mount", store, tmp_path / "link").stderr
        assert (tmp_path / "link/reward.npy").exists()
        os.kill(mount.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(mount.pid))
        done = glassfs("mount", store, tmp_path / "link", "--log-file", "log", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "is mounted at" in (tmp_path / "log").read_text()
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
    with mounted(store) as first, (first.path / "reward.npy").open("rb"):
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
    starting = [
        subprocess.Popen([*COMMAND, "mount", store, place], stderr=subprocess.PIPE, text=True) for place in places
    ]
    try:
        for process in starting:
            _, errors = process.communicate(timeout=2 * PATIENCE)
            assert (process.returncode, errors) == (0, "")
        for place in places:
            assert (place / "reward.npy").stat().st_size == len(npy(DATA))
    finally:
        done = glassfs("umount", *places)
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(map(is_mounted, places))


WAITS_FOR_ITSELF = """
import os, sys, threading, time
from glassfs.mount.operations import Operations
from glassfs.mount.options import MountOptions
from glassfs.mount.session import MountSession

asked = threading.Event()

def look_up(self, parent, name):
    asked.set()
    time.sleep(3600)

def ready():
    threading.Thread(target=os.stat, args=(sys.argv[2] + "/reward.npy",), daemon=True).start()
    asked.wait()
    print("waits", flush=True)

Operations.look_up = look_up
MountSession([sys.argv[1]], sys.argv[2], MountOptions.parse(())).run(ready)
"""


def test_thread_that_waits_for_its_own_mount(fuse: None, tmp_path: Path, store: Path) -> None:
    """The kernel cannot end such a process: it waits for an answer of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_ITSELF, str(store), str(tmp_path)], stdout=subprocess.PIPE, text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert not is_mounted(tmp_path)


@pytest.mark.slow
def test_end_at_once(fuse: None, store: Path, tmp_path: Path, scale: Scale) -> None:
    """A signal may arrive before the first request."""
    for number in range(scale(4, 12, 400)):
        process = subprocess.Popen(
            [*COMMAND, "mount", "-f", str(store), str(tmp_path)], stderr=subprocess.PIPE, text=True,
        )
        wait_until(lambda: is_mounted(tmp_path))
        process.send_signal(signal.SIGTERM if number % 2 else signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert not is_mounted(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "daemon"])
def test_mounts_leave_nothing(
    mounted: Mounted, store: Path, tmp_path: Path, scale: Scale, foreground: bool,
) -> None:
    """They end by unmounting and by SIGTERM; all data passes through the spool."""
    point, spool = tmp_path / "mnt", tmp_path / "spool"
    point.mkdir()
    spool.mkdir()
    options = ["cache_size=0", f"spool={spool}"]
    before = processes_with(tmp_path), sorted(os.listdir(tmp_path))
    for number in range(scale(3, 6, 1000)):
        with mounted(store, at=point, options=options, foreground=foreground) as mount:
            assert (point / "reward.npy").read_bytes() == npy(DATA)
            if number % 2:
                os.kill(mount.pid, signal.SIGTERM)
                wait_until(lambda: not is_mounted(point))
        assert not is_mounted(point)
        assert not is_running(mount.pid)
        assert os.listdir(spool) == os.listdir(point) == []
    assert (processes_with(tmp_path), sorted(os.listdir(tmp_path))) == before
