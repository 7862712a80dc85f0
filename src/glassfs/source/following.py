"""Follow a link of the source that its owner made, for programs that this owner runs. Any thread.

The user who makes a link chooses what is read in its place. So a link is followed only if no user but the caller and
root could make or change it: link, folders on the way, further links and the file belong to one of them, and no other
user may write a folder in which a name is looked up. Each component is opened from the descriptor of the one before,
without following a link, and what counts are owner and mode of that descriptor, so that swapping names gains nothing.
"""

from __future__ import annotations

import ctypes
import os
import posixpath
import stat
import sys

from glassfs.errors import Changed, NotAllowed
from glassfs.persistent.private import is_writable_by_others, walked
from glassfs.source import descriptors, system
from glassfs.source.mountinfo import mounts

_fstatfs = system.function("fstatfs", ctypes.c_int)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def leads_out(root: str, folder: tuple[str, ...], target: str) -> bool:
    """Return whether a link in a folder below ``root`` names a target that is not below it."""
    path = posixpath.normpath(posixpath.join(root, *folder, target))
    return path != root and not path.startswith(posixpath.join(root, ""))


def opened(folder: int, at: str, name: str) -> int:
    """Return a descriptor of the regular file to which the link ``name`` in an open folder leads.

    ``at`` is the path of that folder, for messages. Raises NotAllowed with the reason if it is not followed, Changed if
    it was replaced meanwhile, OSError and Unavailable.
    """
    reached = descriptors.opened(lambda: walked(folder, at, name, _demand_safe, _demand_own))
    try:
        status = os.fstat(reached.found)
        if stat.S_ISDIR(status.st_mode):
            raise NotAllowed(f"{reached.at} is a folder, which has to be named itself")
        if not stat.S_ISREG(status.st_mode):
            raise NotAllowed(f"{reached.at} is not a regular file")
        fd = descriptors.opened(lambda: os.open(reached.name, _READ, dir_fd=reached.folder))
        if not os.path.samestat(os.fstat(fd), status):
            os.close(fd)
            raise Changed("has been replaced by another file")
        return fd
    finally:
        reached.close()


def _is_fuse(folder: int) -> bool:
    """Return whether a program serves the file system of an open folder, as far as the system tells."""
    found = ctypes.create_string_buffer(256)  # longer than struct statfs, which begins with a long, the type
    word = ctypes.sizeof(ctypes.c_long)
    if _fstatfs is None or _fstatfs(folder, found) != 0:
        return False
    return int.from_bytes(found.raw[:word], sys.byteorder) == 0x65735546  # FUSE_SUPER_MAGIC, linux/magic.h


def _demand_own(folder: int, at: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise NotAllowed(f"{at} belongs to another user")


def _demand_safe(folder: int, at: str, name: str) -> None:
    """Raise NotAllowed if another user may replace names of the caller or of root in an open folder.

    A file system that another user has mounted (FUSE) may report any owner.
    """
    if system.is_glassfs(folder, name, system.device_of(folder)):
        raise NotAllowed(f"{posixpath.join(at, name)} is a mount of glassfs")
    status = os.fstat(folder)
    trusted = (0, os.geteuid())
    _demand_own(folder, at, status)
    if _is_fuse(folder) and not any(one.number == status.st_dev and one.user in trusted for one in mounts()):
        raise NotAllowed(f"{at} is on a file system that another user has mounted")
    if status.st_mode & stat.S_ISVTX:  # only their owners replace names there, and owners are checked
        return
    has_acl = status.st_mode & 0o022 and system.has_acl(f"/proc/self/fd/{folder}") is not False
    if has_acl or is_writable_by_others(status):
        raise NotAllowed(f"others may write in {at}")
