"""Open the files that glassfs writes under names that users gave: logs, reports, tables, counters, units.

Others may have put something of theirs under such a name. It stays as it is: no link is followed, nothing is replaced,
and only a regular file with a single name is opened. Any thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from glassfs.errors import GlassfsError

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""O_NONBLOCK: opening a FIFO must not wait for a reader."""
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""Errors of cluster file systems that have no locks, or not for every client."""


def opened(name: str, mode: int = 0o666, folder: int | None = None, *, is_shared: bool = False) -> int:
    """Return a descriptor of a file, for reading and for writing at its end; a missing one is created.

    Without an open ``folder``, the name is a path. A new file has ``mode`` less the umask. An existing one must belong
    to this user or root, unless it ``is_shared``: then the caller recognizes its own files by their contents. Servers
    that map users may give even a new file to another one.
    Raises OSError, whose ``strerror`` also says what to do, if something else has the name.
    """
    try:
        return os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(name, _FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link; name a file", name) from None
        if error.errno == errno.ENXIO:
            raise _not_regular(name) from None
        raise
    try:
        # Checked on the descriptor, as the name may lead to something else by now.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _not_regular(name)
        if not is_shared and status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "belongs to another user; name another file", name)
        if status.st_nlink > 1:
            raise OSError(errno.EMLINK, "has other names as well (hard links); name another file", name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def locked(name: str) -> BinaryIO:
    """Open a file, as ``opened`` does if it is shared, that no other program shall write. Raises GlassfsError."""
    with writing(name):
        descriptor = opened(name, is_shared=True)
    if is_locked(descriptor):
        os.close(descriptor)
        raise GlassfsError("another program is writing to it", name)
    return open(descriptor, "r+b")


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn errors of the system into GlassfsError with the name of the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GlassfsError):
            raise
        raise GlassfsError(f"cannot be written: {error.strerror or error}", name) from error


def is_at(descriptor: int, name: str, folder: int | None = None) -> bool:
    """Return whether a name still leads to an open file. Raises OSError."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def is_inside(path: str, folder: os.stat_result) -> bool:
    """Return whether a path, which need not exist, is that folder or below it: bind mounts give a folder several paths.
    """
    above = os.path.realpath(path)
    while True:
        with suppress(OSError):
            if os.path.samestat(os.stat(above), folder):
                return True
        if above == "/":
            return False
        above = os.path.dirname(above)


def is_locked(descriptor: int) -> bool:
    """Return whether another program has locked an open file; otherwise lock it, if possible, until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return False


def _not_regular(name: str) -> OSError:
    return OSError(errno.EINVAL, "is not a regular file; name another one", name)
