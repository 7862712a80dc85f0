"""Integers, strings and codec descriptions as stored in tables and blocks (docs/formats/idv.md §1).

``take(size)`` must return the next ``size`` bytes or raise Damaged. Errors are Damaged without source and part, which
the caller adds.
"""

from __future__ import annotations

from collections.abc import Callable

from glassfs.codec import leb128
from glassfs.errors import Damaged

STRING_BITS = 31  # of the length of a string, as .NET reads it
_SHOWN = 80

Take = Callable[[int], bytes]


def varint(take: Take, bits: int = 64) -> int:
    """Read an unsigned variable-length integer."""
    try:
        return leb128.read(lambda: take(1)[0], bits)
    except leb128.TooLong as error:
        raise Damaged(str(error)) from error


def string(take: Take) -> bytes:
    """Read a length-prefixed string, normally UTF-8."""
    return take(varint(take, STRING_BITS))


def codec(take: Take) -> tuple[bytes, bytes]:
    """Read a codec: its name and parameters."""
    return string(take), take(varint(take))


def shown(name: bytes) -> str:
    """Return a name as quoted in messages."""
    return repr(name[:_SHOWN].decode("utf-8", "replace"))
