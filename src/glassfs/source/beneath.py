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
_NO_NAMES = frozenset(("", ".", ".."))


class How(ctypes.Structure):
    """``struct open_how`` with flags of open(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def __init__(self, flags: int) -> None:
        super().__init__(flags | os.O_CLOEXEC, 0, _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
        self.pointer = ctypes.byref(self)


_SIZE = ctypes.sizeof(How)
# Without types of arguments, whose conversions take as long as the call: integers are passed as int, which is extended.
_function = libc.function("syscall", ctypes.c_long, use_errno=True)


def opened(folder: int, path: tuple[str, ...], how: How) -> int | None:
    """Return a descriptor of ``path`` below the open ``folder``, or None if the caller has to walk.

    Raises FileNotFoundError, and ValueError for an invalid file name.
    """
    if _function is None or not _NO_NAMES.isdisjoint(path):
        return None
    joined = "/".join(path)
    if "\0" in joined or joined.count("/") != len(path) - 1:
        return None
    raw = joined.encode(_ENCODING, "surrogateescape")  # as ``os.fsencode``
    fd = _function(_NUMBER, folder, raw, how.pointer, _SIZE)
    if fd >= 0:
        return fd
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return None
