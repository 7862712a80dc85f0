"""What the system says and does about mounts: the table of mounts, unmounting, the read-ahead of one mount."""

from __future__ import annotations

import errno
import os
import time

from glassfs.mount.errors import MountError
from glassfs.source.mountinfo import FILE_SYSTEM, Mount, glassfs_devices, mounts

__all__ = [
    "FILE_SYSTEM", "Mount", "glassfs_devices", "is_dead", "is_glassfs", "mount_at", "mounts", "raise_read_ahead",
    "real_path", "unmount",
]

PATIENCE = 10.0


def mount_at(path: str) -> Mount | None:
    """The topmost mount whose mount point is ``path``, which must be absolute and without symbolic links."""
    found = None
    for mount in mounts():
        if mount.path == path:
            found = mount
    return found


def is_glassfs(path: str) -> bool:
    """Whether the topmost mount at ``path`` is one of glassfs."""
    found = mount_at(path)
    return found is not None and found.file_system == FILE_SYSTEM


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
        hint = "; close what uses it ('fuser -m' tells what), or 'glassfs umount --lazy'" if "busy" in reason else ""
        raise MountError(f"{path}: {reason}{hint}")
    end = time.monotonic() + PATIENCE
    while mount in mounts() and time.monotonic() < end:
        time.sleep(0.01)


def _unmount(place: str, lazy: bool) -> str | None:
    """The reason why it failed, or None."""
    import shutil
    import subprocess

    if os.geteuid() == 0:
        commands = [["umount", *(["-l"] if lazy else []), place]]
    else:
        commands = [[name, "-u", *(["-z"] if lazy else []), place] for name in ("fusermount3", "fusermount")]
    for command in commands:
        if shutil.which(command[0]):
            english = os.environ | {"LC_ALL": "C"}
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=english)
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
