"""What goes wrong while a block is made, told to each of those who wait for the block."""

from __future__ import annotations

from glassfs.errors import GlassfsError, Unavailable


def bare(error: BaseException) -> BaseException:
    """The same error to keep for readers: what is expected to happen goes without its traceback, which would hold on
    to the source and whatever else was at hand.
    """
    if isinstance(error, MemoryError):
        return Unavailable("there is not enough memory to decode a block")
    return error.at() if isinstance(error, GlassfsError) else error


def again(error: BaseException) -> BaseException:
    """The same error for one more reader, who adds to its traceback."""
    return error.at() if isinstance(error, GlassfsError) else error
