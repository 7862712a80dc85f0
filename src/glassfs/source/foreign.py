"""Detect mounts of glassfs among the entries of a folder without a request to their daemons.

A ``stat`` of such an entry would be a request to a daemon that may be waiting for this process, or be this process.
``statx`` with an empty mask and AT_STATX_DONT_SYNC is answered by the kernel alone (Linux 5.8, fs/fuse/dir.c).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import threading

from glassfs.source import libc, mountinfo

_AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT, _AT_STATX_DONT_SYNC = 0x100, 0x800, 0x4000
_FLAGS = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
_SIZE = 256
_ENCODING = sys.getfilesystemencoding()
_facts = struct.Struct("=I24xH106xII").unpack_from  # of struct statx, linux/stat.h: mask, mode, device
_STATX_TYPE = 0x01  # set in the mask if the mode has the type


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.raw = ctypes.create_string_buffer(_SIZE)
        self.pointer = ctypes.byref(self.raw)


_function = libc.function("statx", ctypes.c_int)  # without types of arguments, whose conversions take long
_buffer = _Buffer()


def _found(folder: int, name: str) -> tuple[int, int, int, int] | None:
    """Return mask, mode and device of ``name`` in the open ``folder``; None if there is none or the system cannot tell.
    """
    if _function is None:
        return None
    buffer = _buffer
    # As ``os.fsencode``, in one call.
    if _function(folder, name.encode(_ENCODING, "surrogateescape"), _FLAGS, 0, buffer.pointer) != 0:
        return None
    facts: tuple[int, int, int, int] = _facts(buffer.raw)
    return facts


def device_of(folder: int, name: str = ".") -> int | None:
    """Return the device of ``name`` in the open ``folder``; None if it does not exist or the system cannot tell."""
    found = _found(folder, name)
    return None if found is None else os.makedev(found[2], found[3])


def is_file(folder: int, name: str, device: int | None) -> bool:
    """Return whether ``name`` is a regular file on the ``device`` of its folder, as far as the system can tell."""
    found = _found(folder, name)
    if found is None:
        return False
    mask, mode, major, minor = found
    return os.makedev(major, minor) == device and bool(mask & _STATX_TYPE) and stat.S_ISREG(mode)


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
