"""Inflating, and the checksums of zlib and PNG: by zlib-ng where it is installed, and by zlib elsewhere. Any thread.

Nothing else in the package uses either of them, so that it is chosen in one place. Both do the same and have the same
interface but for the class of their errors, which ``errors`` tells. They release the GIL while they work.

isal inflates faster still, but goes on where a block's codes are incomplete, which zlib refuses: damage would be shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

from glassfs.errors import Damaged

Bytes = bytes | bytearray | memoryview

_RAW = -15  # deflate without a header, in zlib's terms
_ADLER_BASE = 65521


class Inflater(Protocol):
    """What zlib calls a decompression object."""

    @property
    def eof(self) -> bool: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: Bytes, max_length: int) -> bytes: ...


def inflater() -> Inflater:
    """A decoder of raw deflate (RFC 1951). What it raises is made Damaged by ``errors``."""
    found: Inflater = library().decompressobj(_RAW)
    return found


@contextmanager
def errors() -> Iterator[None]:
    """Around what inflates: what the library says of the data is raised as Damaged."""
    try:
        yield
    except library().error as error:
        raise Damaged(f"deflate data cannot be decoded: {error}") from error


def crc32(data: Bytes, start: int = 0) -> int:
    """The CRC-32 of ``data`` appended to bytes whose CRC is ``start``."""
    found: int = library().crc32(data, start)
    return found


def adler32(data: Bytes, start: int = 1) -> int:
    """The Adler-32 of ``data`` appended to bytes whose checksum is ``start``."""
    found: int = library().adler32(data, start)
    return found


def adler32_combined(first: int, second: int, size: int) -> int:
    """The Adler-32 of two runs of bytes, one behind the other, of theirs; the second run has ``size`` bytes."""
    low, high = first & 0xFFFF, first >> 16
    total = (high + (second >> 16) + size * (low - 1)) % _ADLER_BASE
    return total << 16 | (low + (second & 0xFFFF) - 1) % _ADLER_BASE


@lru_cache(1)
def library() -> Any:
    """The module that is used. Loaded when first needed."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        import zlib

        return zlib
    return zlib_ng
