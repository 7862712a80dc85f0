"""The mount table of this process's mount namespace: mountinfo, see proc(5).

Reading it touches no mount, so a hanging one cannot block the caller. Any thread; nothing is cached. Without such a
table, as on systems other than Linux, nothing is mounted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from glassfs.source import descriptors

MOUNTS = "/proc/self/mountinfo"
FILE_SYSTEM = "fuse.glassfs"
LOCAL = frozenset((
    "bcachefs", "btrfs", "cramfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "nilfs2", "overlay",
    "ramfs", "reiserfs", "romfs", "rootfs", "squashfs", "tmpfs", "ubifs", "udf", "xfs", "zfs",
))
"""File systems that wait for no server."""

_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo. ``device`` is ``major:minor``; ``user`` mounted it, if the table says so."""

    path: str
    device: str
    file_system: str
    source: str
    user: int | None = None
    root: str = "/"
    mount_id: str = ""

    @property
    def number(self) -> int:
        """The device number as in ``st_dev``."""
        major, minor = self.device.split(":")
        return os.makedev(int(major), int(minor))


def mounts() -> Iterator[Mount]:
    """Return all mounts, later ones on top of earlier ones. Raises Unavailable if the table cannot be read now."""
    try:
        with descriptors.opened(lambda: open(MOUNTS, "rb")) as file:
            return parsed(file.read())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return iter(())


def parsed(table: bytes) -> Iterator[Mount]:
    # As bytes and at newlines only: names may contain the other characters that end a line for Python.
    for line in table.split(b"\n"):
        # Optional fields of any number stand before the dash.
        fields, _, rest = line.partition(b" - ")
        if rest:
            mount_id, _, device, root, path, *_ = fields.split(b" ")
            file_system, source, *options = rest.split(b" ")
            yield Mount(
                unescape(path), device.decode(), os.fsdecode(file_system), unescape(source), _user(options),
                unescape(root), mount_id.decode(),
            )


def glassfs_devices() -> set[int]:
    """Return the ``st_dev`` of every mount of glassfs in this namespace."""
    return {mount.number for mount in mounts() if mount.file_system == FILE_SYSTEM}


def unescape(field: bytes) -> str:
    """Decode a field: mountinfo writes spaces, tabs, newlines and backslashes in octal."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))


def _user(options: list[bytes]) -> int | None:
    for option in b",".join(options).split(b","):
        name, _, value = option.partition(b"=")
        if name == b"user_id" and value.isdigit():
            return int(value)
    return None
