"""Checksums of blocks, and which bytes they cover."""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, auto
from typing import NamedTuple

from glassfs.codec.deflate import Bytes, crc32
from glassfs.lazy import np


class Covers(Flag):
    """The bytes that a checksum was computed over."""

    RAW = auto()
    STORED = auto()


class Algorithm(NamedTuple):
    """A checksum of 32 bits, 0 for no bytes: ``update`` returns that of bytes appended to others."""

    name: str
    update: Callable[[Bytes, int], int]


def crc32c(data: Bytes, start: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of ``data`` appended to bytes whose CRC is ``start``."""
    import crc32c as implementation

    return implementation.crc32c(data, start)


CRC32 = Algorithm("crc32", crc32)
"""That of zlib, gzip, PNG and ZIP."""
CRC32C = Algorithm("crc32c", crc32c)


class Checksum(NamedTuple):
    """A stored checksum. If it may cover either kind of bytes, one match is enough."""

    algorithm: Algorithm
    value: int
    covers: Covers = Covers.RAW

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it in keys of the cache."""
        return str(self), self.covers.value

    @property
    def kinds(self) -> list[Covers]:
        """The kinds of bytes that it may cover, one by one."""
        return [kind for kind in Covers if kind in self.covers]  # Python 3.10 does not iterate over a flag

    def __str__(self) -> str:
        return f"{self.algorithm.name}:{self.value:08x}"


class RunningChecksum:
    """The comparison of bytes, as they come, with a stored checksum; without one, all bytes are right."""

    def __init__(self, checksum: Checksum | None) -> None:
        self._checksum = checksum
        self._sums = {} if checksum is None else dict.fromkeys(checksum.kinds, 0)

    def add(self, data: Bytes, kind: Covers) -> None:
        """Add bytes of a kind."""
        if self._checksum is not None and kind in self._sums:
            self._sums[kind] = self._checksum.algorithm.update(data, self._sums[kind])

    @property
    def is_right(self) -> bool:
        """Whether all bytes match, once they were added: of one kind at least, if either may be covered."""
        return self._checksum is None or self._checksum.value in self._sums.values()


def fletcher32(data: Bytes) -> int:
    """Return Fletcher's checksum of big-endian 16-bit words, as HDF5 computes it.

    A zero is added to an odd byte at the end. A sum that the modulus 65535 divides is 65535, unless all words are zero.
    """
    even = len(data) // 2 * 2
    words = np.frombuffer(memoryview(data)[:even], ">u2")
    if even < len(data):
        words = np.append(words, np.array(data[-1] << 8, ">u2"))
    first = second = 0
    # Sums of so many words fit into 64 bits, weighed by their numbers as well.
    for start in range(0, len(words), 1 << 16):
        some = words[start : start + (1 << 16)].astype(np.uint64)
        second = (second + first * len(some) + int(some @ np.arange(len(some), 0, -1, dtype=np.uint64))) % 65535
        first = (first + int(some.sum())) % 65535
    return (second or 65535) << 16 | (first or 65535) if words.any() else 0
