"""Checksums of blocks, and which bytes they cover."""

from __future__ import annotations

from enum import Flag, auto
from typing import NamedTuple


class Covers(Flag):
    """The bytes that a checksum was computed over."""

    RAW = auto()
    STORED = auto()


class Crc32c(NamedTuple):
    """A stored CRC-32C (Castagnoli). If it may cover either kind of bytes, one match is enough."""

    value: int
    covers: Covers = Covers.RAW

    def matches(self, raw: int, stored: int) -> bool:
        """Return whether it equals the CRC of the raw or of the stored bytes, whichever it covers."""
        return (Covers.RAW in self.covers and raw == self.value) or (
            Covers.STORED in self.covers and stored == self.value
        )

    def __str__(self) -> str:
        return f"crc32c:{self.value:08x}"


def crc32c(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Return the CRC-32C of ``data`` appended to bytes whose CRC is ``start``."""
    import crc32c as implementation

    return implementation.crc32c(data, start)
