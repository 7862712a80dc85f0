"""What a catalogue keeps: rows of a container, in parts. Plain values."""

from __future__ import annotations

from typing import NamedTuple

Key = bytes


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
