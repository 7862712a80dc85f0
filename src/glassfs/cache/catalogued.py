"""What a catalogue keeps: rows of a container, in parts. Plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Key = bytes
MOST_FOUND = 8 << 20
"""Bytes of data after which nothing more is given at a time."""


class Kept(NamedTuple):
    """Part ``number`` of ``parts`` of what is kept under a key. What the other fields say is the business of the user.

    ``head`` is the same in all parts.
    """

    number: int
    parts: int
    rows: int
    block: int
    head: bytes
    data: bytes


def is_full(found: Mapping[Key, Kept]) -> bool:
    """Whether that is as much as is given at a time."""
    return sum(len(kept.data) for kept in found.values()) >= MOST_FOUND


def looked_for(keys: Sequence[Key], found: Mapping[Key, Kept]) -> int:
    """How many of the keys, from the first on, were looked for, if that was found."""
    return keys.index(list(found)[-1]) + 1 if is_full(found) else len(keys)
