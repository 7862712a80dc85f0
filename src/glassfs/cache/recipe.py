"""The contract between the cache and the objects that can make a block."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol

from glassfs.errors import GlassfsError, Unavailable


class LongStream(Exception):
    """A recipe of unknown size has more bytes than ``whole`` holds in memory: only ``pieces`` gives all of them."""


class Recipe(Protocol):
    """How to make a block of ``size`` bytes.

    ``key`` is equal for equal bytes only, and refers to no source. A key that is a tuple begins with the version of the
    source, so that it can be dropped with that version. ``cost`` is the peak memory of ``whole`` in bytes, the block
    included; ``stream_cost`` that of ``pieces``.
    """

    @property
    def key(self) -> Hashable: ...

    @property
    def size(self) -> int: ...

    @property
    def cost(self) -> int: ...

    @property
    def stream_cost(self) -> int: ...

    def whole(self) -> bytes | bytearray:
        """Return all bytes, which nothing changes afterwards. Raises Damaged or Changed."""

    def pieces(self) -> Iterator[bytes | bytearray]:
        """Yield the bytes in pieces of a few MiB at most; raise errors before the last byte."""


def stored_error(error: BaseException) -> BaseException:
    """Return the error to store for the readers of a block.

    Expected errors lose their traceback, which would keep the source and the frames of the recipe alive.
    """
    if isinstance(error, MemoryError):
        return Unavailable("there is not enough memory to decode a block")
    return fresh(error)


def fresh(error: BaseException) -> BaseException:
    """Return a copy of a stored error for one reader, as raising it adds to its traceback."""
    return error.at() if isinstance(error, GlassfsError) else error
