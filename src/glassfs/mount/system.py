"""Find mounts in the system's table, unmount them, set their read-ahead, and detach processes from terminals."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import time

from glassfs.mount.errors import MountError
from glassfs.settings import settings
from glassfs.source.mountinfo import FILE_SYSTEM, Mount, mounts

_LIBC = ctypes.CDLL(None, use_errno=True)


def mount_at(path: str) -> Mount | None:
    """Return the topmost mount whose mount point is ``path``, which must be absolute and without symbolic links."""
    found = [mount for mount in mounts() if mount.path == path]
    return found[-1] if found else None


def real_path(path: str) -> str:
    """Return the path without symbolic links. Nothing is asked of what is mounted there: it may be dead, or hang."""
    found = os.path.abspath(path)
    for _ in range(40):  # as many links as the kernel follows
        folder, name = os.path.split(found)
        found = os.path.join(os.path.realpath(folder), name)
        try:
            found = os.path.join(os.path.dirname(found), os.readlink(found))
        except OSError:  # no link: the kernel says so without the mount
            break
    return os.path.normpath(found)


def is_dead(path: str) -> bool:
    """Return whether the daemon of the mount at ``path`` is gone. Not by ``stat``, which the kernel may have cached."""
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(path: str, lazy: bool = False) -> None:
    """Unmount the glassfs mount at ``path``. Raises MountError with the reason."""
    mount = mount_at(real_path(path))
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
    number = detached(path, lazy)
    if number != errno.EPERM:
        return os.strerror(number) if number else None
    program = fusermount()
    if program is None:
        return "fusermount3 is not installed"
    command = [program, "-u", *(["-z"] if lazy else []), "--", path]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stderr.strip().rpartition(": ")[2] or f"{program} failed" if done.returncode else None


def detached(path: str, lazy: bool) -> int:
    """Unmount by the system call; return its errno, 0 for success. Only for root, and in namespaces of their own."""
    flags = 8 | (2 if lazy else 0)  # UMOUNT_NOFOLLOW and MNT_DETACH
    return ctypes.get_errno() if _LIBC.umount2(os.fsencode(path), flags) else 0


def fusermount() -> str | None:
    """Return the path of the program that mounts and unmounts for users, of libfuse 3 or libfuse 2; None for none."""
    return shutil.which("fusermount3") or shutil.which("fusermount")


def silence() -> None:
    """Have the standard descriptors of this process lead to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def raise_read_ahead(device: str, size: int) -> bool:
    """Set the kernel's read-ahead for a mount to ``size`` bytes; return whether that worked. Only root may.

    The kernel does not let a daemon ask for more than 128 KiB.
    """
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as file:
            file.write(str(size >> 10))
    except OSError:
        return False
    return True
