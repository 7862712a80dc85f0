"""Open a path below a folder in one call of openat2(2) (Linux 5.6), following no link and crossing no mount.

If that fails for any reason, callers open component by component. Any thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

from glassfs.source import libc

_NUMBER = 437  # the same on all architectures that have it
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08  # linux/openat2.h
_ENCODING = sys.getfilesystemencoding()


class How(ctypes.Structure):
    """``struct open_how`` with flags of open(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def __init__(self, flags: int) -> None:
        super().__init__(flags | os.O_CLOEXEC, 0, _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)


_SIZE = ctypes.sizeof(How)
_function = libc.function(
    "syscall", ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(How), ctypes.c_size_t,
    use_errno=True,
)


def opened(folder: int, path: tuple[str, ...], how: How) -> int | None:
    """Return a descriptor of ``path`` below the open ``folder``, or None if the caller has to walk.

    Raises FileNotFoundError, and ValueError for an invalid file name.
    """
    if _function is None or "" in path or "." in path or ".." in path:
        return None
    raw = "/".join(path).encode(_ENCODING, "surrogateescape")  # as ``os.fsencode``
    if b"\0" in raw or raw.count(b"/") != len(path) - 1:
        return None
    fd = _function(_NUMBER, folder, raw, how, _SIZE)
    if fd >= 0:
        return fd
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return None
