"""The system's table of mounts, mountinfo (proc(5)), of this process's mount namespace.

Reading it touches no mount, so that one which hangs cannot hang whoever asks. Any thread may; nothing is kept. Where
there is no such table, as on other systems than Linux, nothing is mounted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from glassfs.source import descriptors

MOUNTS = "/proc/self/mountinfo"
FILE_SYSTEM = "fuse.glassfs"

_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo. ``device`` is ``major:minor``, ``user`` who mounted it as far as the table says so."""

    path: str
    device: str
    file_system: str
    source: str
    user: int | None = None

    @property
    def number(self) -> int:
        """The device as ``st_dev`` has it."""
        major, minor = self.device.split(":")
        return os.makedev(int(major), int(minor))


def mounts() -> Iterator[Mount]:
    """All mounts of this namespace, later ones over earlier ones. Raises Unavailable where that cannot be read now."""
    try:
        with descriptors.opened(lambda: open(MOUNTS, "rb")) as file:
            lines = file.read().split(b"\n")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    # As bytes and at newlines only: the other characters that end a line for Python may stand in a name.
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        if not rest:
            continue
        words, (file_system, source, *options) = fields.split(b" "), rest.split(b" ")
        yield Mount(unescape(words[4]), words[2].decode(), os.fsdecode(file_system), unescape(source), _user(options))


def glassfs_devices() -> set[int]:
    """The ``st_dev`` of everything that is mounted with glassfs in this namespace."""
    return {mount.number for mount in mounts() if mount.file_system == FILE_SYSTEM}


def unescape(field: bytes) -> str:
    """A field as a path: mountinfo writes blanks, tabs, newlines and backslashes in octal."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))


def _user(options: list[bytes]) -> int | None:
    for option in b",".join(options).split(b","):
        name, _, value = option.partition(b"=")
        if name == b"user_id" and value.isdigit():
            return int(value)
    return None
