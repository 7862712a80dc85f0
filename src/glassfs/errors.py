"""The exceptions of the package: each says what is wrong, in which part of which source.

Each is also the built-in exception that a Python caller expects. ``str`` returns ``source: part: reason``; the reason
itself has no names. Only ``glassfs.mount`` turns them into errno values.
"""

from __future__ import annotations

import errno
from typing import TypeVar

Error = TypeVar("Error", bound="GlassfsError")


class GlassfsError(Exception):
    """Base class. ``source`` names a container or file as the user does, ``part`` a block or a path in it, if known."""

    def __init__(self, reason: str = "", source: str = "", part: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source
        self.part = part

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.part, self.reason)))

    def at(self: Error, source: str = "", part: str = "") -> Error:
        """Return a copy that has this source and part where the error itself has none."""
        return type(self)(self.reason, self.source or source, self.part or part)

    @property
    def without_source(self) -> str:
        """The message without the source, for callers that name it themselves."""
        return ": ".join(filter(None, (self.part, self.reason)))


class LeftOut(GlassfsError):
    """A tree does not show something that its source has, which is no fault."""


class Refused(GlassfsError, ValueError):
    """A source cannot be opened at all."""


class Unrecognised(Refused):
    """No format recognizes the file."""


class Private(Refused):
    """The reason reveals what is in a file that fewer users may read than the one that is refused."""


class Postponed(GlassfsError):
    """Opening a container was put off until a caller needs its contents."""


class NotFound(GlassfsError, FileNotFoundError):
    """A file or directory does not exist."""


class NoSuchEntry(NotFound, KeyError):
    """A name does not exist in a directory that is used as a mapping."""


class NotADirectory(GlassfsError, NotADirectoryError):
    """A path needs a directory where there is a file."""


class IsADirectory(GlassfsError, IsADirectoryError):
    """A path needs a file where there is a directory."""


class Unsuited(GlassfsError, TypeError, AttributeError):
    """A content cannot be converted to this type, such as a text to an array."""


class Closed(GlassfsError, ValueError):
    """An object was used after it was closed."""


class NotAllowed(GlassfsError, PermissionError):
    """This process may not read the source."""


class Damaged(GlassfsError, OSError):
    """Stored bytes are missing, contradict one another, or cannot be decoded."""


class Passing(GlassfsError, OSError):
    """Base class of errors that may pass. They are never cached and never count as damage of the container."""


class DeviceFailed(Passing):
    """A device or server failed or timed out."""


class Changed(Passing):
    """The source is not the file that was opened."""


class TooLarge(GlassfsError, OSError):
    """A rendered content would exceed its size limit."""


class NotInstalled(GlassfsError, OSError):
    """Nothing is wrong with the bytes, and what decodes them is missing here. The reason says what to do."""


LASTING = Damaged, TooLarge, NotInstalled
"""Errors of one content that recur as long as its bytes do; what it is shown with can be shown without it."""


class NoSpool(Passing):
    """A block too large for memory cannot be written to the spool folder."""


class Unavailable(Passing):
    """The process lacks descriptors, memory or threads. Callers may try again."""


def is_lack(error: BaseException) -> bool:
    """Return whether an exception of any code says that the process lacks memory, descriptors, threads or modules."""
    lacks = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN
    return isinstance(error, (MemoryError, ImportError)) or (isinstance(error, OSError) and error.errno in lacks)
