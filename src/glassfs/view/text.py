"""Scalars as text: the value and a newline."""

from __future__ import annotations

from collections.abc import Hashable

from glassfs.cache import BlockCache
from glassfs.content import Data, Memory, Scalar


def scalar(content: Scalar, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    """Show integers in full, and doubles with the fewest digits that identify them, always with a point or an
    exponent.
    """
    value = content.value
    text = ("true" if value else "false") if isinstance(value, bool) else repr(value)
    return ".txt", Memory(text.encode() + b"\n")
