"""Opening a path below a folder in one step: no link is followed and no mount is crossed, whoever exchanges what.

openat2(2), of Linux 5.6. Where it does not open something, for whatever reason, the one who asks goes name by name.
Any thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable

_NUMBER = 437  # the same on all that have it
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08  # linux/openat2.h
_NOT_PLAIN = ("", ".", "..")


class How(ctypes.Structure):
    """``struct open_how`` for some flags of open(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    def __init__(self, flags: int) -> None:
        super().__init__(flags | os.O_CLOEXEC, 0, _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)


def _syscall() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(How), ctypes.c_size_t)
    function.restype = ctypes.c_long
    return function


_function = _syscall() if sys.platform == "linux" else None


def opened(folder: int, path: tuple[str, ...], how: How) -> int | None:
    """A descriptor of what is at ``path`` below the folder with that descriptor; None where it has to be looked for.

    Raises FileNotFoundError, and ValueError for a name that no file can have.
    """
    if _function is None or any(name in path for name in _NOT_PLAIN):
        return None
    raw = os.fsencode("/".join(path))
    if b"\0" in raw or raw.count(b"/") != len(path) - 1:
        return None
    number = _function(_NUMBER, folder, raw, how, ctypes.sizeof(how))
    if number >= 0:
        return number
    if ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return None
