"""The memory that a container may take for what is parsed of it: names, entries, headers, attributes.

Containers are untrusted, and a small file can describe millions of objects. One number bounds them all: a parser takes
from the allowance before it keeps something, and a format has no limits of its own except those of its document.
"""

from __future__ import annotations

from glassfs.errors import TooLarge
from glassfs.sizes import human_size

LEAST = 8 << 20
"""Bytes that every container may take: enough for real files under the smallest ``cache_size``."""
EXPANSION = 64
"""Bytes of objects in Python for one of a file: short names and entries take 20 to 60."""
OBJECT = 128
"""Bytes of an entry in a dictionary or a list, with the smallest object there, for parsers to multiply."""


class Allowance:
    """``left`` of ``size`` bytes. One thread at a time, as it belongs to what one thread parses."""

    __slots__ = ("left", "size")

    def __init__(self, size: int) -> None:
        self.size = self.left = size

    @classmethod
    def of_container(cls, stored: int, budget: int) -> Allowance:
        """Return that of a container of ``stored`` bytes where ``budget`` bytes are for all blocks (``cache_size``)."""
        return cls(max(LEAST, min(EXPANSION * stored, budget // 4)))

    def take(self, size: int, what: str) -> None:
        """Count ``size`` bytes that the caller is about to keep for ``what``, such as ``names``.

        Raises TooLarge, and counts nothing, if so many are not left: the container, or this part of it, is refused.
        """
        if size > self.left:
            needed = human_size(self.size - self.left + size)
            reason = f"takes {needed} of memory or more for {what}, and {human_size(self.size)} are allowed"
            raise TooLarge(f"{reason}: a larger cache_size allows more")
        self.left -= size

    def give_back(self, size: int) -> None:
        """Count bytes as free again that were taken for something dropped since."""
        self.left += size

    def part(self) -> Allowance:
        """Return an allowance of what is left, for something that is dropped soon: nothing is taken from this one."""
        return Allowance(self.left)
