"""Map exceptions to errno values, in this one place, and log them. ``logs`` keeps repeated errors from the log."""

from __future__ import annotations

import errno
import logging
import threading

from glassfs.errors import (
    Changed,
    GlassfsError,
    IsADirectory,
    NoSpool,
    NotADirectory,
    NotAllowed,
    NotFound,
    NotInstalled,
    TooLarge,
    Unavailable,
    is_lack,
)
from glassfs.work import Canceled

log = logging.getLogger(__name__)

_ERRNO: tuple[tuple[type[GlassfsError], int], ...] = (
    (NotFound, errno.ENOENT),
    (NotADirectory, errno.ENOTDIR),
    (IsADirectory, errno.EISDIR),
    (NotAllowed, errno.EACCES),
    (TooLarge, errno.EFBIG),
    (Unavailable, errno.EAGAIN),
    (NotInstalled, errno.EOPNOTSUPP),
    (NoSpool, errno.ENOSPC),
    (Changed, errno.ESTALE),
    (GlassfsError, errno.EIO),
)


class MountError(GlassfsError):
    """Mounting or unmounting failed; the message says what to do."""


class Answer(Exception):
    """An errno to answer a request with. Not logged."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.errno = number


class Failures:
    """Maps exceptions of requests to errno values, logs and counts them. Any thread."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def errno_of(self, error: BaseException) -> int:
        if isinstance(error, Answer):
            return error.errno
        if isinstance(error, Canceled):
            return errno.EINTR
        number = next((number for kind, number in _ERRNO if isinstance(error, kind)), None)
        if number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            return number
        if number is None:
            self._note(f"{type(error).__name__}: {error}", None if is_lack(error) else error)
            return errno.EAGAIN if is_lack(error) else errno.EIO
        self._note(str(error), None)
        return number

    def _note(self, sentence: str, unexpected: BaseException | None) -> None:
        with self._lock:
            self.count += 1
        log.error("%s", sentence, exc_info=unexpected)
