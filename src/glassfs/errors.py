"""The exceptions of the core: values that say what is wrong, and in which part of which source.

Each is also the built-in that a Python caller would expect. ``str`` makes the sentence of it, ``source: part: reason``;
whoever raises gives the three and puts no names into the reason. Only ``glassfs.mount`` turns them into errno values;
everything below it raises these.
"""

from __future__ import annotations

from typing import TypeVar

Error = TypeVar("Error", bound="GlassfsError")


class GlassfsError(Exception):
    """Base of everything that glassfs raises on purpose.

    ``reason`` goes on where ``source`` (a container or file as a person would name it) and ``part`` (a block, a path
    in a tree) stop. Either may be empty.
    """

    def __init__(self, reason: str = "", source: str = "", part: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source
        self.part = part

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.part, self.reason)))

    def at(self: Error, source: str = "", part: str = "") -> Error:
        """The same fault, told by somebody who knows where: fills in what the error itself does not say."""
        return type(self)(self.reason, self.source or source, self.part or part)

    @property
    def without_source(self) -> str:
        """The sentence for those who have named the source already."""
        return ": ".join(filter(None, (self.part, self.reason)))


class Refused(GlassfsError, ValueError):
    """A container that cannot be opened at all."""


class Unrecognised(Refused):
    """A file that no format knows."""


class NotFound(GlassfsError, FileNotFoundError):
    """No such file or directory."""


class NoSuchEntry(NotFound, KeyError):
    """The same of a name in a directory that is used like a mapping."""


class NotADirectory(GlassfsError, NotADirectoryError):
    """A file stands where a directory is needed."""


class IsADirectory(GlassfsError, IsADirectoryError):
    """A directory stands where a file is needed."""


class Unsuited(GlassfsError, TypeError, AttributeError):
    """Something that is not of the kind to be given in this form: a text as an array, an array as a picture."""


class Closed(GlassfsError, ValueError):
    """Something that was closed and is used again."""


class NotAllowed(GlassfsError, PermissionError):
    """A source that this process may not read."""


class Damaged(GlassfsError, OSError):
    """Stored bytes that are missing, contradict one another, or cannot be decoded."""


class Passing(GlassfsError, OSError):
    """Something that says nothing about what is stored, but that it could not be looked at now.

    None of these is ever remembered, or taken for a fault of the container: so none of them is Damaged.
    """


class DeviceFailed(Passing):
    """Bytes that are there, but that the device does not give, now at least."""


class Changed(Passing):
    """The source is no longer the file that was opened."""


class TooLarge(GlassfsError, OSError):
    """A rendering that would pass the limit set for it."""


class NoSpool(Passing):
    """A block too large for memory that cannot be written to the folder for such blocks."""


class Unavailable(Passing):
    """The machine lacks something now (descriptors, memory). It says nothing about the source: try again."""
