"""One writer at a time for a file, as far as its file system can tell. The lock ends with the descriptor."""

from __future__ import annotations

import errno
import fcntl
from typing import BinaryIO

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What file systems of clusters say that have no locks, or not for everybody."""


def is_locked(file: BinaryIO) -> bool:
    """Whether another program has the lock on an open file; else this one has it from now on, if there are locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return False
