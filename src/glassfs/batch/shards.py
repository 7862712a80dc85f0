"""Divide containers among independent jobs by a hash of each container's path.

A container's part does not depend on the order of a listing, on other files, or on where the folder is mounted. Pure
values.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from glassfs.names import raw


class Shard(NamedTuple):
    """Part ``number`` (from 0) of ``parts``. Each path is in exactly one."""

    number: int = 0
    parts: int = 1

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """Parse ``I/N``. Raises ValueError."""
        number, slash, parts = text.partition("/")
        if not (slash and _is_plain(number) and _is_plain(parts)):
            raise ValueError("is not of the form I/N, such as 0/3")
        found = cls(int(number), int(parts))
        if not 0 <= found.number < found.parts:
            raise ValueError("is out of range: with N parts, I is 0 to N-1")
        return found

    def has(self, key: str) -> bool:
        """Return whether the container at this path below the named folder belongs to this part."""
        return xxhash.xxh64_intdigest(raw(key)) % self.parts == self.number


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
