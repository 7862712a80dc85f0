"""Find mounts in the system's table, unmount them, and set their read-ahead."""

from __future__ import annotations

import errno
import os
import time

from glassfs.mount.errors import MountError
from glassfs.settings import settings
from glassfs.source.mountinfo import FILE_SYSTEM, Mount, mounts


def mount_at(path: str) -> Mount | None:
    """Return the topmost mount whose mount point is ``path``, which must be absolute and without symbolic links."""
    found = None
    for mount in mounts():
        if mount.path == path:
            found = mount
    return found


def is_glassfs(path: str) -> bool:
    """Return whether the topmost mount at ``path`` is one of glassfs."""
    found = mount_at(path)
    return found is not None and found.file_system == FILE_SYSTEM


def real_path(path: str) -> str:
    """Return the path without symbolic links, except in the last component: a dead mount cannot be resolved."""
    absolute = os.path.abspath(path)
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute)).rstrip("/") or "/"


def is_dead(path: str) -> bool:
    """Return whether the daemon of the mount at ``path`` is gone. Not by ``stat``, which the kernel may have cached."""
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(path: str, lazy: bool = False) -> None:
    """Unmount the glassfs mount at ``path``. Raises MountError with the reason."""
    real = real_path(path)
    mount = mount_at(real) or mount_at(os.path.realpath(path))
    if mount is None:
        raise MountError(f"{path}: nothing is mounted there")
    if mount.file_system != FILE_SYSTEM:
        raise MountError(f"{path}: is not a glassfs mount but {mount.file_system}")
    reason = _unmount(mount.path, lazy)
    if reason:
        hint = "; close what uses it ('fuser -m' lists the processes), or use 'glassfs umount --lazy'"
        raise MountError(f"{path}: {reason}{hint if 'busy' in reason else ''}")
    end = time.monotonic() + settings.unmounting
    while mount in mounts() and time.monotonic() < end:
        time.sleep(0.01)


def _unmount(path: str, lazy: bool) -> str | None:
    """Unmount; return the reason if that failed, else None."""
    import shutil
    import subprocess

    if os.geteuid() == 0:
        commands = [["umount", *(["-l"] if lazy else []), path]]
    else:
        commands = [[name, "-u", *(["-z"] if lazy else []), path] for name in ("fusermount3", "fusermount")]
    for command in commands:
        if shutil.which(command[0]):
            english = os.environ | {"LC_ALL": "C"}
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=english)
            if done.returncode == 0:
                return None
            return done.stderr.strip().rpartition(": ")[2].rstrip(".") or f"{command[0]} failed"
    return f"{commands[0][0]} is not installed"


def raise_read_ahead(device: str, size: int) -> bool:
    """Set the kernel's read-ahead for a mount to ``size`` bytes; return whether that worked. Only root may.

    libfuse itself cannot ask for more than 128 KiB.
    """
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as file:
            file.write(str(size >> 10))
    except OSError:
        return False
    return True
