"""What the cache asks of those who know how a block is made."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol


class Recipe(Protocol):
    """How a block is made. ``key`` is the same for the same bytes and for no others, and refers to no source.

    ``cost`` is the memory that ``whole`` takes at its peak, the block included, and ``stream_cost`` that of ``pieces``.
    A key that is a tuple begins with the version of the source, so that it can be forgotten with that.
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
        """All ``size`` bytes, which nobody changes from now on. Raises Damaged or Changed."""

    def pieces(self) -> Iterator[bytes | bytearray]:
        """The same bytes in pieces of a few MiB at most; an error is raised before the last byte is given."""
