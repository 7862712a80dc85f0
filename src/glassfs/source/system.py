"""System calls that Python does not offer, by way of the C library: for opening files that others may replace. Linux.

- ``opened_beneath``: openat2(2) opens a path below a folder in one call, following no link and crossing no mount.
- ``device_of`` and others detect mounts of glassfs among the entries of a folder without a request to their daemons. A
  ``stat`` of such an entry would be a request to a daemon that may be waiting for this process, or be this process.

Elsewhere, and where a call is missing, callers learn that nothing is known. Any thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from glassfs.source import mountinfo

ACL = b"system.posix_acl_access"
_HAS_NONE = (errno.ENODATA, errno.ENOTSUP)
_ENCODING = sys.getfilesystemencoding()
_UNUSUAL = frozenset(("", ".", ".."))


def function(name: str, result: Any, use_errno: bool = False) -> Callable[..., int] | None:
    """Return a function of the C library on Linux; None on other systems and if there is no such function."""
    if sys.platform != "linux":
        return None
    try:
        found: Any = getattr(ctypes.CDLL(None, use_errno=use_errno), name)
    except (AttributeError, OSError):
        return None
    found.restype = result
    return found  # type: ignore[no-any-return]


# Without types of arguments, whose conversions take as long as the call: integers are passed as int, which is extended.
_syscall = function("syscall", ctypes.c_long, use_errno=True)
_statx = function("statx", ctypes.c_int)


_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08
"""NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS and BENEATH of linux/openat2.h."""


class How(ctypes.Structure):
    """``struct open_how`` with flags of open(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def __init__(self, flags: int) -> None:
        super().__init__(flags | os.O_CLOEXEC, 0, _RESOLVE)
        self.pointer = ctypes.byref(self)


_HOW_SIZE = ctypes.sizeof(How)


def opened_beneath(folder: int, path: tuple[str, ...], how: How) -> int | None:
    """Return a descriptor of ``path`` below the open ``folder``, or None if the caller has to walk.

    Raises FileNotFoundError, and ValueError for an invalid file name.
    """
    if _syscall is None or not _UNUSUAL.isdisjoint(path):
        return None
    joined = "/".join(path)
    if "\0" in joined or joined.count("/") != len(path) - 1:
        return None
    raw = joined.encode(_ENCODING, "surrogateescape")  # as ``os.fsencode``
    # 437 is openat2 on all architectures that have it, since Linux 5.6.
    fd = _syscall(437, folder, raw, how.pointer, _HOW_SIZE)
    if fd >= 0:
        return fd
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return None


def has_acl(place: int | str) -> bool | None:
    """Return whether the file at a path or with a descriptor has an ACL; None if that cannot be determined."""
    try:
        return bool(os.getxattr(place, ACL))
    except OSError as error:
        return False if error.errno in _HAS_NONE else None


class _Buffer(threading.local):
    """Memory for ``struct statx`` (linux/stat.h): major and minor number of the device are what is unpacked."""

    unpack = struct.Struct("=136xII").unpack_from

    def __init__(self) -> None:
        self.raw = ctypes.create_string_buffer(256)
        self.pointer = ctypes.byref(self.raw)


# AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT and AT_STATX_DONT_SYNC of linux/fcntl.h. With the last one and an empty mask the
# kernel alone answers (fs/fuse/dir.c, Linux 5.8).
_flags = 0x100 | 0x800 | 0x4000
_buffer = _Buffer()


def device_of(folder: int, name: str = ".") -> int | None:
    """Return the device of ``name`` in the open ``folder``; None if it does not exist or the system cannot tell."""
    # Each thread has a buffer of its own: ctypes releases the GIL during the call.
    buffer = _buffer
    if _statx is None or _statx(folder, name.encode(_ENCODING, "surrogateescape"), _flags, 0, buffer.pointer) != 0:
        return None
    return os.makedev(*buffer.unpack(buffer.raw))


def is_glassfs(folder: int, name: str, device: int | None) -> bool:
    """Return whether ``name`` in a folder on ``device`` is a mount of glassfs.

    The system reuses device numbers, so the mount table is read for every entry on another device than its folder;
    there are few.
    """
    found = device_of(folder, name)
    return found is not None and found != device and is_on_glassfs(found)


def is_on_glassfs(device: int | None) -> bool:
    """Return whether a device is a mount of glassfs. Raises Unavailable if the mount table cannot be opened now."""
    return device in mountinfo.glassfs_devices()
