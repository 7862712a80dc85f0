"""Whether a file has an access control list. Any thread.

Most have none, which Python reports with an exception. That takes as long as asking the system, so for descriptors the
function of the C library is called.
"""

from __future__ import annotations

import ctypes
import errno
import os

from glassfs.source import libc

ACL = "system.posix_acl_access"
_RAW_NAME = ACL.encode()
_NONE = (errno.ENODATA, errno.ENOTSUP)
_function = libc.function("fgetxattr", ctypes.c_ssize_t, use_errno=True)


def has_acl(place: int | str) -> bool | None:
    """Return whether the file at a path or with a descriptor has an ACL; None if that cannot be determined."""
    if _function is not None and type(place) is int:
        size = _function(place, _RAW_NAME, None, 0)
        return size > 0 if size >= 0 else (False if ctypes.get_errno() in _NONE else None)
    try:
        return bool(os.getxattr(place, ACL))
    except OSError as error:
        return False if error.errno in _NONE else None
