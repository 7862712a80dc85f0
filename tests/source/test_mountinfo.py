"""Test parsing of the mount table with sample lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs.source import mountinfo
from glassfs.source.mountinfo import Mount, glassfs_devices, mounts, unescape

TABLE = rb"""21 26 0:19 / /sys rw,nosuid shared:7 - sysfs sysfs rw
60 26 0:50 / /mnt/a\040b rw,nosuid,nodev - fuse.glassfs /data/run\0401.kdb ro,user_id=1000,group_id=1000
61 26 0:51 / /mnt/stack rw - tmpfs tmpfs rw
62 61 0:52 / /mnt/stack ro master:1 propagate_from:2 - fuse.glassfs glass\134fs ro,user_id=0
63 26 253:1 /sub /mnt/caf""" + "é\\012\\011 rw - ext4 /dev/sda1 rw\n".encode()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mountinfo"
    path.write_bytes(TABLE)
    monkeypatch.setattr(mountinfo, "MOUNTS", str(path))
    return path


def test_lines_are_parsed(table: Path) -> None:
    assert list(mounts()) == [
        Mount("/sys", "0:19", "sysfs", "sysfs", None, "/", "21"),
        Mount("/mnt/a b", "0:50", "fuse.glassfs", "/data/run 1.kdb", 1000, "/", "60"),
        Mount("/mnt/stack", "0:51", "tmpfs", "tmpfs", None, "/", "61"),
        Mount("/mnt/stack", "0:52", "fuse.glassfs", "glass\\fs", 0, "/", "62"),
        Mount("/mnt/café\n\t", "253:1", "ext4", "/dev/sda1", None, "/sub", "63"),
    ]


@pytest.mark.parametrize("name", ["\r", "\x0b", "\x1c", "\x85", "\u2028", "\x1b[31m", "\udcff"])
def test_names_end_only_at_spaces(table: Path, name: str) -> None:
    """Only spaces, tabs, newlines and backslashes are escaped; Python also ends lines at other characters."""
    table.write_bytes(os.fsencode(f"60 26 0:50 / /mnt/{name}x rw - fuse.glassfs {name} ro,user_id=7\n") + TABLE)
    assert next(mounts()) == Mount(f"/mnt/{name}x", "0:50", "fuse.glassfs", name, 7, "/", "60")
    assert len(list(mounts())) == 6


def test_without_a_table_nothing_is_mounted(table: Path) -> None:
    table.unlink()
    assert list(mounts()) == []
    assert glassfs_devices() == set()


def test_devices_are_those_of_stat(table: Path) -> None:
    assert glassfs_devices() == {os.makedev(0, 50), os.makedev(0, 52)}
    assert [mount.number for mount in mounts()][-1] == os.makedev(253, 1)


def test_escapes_are_three_octal_digits() -> None:
    assert unescape(rb"\040\134040\\x\377") == " \\040\\\\x\udcff"
