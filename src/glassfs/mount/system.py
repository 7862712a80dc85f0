"""What the system says and does about mounts: the table of mounts, unmounting, the read-ahead of one mount."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from glassfs.mount.errors import MountError

MOUNTS = "/proc/self/mountinfo"
FILE_SYSTEM = "fuse.glassfs"
PATIENCE = 10.0


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo (proc(5)). ``device`` is ``major:minor``."""

    path: str
    device: str
    file_system: str
    source: str
    user: int | None = None


def mounts() -> Iterator[Mount]:
    """All mounts of this namespace, later ones over earlier ones."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        fields, _, rest = line.partition(" - ")
        device, path = fields.split(" ")[2], _unescape(fields.split(" ")[4])
        file_system, source, *options = rest.split(" ")
        user = next((o[8:] for o in ",".join(options).split(",") if o.startswith("user_id=")), None)
        yield Mount(path, device, file_system, _unescape(source), int(user) if user and user.isdigit() else None)


def mount_at(path: str) -> Mount | None:
    """The topmost mount whose mount point is ``path``, which must be absolute and without symbolic links."""
    found = None
    for mount in mounts():
        if mount.path == path:
            found = mount
    return found


def real_path(path: str) -> str:
    """The path without symbolic links; the last component is not looked at, as a dead mount cannot be."""
    absolute = os.path.abspath(path)
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute)).rstrip("/") or "/"


def is_dead(path: str) -> bool:
    """Whether the daemon of the mount at ``path`` is gone. The kernel would answer ``stat`` from its cache."""
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(path: str, lazy: bool = False) -> None:
    """Unmounts what is mounted at ``path``. Raises MountError with the reason."""
    place = real_path(path)
    mount = mount_at(place) or mount_at(os.path.realpath(path))
    if mount is None:
        raise MountError(f"{path}: nothing is mounted there")
    if mount.file_system != FILE_SYSTEM:
        raise MountError(f"{path}: is not a glassfs mount but {mount.file_system}")
    reason = _unmount(mount.path, lazy)
    if reason:
        hint = "; close what uses it ('fuser -m' tells), or 'glassfs umount --lazy'" if "busy" in reason else ""
        raise MountError(f"{path}: {reason}{hint}")
    end = time.monotonic() + PATIENCE
    while mount in mounts() and time.monotonic() < end:
        time.sleep(0.01)


def _unmount(place: str, lazy: bool) -> str | None:
    """The reason why it failed, or None."""
    if os.geteuid() == 0:
        commands = [["umount", *(["-l"] if lazy else []), place]]
    else:
        commands = [[name, "-u", *(["-z"] if lazy else []), place] for name in ("fusermount3", "fusermount")]
    for command in commands:
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode == 0:
                return None
            return done.stderr.strip().rpartition(": ")[2].rstrip(".") or f"{command[0]} failed"
    return f"{commands[0][0]} is not installed"


def raise_read_ahead(device: str, size: int) -> bool:
    """Sets the kernel's read-ahead for a mount, in bytes. libfuse cannot ask for more than 128 KiB; root can."""
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as file:
            file.write(str(size >> 10))
    except OSError:
        return False
    return True


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
