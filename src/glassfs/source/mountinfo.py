"""The table of mounts of this namespace, as the kernel tells it (proc(5), mountinfo)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from glassfs.source import descriptors

PLACE = "/proc/self/mountinfo"
FILE_SYSTEM = "fuse.glassfs"


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo. ``device`` is ``major:minor``, ``user`` the one who made a FUSE mount."""

    path: str
    device: str
    file_system: str
    source: str
    user: int | None = None

    @property
    def is_glassfs(self) -> bool:
        return self.file_system == FILE_SYSTEM

    @property
    def device_number(self) -> int:
        """As ``st_dev`` has it."""
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor))


def mounts() -> Iterator[Mount]:
    """All mounts of this namespace, later ones over earlier ones. None where there is no such table.

    Raises Unavailable where the table cannot be opened now.
    """
    try:
        with descriptors.opened(lambda: open(PLACE, encoding="utf-8", errors="surrogateescape")) as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for line in lines:
        fields, _, rest = line.partition(" - ")
        device, path = fields.split(" ")[2], _unescape(fields.split(" ")[4])
        file_system, source, *options = rest.split(" ")
        user = next((o[8:] for o in ",".join(options).split(",") if o.startswith("user_id=")), None)
        yield Mount(path, device, file_system, _unescape(source), int(user) if user and user.isdigit() else None)


def _unescape(field: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes in octal."""
    if "\\" not in field:
        return field
    raw = bytearray()
    data = os.fsencode(field)
    position = 0
    while position < len(data):
        if data[position] == 0x5C and data[position + 1 : position + 4].isdigit():
            raw.append(int(data[position + 1 : position + 4], 8))
            position += 4
        else:
            raw.append(data[position])
            position += 1
    return os.fsdecode(bytes(raw))
