"""What is mounted where, by a made-up table of mounts; nothing is mounted here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.mount.errors import MountError
from glassfs.mount.system import is_dead, mount_at, raise_read_ahead, real_path, unmount
from glassfs.source import mountinfo

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
