"""Which entries of a folder are mounts of glassfs, found out without asking the daemons behind them.

A ``stat`` of such an entry would be a request to a daemon that may be waiting for the one who asks, if not this very
one. ``statx`` with an empty mask and AT_STATX_DONT_SYNC is answered by the kernel alone (Linux 5.8, fs/fuse/dir.c).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

from glassfs.source import mountinfo

_AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT, _AT_STATX_DONT_SYNC = 0x100, 0x800, 0x4000
_FLAGS = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
_SIZE = 256
_DEVICE_MAJOR, _DEVICE_MINOR = 0x88, 0x8C  # of struct statx, linux/stat.h


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.raw = ctypes.create_string_buffer(_SIZE)
        self.words = memoryview(self.raw).cast("B").cast("I")


def _statx() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    return function


_function = _statx() if sys.platform == "linux" else None
_buffer = _Buffer()


def device_of(folder: int, name: str = ".") -> int | None:
    """The device that ``name`` in the folder with that descriptor is on; None where it is not there or nobody tells."""
    if _function is None:
        return None
    buffer = _buffer
    if _function(folder, os.fsencode(name), _FLAGS, 0, buffer.raw) != 0:
        return None
    words = buffer.words
    return os.makedev(words[_DEVICE_MAJOR // 4], words[_DEVICE_MINOR // 4])


def is_glassfs(folder: int, name: str, device: int | None) -> bool:
    """Whether ``name`` in a folder that is on ``device`` is a mount of glassfs.

    As the numbers of devices are used again, the table of mounts is read for every entry that is on another device
    than its folder: there are few.
    """
    found = device_of(folder, name)
    return found is not None and found != device and is_on_glassfs(found)


def is_on_glassfs(device: int | None) -> bool:
    """Whether a device is a mount of glassfs. Raises Unavailable where the table of mounts cannot be opened now."""
    return device in mountinfo.glassfs_devices()
