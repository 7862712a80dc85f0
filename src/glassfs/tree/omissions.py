"""What directories have and do not show, as text of a bounded length. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_NAMED = 500
"""Members of one directory that a text names; of the others it gives the number."""
LONGEST = 60_000
"""Bytes of an extended attribute, which Linux limits to 64 KiB."""


class Omission(NamedTuple):
    """A member that is not shown: its name without an extension, empty if it has none, and the reason.

    If ``is_damage``, it cannot be read, which is a fault; otherwise glassfs does not support it, and the reason begins
    with the kind. Both are printable.
    """

    name: str
    reason: str
    is_damage: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


def named(omitted: Sequence[Omission]) -> list[str]:
    """Return a line for each of the first members, and one with the number of the others."""
    lines = [str(one) for one in omitted[:MOST_NAMED]]
    return [*lines, f"{len(omitted) - MOST_NAMED:,} more"] if len(omitted) > MOST_NAMED else lines


def as_text(omitted: Sequence[Omission], is_damage: bool) -> bytes:
    """Return the value of ``user.glassfs.error``, or of ``user.glassfs.omitted`` unless ``is_damage``."""
    found = "; ".join(named([one for one in omitted if one.is_damage == is_damage])).encode("utf-8", "replace")
    return found if len(found) <= LONGEST else found[:LONGEST].decode("utf-8", "ignore").encode() + b"..."
