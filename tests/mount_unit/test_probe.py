"""Questions about mounts that may never be answered, and what is mounted where; nothing is mounted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassfs.mount.errors import MountError
from glassfs.mount.system import FOREIGN, ask, is_dead, mount_at, raise_read_ahead, real_path, statuses, unmount
from glassfs.settings import settings
from glassfs.source import mountinfo


def _hang() -> bytes:
    time.sleep(600)
    return b"never"


def _fail() -> bytes:
    raise OSError("no")


def test_answers_come_in_the_order_of_the_questions(capfd: pytest.CaptureFixture[str]) -> None:
    """Also long and empty ones, and those that fail."""
    assert ask([lambda: b"x" * (5 << 20), lambda: b"", _fail, lambda: b"y"], 60) == [b"x" * (5 << 20), b"", None, b"y"]
    assert ask([]) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_hanging_question_costs_only_its_timeout() -> None:
    before = set(os.listdir("/proc/self/fd"))
    answers = ask([_hang, lambda: b"here", _hang], 3)
    assert (answers[0], answers[2]) == (None, None)
    assert answers[1] == b"here"
    assert set(os.listdir("/proc/self/fd")) <= before  # what other tests left may be closed meanwhile


def test_hanging_child_does_not_hold_the_output_open() -> None:
    """The child stands for one that hangs in the kernel and cannot be killed."""
    script = (
        "import os, time; from glassfs.mount import system\n"
        "def spare(pid, number): print(pid, flush=True)\n"
        "system.os.kill = spare\n"
        "print(system.ask([lambda: time.sleep(600)], 0.2))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    pid, answer = done.stdout.splitlines()
    os.kill(int(pid), 9)
    assert answer == "[None]"


@pytest.mark.parametrize("said", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000, b"null"])
def test_malformed_status_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(settings, "probe", 120.0)
    (tmp_path / ".glassfs").mkdir()
    (tmp_path / ".glassfs/status.json").write_bytes(said)
    assert statuses([str(tmp_path)]) == [{"unreadable": FOREIGN}]


def test_statuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "probe", 120.0)
    (tmp_path / ".glassfs").mkdir()
    path = tmp_path / ".glassfs/status.json"
    path.write_text(json.dumps({"pid": 1}) + " " * 4096)
    assert statuses([str(tmp_path), str(tmp_path / "none")]) == [
        {"pid": 1}, {"unreadable": "No such file or directory"},
    ]
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(settings, "probe", 0.2)
    assert statuses([str(tmp_path)]) == [{"unreadable": "does not answer"}]


# What is mounted where


TABLE = r"""21 26 0:19 / /sys rw,nosuid shared:7 - sysfs sysfs rw
61 26 0:51 / /mnt/stack rw - tmpfs tmpfs rw
62 61 0:52 / /mnt/stack ro master:1 propagate_from:2 - fuse.glassfs glass\134fs ro,user_id=0
"""


def test_only_topmost_mounts_of_glassfs_are_unmounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    monkeypatch.setattr(mountinfo, "MOUNTS", str(path))
    found = mount_at("/mnt/stack")
    assert found is not None and found.file_system == "fuse.glassfs"
    assert mount_at("/mnt") is None
    with pytest.raises(MountError, match="/sys: is not a glassfs mount but sysfs"):
        unmount("/sys")
    with pytest.raises(MountError, match="nothing is mounted there"):
        unmount("/mnt/none")


def test_links_that_lead_to_a_path_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "end").symlink_to("missing")
    (tmp_path / "real" / "up").symlink_to("..")
    for path in ("link/end", "link/end/", "link/missing", "link/up/link/missing"):
        assert real_path(f"{tmp_path}/{path}") == str(tmp_path / "real" / "missing")
    assert real_path(f"{tmp_path}/link/up") == str(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert real_path(f"{tmp_path}/loop") == f"{tmp_path}/loop"
    assert real_path("/") == "/"
    assert real_path(os.path.relpath(tmp_path / "real")) == str(tmp_path / "real")


def test_what_is_not_mounted_is_neither_dead_nor_reads_ahead(tmp_path: Path) -> None:
    assert not is_dead(str(tmp_path))
    assert not is_dead(str(tmp_path / "missing"))
    assert raise_read_ahead("99999:1", 1 << 20) is False
