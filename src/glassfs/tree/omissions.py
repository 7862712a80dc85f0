"""What directories have and do not show, as text of a bounded length. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassfs.errors import Damaged, GlassfsError, LeftOut

ERROR, OMITTED = "user.glassfs.error", "user.glassfs.omitted"
MOST_NAMED = 100
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

    @property
    def error(self) -> GlassfsError:
        """The reason as an error, for commands that report a member like an error."""
        return Damaged(self.reason) if self.is_damage else LeftOut(f"omitted: {self.reason}")


def named(omitted: Sequence[Omission | str]) -> list[str]:
    """Return a line for each of the first members, which may be lines already, and one that counts the others."""
    lines = [str(one) for one in omitted[:MOST_NAMED]]
    return [*lines, f"{len(omitted) - MOST_NAMED:,} more"] if len(omitted) > MOST_NAMED else lines


def said(omitted: Sequence[Omission], folder: str = "") -> list[str]:
    """Return sentences about the members of a folder, as ``named`` does."""
    above = f"{folder}/" if folder else ""
    return [
        f"{'damaged' if one.is_damage else 'omitted'}: {above}{one}" for one in omitted[:MOST_NAMED]
    ] + [f"omitted: {more}" for more in named(omitted)[MOST_NAMED:]]


def as_attributes(omitted: Sequence[Omission]) -> dict[str, bytes]:
    """Return the extended attributes of a directory that name what it does not show and, of that, what is damaged."""
    found = dict[str, bytes]()
    for name, members in ((ERROR, [one for one in omitted if one.is_damage]), (OMITTED, omitted)):
        text = "; ".join(named(members)).encode("utf-8", "replace")
        if text:
            is_long = len(text) > LONGEST
            found[name] = text[:LONGEST].decode("utf-8", "ignore").encode() + b"..." if is_long else text
    return found
