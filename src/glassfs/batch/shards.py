"""A part of all containers, for jobs that know nothing of each other: which part is told by the container's path alone.

So it does not depend on the order of a listing, on what else is there, nor on where the folder is mounted. Pure values.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from glassfs.names import raw


class Shard(NamedTuple):
    """Part ``number`` of ``parts``, from 0 on. Each path is in one of them."""

    number: int = 0
    parts: int = 1

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """What ``I/N`` says. Raises ValueError."""
        number, slash, parts = text.partition("/")
        if not (slash and _is_plain(number) and _is_plain(parts)):
            raise ValueError("is not like 0/3: a number from 0 on, and how many there are")
        found = cls(int(number), int(parts))
        if not 0 <= found.number < found.parts:
            raise ValueError("has no such part: with N parts they are 0 to N-1")
        return found

    def has(self, key: str) -> bool:
        """Whether the container at this path, from what was named, belongs to it."""
        return xxhash.xxh64_intdigest(raw(key)) % self.parts == self.number


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
