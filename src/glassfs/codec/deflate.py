"""Deflate decompression, and the checksums of zlib and PNG: by zlib-ng if it is installed, otherwise by zlib.

The only module that uses either library. They have the same interface except for the class of their errors, which
``errors`` handles. Any thread; both release the GIL while they work.

isal decompresses faster still, but accepts blocks with incomplete codes, which zlib rejects: damage would be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from glassfs.errors import Damaged
from glassfs.sizes import PIECE

if TYPE_CHECKING:
    import zlib

Bytes = bytes | bytearray | memoryview

_NO_MEMORY = "Error -4 "  # Z_MEM_ERROR: inflate allocates its window late


def inflater() -> zlib._Decompress:
    """Return a decoder of raw deflate (RFC 1951), to be used inside of ``errors``."""
    found: zlib._Decompress = library().decompressobj(-15)  # window bits: without a header
    return found


def inflated(decoder: zlib._Decompress, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the raw bytes of a stream, at most PIECE at a time, and take no more pieces than it has. Raises Damaged."""
    for piece in chain(pieces, (b"",)):
        # Each step gives a limited number of bytes, whatever the input expands to.
        while not decoder.eof:
            with errors():
                raw = decoder.decompress(piece, PIECE)
            piece = decoder.unconsumed_tail
            if raw:
                yield raw
            if not piece and len(raw) < PIECE:
                break
        if decoder.eof:
            return


def decompress_zlib(data: Bytes, most: int) -> bytes:
    """Return the raw bytes of a zlib stream (RFC 1950), at most ``most``; what follows the stream is ignored.

    Its Adler-32 is checked. Raises Damaged.
    """
    decoder = library().decompressobj(15)
    with errors():
        raw: bytes = decoder.decompress(data, max(1, most))
        is_longer = bool(not decoder.eof and decoder.decompress(decoder.unconsumed_tail, 1))
    if is_longer or len(raw) > most:
        raise Damaged(f"deflate data give more than {most} bytes")
    if not decoder.eof:
        raise Damaged("deflate data are cut short")
    return raw


@contextmanager
def errors() -> Iterator[None]:
    """Raise the library's errors as Damaged, but a lack of memory as MemoryError."""
    try:
        yield
    except library().error as error:
        if str(error).startswith(_NO_MEMORY):
            raise MemoryError from error
        raise Damaged(f"deflate data cannot be decoded: {error}") from error


def crc32(data: Bytes, start: int = 0) -> int:
    """Return the CRC-32 of ``data`` appended to bytes whose CRC is ``start``."""
    found: int = library().crc32(data, start)
    return found


def adler32(data: Bytes, start: int = 1) -> int:
    """Return the Adler-32 of ``data`` appended to bytes whose checksum is ``start``."""
    found: int = library().adler32(data, start)
    return found


def adler32_combined(first: int, second: int, size: int) -> int:
    """Combine the Adler-32 checksums of two adjacent runs of bytes, of which the second has ``size`` bytes."""
    low, high, base = first & 0xFFFF, first >> 16, 65521  # RFC 1950, §8.2
    total = (high + (second >> 16) + size * (low - 1)) % base
    return total << 16 | (low + (second & 0xFFFF) - 1) % base


@lru_cache(1)
def library() -> Any:
    """Return the module of the library, loaded on first use."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        import zlib

        return zlib
    return zlib_ng
