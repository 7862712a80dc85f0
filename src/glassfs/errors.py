"""The exceptions of the core.

Each is also the built-in that a Python caller would expect, and carries one sentence for people. Only
``glassfs.mount`` turns them into errno values; everything below it raises these.
"""

from __future__ import annotations


class GlassfsError(Exception):
    """Base of everything that glassfs raises on purpose."""


class Refused(GlassfsError, ValueError):
    """A container that cannot be opened at all; the text names the file and the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class Unrecognised(Refused):
    """A file that no format knows."""


class NotFound(GlassfsError, FileNotFoundError):
    """No such file or directory in a tree."""


class NotADirectory(GlassfsError, NotADirectoryError):
    """A file stands where a directory is needed."""


class IsADirectory(GlassfsError, IsADirectoryError):
    """A directory stands where a file is needed."""


class Damaged(GlassfsError, OSError):
    """Stored bytes that are missing, contradict one another, or do not decode."""


class Changed(GlassfsError, OSError):
    """The source is no longer the file that was opened."""


class TooLarge(GlassfsError, OSError):
    """A rendering that would pass the limit set for it."""


class NoSpool(GlassfsError, OSError):
    """A block too large for memory that cannot be written to the folder for such blocks."""
