"""A lock for one writer of a file, where the file system has locks. It ends with the descriptor."""

from __future__ import annotations

import errno
import fcntl
from typing import BinaryIO

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""Errors of cluster file systems that have no locks, or not for every client."""


def is_locked(file: BinaryIO) -> bool:
    """Return whether another program has locked an open file; otherwise lock it if possible."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return False
