"""``glassfs status`` and ``glassfs verify``: their output, for people and as JSON, and their exit status."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

from glassfs.source import mountinfo
from glassfs.terminal import printable
from tests.cli.glassfs_command import glassfs as in_process
from tests.mount.mounts import glassfs, is_mounted, is_running, require
from tests.system.conftest import pid_of
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two containers."""
    place = tmp_path / "data"
    (place / "below").mkdir(parents=True)
    with WShardWriter(place / "below/episode.wshard", codec="zstd", episode={"length_T": 400}) as shard:
        shard.add_channel("position", np.zeros((400, 3), np.float32))
        shard.add("reward", np.zeros(400, np.float32))
    with KastoreWriter(place / "values.kas") as store:
        store.add("a", [1, 2, 3])
    return place


def test_each_fault_is_a_line_with_container_and_path(folder: Path) -> None:
    """All zstd frames of a container are damaged; the check of the container finds the same faults as reading."""
    shard = folder / "below/episode.wshard"
    shard.write_bytes(shard.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"))
    (folder / "cut.kas").write_bytes((folder / "values.kas").read_bytes()[:-8])
    done = glassfs("verify", folder)
    assert done.returncode == 1
    *lines, last = done.stdout.splitlines()
    assert last.startswith(f"{folder / 'cut.kas'}: is cut short")
    faults = dict(line.removeprefix(f"{shard}: ").split(": ", 1) for line in lines)
    assert len(faults) == len(lines) >= 3
    assert all(reason.startswith("zstd data cannot be decoded") for reason in faults.values())
    assert done.stderr == f"3 containers, {1 + len(lines)} faults\n"


@pytest.fixture
def mountpoint(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder, mounted."""
    require()
    place = tmp_path / "mnt\n\x1b[31m"
    place.mkdir()
    assert glassfs("mount", folder, place).returncode == 0
    yield place
    glassfs("umount", "--lazy", place)
    assert not is_mounted(place)


def line_of(mountpoint: Path) -> str:
    """Return the line of ``glassfs status`` about one mount. Other mounts may be listed as well."""
    done = glassfs("status")
    assert (done.returncode, done.stderr) == (0, "")
    return next(line for line in done.stdout.splitlines() if f" on {printable(str(mountpoint))}: " in line)


def test_status_lists_mounts(folder: Path, mountpoint: Path) -> None:
    (mountpoint / "values.kas/a.npy").read_bytes()
    found = [json.loads(line) for line in glassfs("status", "--json").stdout.splitlines()]
    mine = next(status for status in found if status["mountpoint"] == str(mountpoint))
    assert mine["sources"] == [str(folder)]
    assert mine["open_containers"] == [str(folder / "values.kas")]
    assert mine["errors"] == 0
    line = line_of(mountpoint)
    assert line.startswith(f"{folder} on ") and f": pid {mine['pid']}, up " in line


@pytest.mark.slow
def test_status_does_not_wait_for_a_mount_that_hangs(folder: Path, mountpoint: Path, tmp_path: Path) -> None:
    """The daemon is stopped, so requests to it wait in the kernel."""
    pid = pid_of(mountpoint)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert line_of(mountpoint).endswith(": does not answer")
        found = [json.loads(line) for line in glassfs("status", "--json").stdout.splitlines()]
        (mine,) = (status for status in found if status["mountpoint"] == str(mountpoint))
        assert mine["unreadable"] == "does not answer"
        done = glassfs("mount", folder, mountpoint)
        assert done.returncode == 1
        assert "does not answer" in done.stderr and "glassfs umount --lazy" in done.stderr
        assert glassfs("umount", "--lazy", mountpoint).returncode == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not is_running(pid))


@pytest.mark.slow
def test_status_of_a_killed_daemon(mountpoint: Path) -> None:
    pid = pid_of(mountpoint)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert line_of(mountpoint).endswith(": its daemon is gone; 'glassfs umount' removes it")


@pytest.mark.parametrize("said", [
    "", "[]", "{}", '{"cache": 1}', '{"unreadable": "a\\nb\\u001b"}', '{"pid": 1, "cache": {}}',
])
def test_forged_status_is_printable(tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can mount a file system of type fuse.glassfs. The table of mounts is made up here."""
    (tmp_path / ".glassfs").mkdir()
    (tmp_path / ".glassfs/status.json").write_text(said)
    (tmp_path / "table").write_text(f"60 26 0:50 / {tmp_path} ro - fuse.glassfs some\\012thing ro,user_id=0\n")
    monkeypatch.setattr(mountinfo, "MOUNTS", str(tmp_path / "table"))
    done = in_process("status")
    assert (done.status, done.errors) == (0, [])
    (line,) = done.lines
    assert line.isprintable()
    assert line.startswith(rf"some\nthing on {tmp_path}: ")
