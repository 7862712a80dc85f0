"""Integers, strings and descriptions of codecs as tables and blocks have them (docs/formats/idv.md §1).

``take`` gives the next bytes, as many as it is asked for, or raises Damaged. What is wrong is Damaged without a place,
which whoever knows it fills in.
"""

from __future__ import annotations

from collections.abc import Callable

from glassfs.codec import leb128
from glassfs.errors import Damaged

STRING_BITS = 31  # of the length of a string, as .NET reads it
_SHOWN = 80

Take = Callable[[int], bytes]


def varint(take: Take, bits: int = 64) -> int:
    """An unsigned integer of variable length."""
    try:
        return leb128.read(lambda: take(1)[0], bits)
    except leb128.TooLong as error:
        raise Damaged(str(error)) from error


def string(take: Take) -> bytes:
    """A string: its length and its bytes, UTF-8 as a rule."""
    return take(varint(take, STRING_BITS))


def codec(take: Take) -> tuple[bytes, bytes]:
    """A codec: its name and its parameters."""
    return string(take), take(varint(take))


def shown(name: bytes) -> str:
    """A name as messages quote it."""
    return repr(name[:_SHOWN].decode("utf-8", "replace"))
