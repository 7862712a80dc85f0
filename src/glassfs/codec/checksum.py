"""CRC-32C (Castagnoli), the checksum of WShard blocks (docs/FORMAT.md §3 of that project)."""

from __future__ import annotations


def crc32c(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """The CRC-32C of ``data`` appended to bytes whose CRC is ``start``."""
    import crc32c as implementation

    return implementation.crc32c(data, start)
