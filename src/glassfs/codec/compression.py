"""Decoders, whole or as a stream. Any thread; the libraries release the GIL while they work.

The declared size is a promise of an untrusted file: no decoder produces more than that, and nothing is
allocated for a size that the codec cannot reach from the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import IO, cast

from glassfs.codec import lz4_block
from glassfs.errors import Damaged

Stored = bytes | bytearray

NONE, ZSTD, LZ4, DEFLATE, ZLIB = "none", "zstd", "lz4", "deflate", "zlib"

CHUNK = 1 << 20
LZ4_RATIO = 255  # a length byte of 255 stands for at most 255 bytes of a match
DEFLATE_RATIO = 1032  # two bits for a match of 258 bytes
SMALLEST_FRAME = 64  # slack of the ratios for very short inputs


def decompress(codec: str, data: Stored, size: int) -> bytes:
    """Exactly ``size`` raw bytes of ``data``. Raises Damaged.

    zstd (one frame) and lz4 (the raw block format) must yield just that size. For deflate (RFC 1951) and zlib
    a longer stream is cut there, as ML.NET does (formats/idv.md §5).
    """
    try:
        raw = _whole(codec)(data, size)
    except (MemoryError, OverflowError) as error:
        raise Damaged(f"{codec} data cannot give {size} bytes") from error
    if len(raw) != size:
        raise Damaged(f"{codec} data give {len(raw)} bytes, declared are {size}")
    return raw


def decompress_stream(codec: str, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same in pieces, for blocks that are too large to hold.

    Raises Damaged at the piece that fails, or at the end if the sizes disagree.
    """
    left = size
    for piece in _stream(codec)(pieces, size):
        if len(piece) > left:
            if codec not in (DEFLATE, ZLIB):
                raise Damaged(f"{codec} data give more than the declared {size} bytes")
            piece = piece[:left]
        left -= len(piece)
        if piece:
            yield piece
        if left == 0 and codec in (DEFLATE, ZLIB):
            return
    if left:
        raise Damaged(f"{codec} data give {size - left} bytes, declared are {size}")


def _whole(codec: str) -> Callable[[Stored, int], bytes]:
    return {NONE: _copy, ZSTD: _unzstd, LZ4: _unlz4, DEFLATE: _inflate, ZLIB: _unzlib}[codec]


def _stream(codec: str) -> Callable[[Iterable[bytes], int], Iterator[bytes]]:
    return {
        NONE: _copies, ZSTD: _unzstd_stream, LZ4: _unlz4_stream, DEFLATE: _inflate_stream, ZLIB: _unzlib_stream,
    }[codec]


def _copy(data: Stored, size: int) -> bytes:
    return bytes(data)


def _copies(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    yield from pieces


def _unzstd(data: Stored, size: int) -> bytes:
    import zstandard

    try:
        declared = zstandard.frame_content_size(data)
        if declared not in (-1, size):
            raise Damaged(f"zstd frame holds {declared} bytes, declared are {size}")
        if declared == -1:
            return b"".join(decompress_stream(ZSTD, [bytes(data)], size))
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd data do not decode: {error}") from error


def _unzstd_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    import zstandard

    # A reader, not a decompressobj: it bounds what one step produces, whatever the input expands to.
    reader = zstandard.ZstdDecompressor().stream_reader(cast(IO[bytes], _Pieces(pieces)))
    try:
        while raw := reader.read(CHUNK):
            yield raw
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd data do not decode: {error}") from error


class _Pieces:
    """An iterator of pieces as something that can be read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, size: int) -> memoryview:
        while not self._rest:
            try:
                self._rest = memoryview(next(self._pieces))
            except StopIteration:
                break
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _inflate(data: Stored, size: int) -> bytes:
    return _zlib_whole(data, size, -15)


def _unzlib(data: Stored, size: int) -> bytes:
    return _zlib_whole(data, size, 15)


def _inflate_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    return _zlib_stream(pieces, -15)


def _unzlib_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    return _zlib_stream(pieces, 15)


def _zlib_whole(data: Stored, size: int, window_bits: int) -> bytes:
    import zlib

    if size > len(data) * DEFLATE_RATIO + SMALLEST_FRAME:
        raise Damaged(f"{len(data)} bytes of deflate cannot give {size} bytes")
    if size == 0:
        return b""
    try:
        return zlib.decompressobj(window_bits).decompress(data, size)
    except zlib.error as error:
        raise Damaged(f"deflate data do not decode: {error}") from error


def _zlib_stream(pieces: Iterable[bytes], window_bits: int) -> Iterator[bytes]:
    import zlib

    decoder = zlib.decompressobj(window_bits)
    try:
        for piece in pieces:
            while piece and not decoder.eof:
                yield decoder.decompress(piece, CHUNK)
                piece = decoder.unconsumed_tail
        while not decoder.eof:
            rest = decoder.decompress(b"", CHUNK)
            if not rest:
                break
            yield rest
    except zlib.error as error:
        raise Damaged(f"deflate data do not decode: {error}") from error


def _unlz4(data: Stored, size: int) -> bytes:
    import lz4.block

    if size > len(data) * LZ4_RATIO + SMALLEST_FRAME:
        raise Damaged(f"{len(data)} bytes of lz4 cannot give {size} bytes")
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=size))
    except lz4.block.LZ4BlockError:
        # The TypeScript writer of WShard ends blocks on a match, which liblz4 refuses (formats/wshard.md §5).
        return b"".join(decompress_stream(LZ4, [bytes(data)], size))


def _unlz4_stream(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    return lz4_block.decompress_stream(pieces)
