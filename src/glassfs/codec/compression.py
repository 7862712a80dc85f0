"""Decompression, whole or as a stream. Any thread; the libraries release the GIL while they work.

The declared size comes from an untrusted file: no decoder produces more, and nothing is allocated for a size that the
codec cannot produce from the stored bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

from glassfs.codec import deflate
from glassfs.errors import Damaged, GlassfsError, Unavailable
from glassfs.sizes import PIECE

Stored = bytes | bytearray

NONE, ZSTD, LZ4 = "none", "zstd", "lz4"
LZ4_FRAME = "lz4, frame"
DEFLATE = "deflate"
"""A stream of raw deflate (RFC 1951). Bytes after its end are ignored."""
DEFLATE_PREFIX = "deflate, first bytes"
"""A longer stream of raw deflate, of which only the first bytes count."""

_RATIOS = {
    NONE: 1,
    ZSTD: 32768,  # a block of 4 bytes gives at most 128 KiB (RFC 8878, 3.1.1.2)
    LZ4: 255,  # a length byte of 255 stands for at most 255 bytes of a match
    LZ4_FRAME: 255,
    DEFLATE: 1032,  # two bits for a match of 258 bytes
    DEFLATE_PREFIX: 1032,
}


def name_of(codec: str) -> str:
    """Return the name of a codec in messages."""
    return codec.partition(",")[0]


def reach(codec: str, stored: int) -> int:
    """Return the most raw bytes that ``stored`` bytes can decompress to."""
    return stored * _RATIOS[codec] + 64  # of very short inputs a little more


def cost(codec: str, stored: int, size: int) -> int:
    """Return the bytes of memory that ``decompress`` takes.

    These are the stored and the raw bytes, and for zstd its window, of which at most ``size`` bytes are touched.
    """
    return stored + (2 if codec == ZSTD else 1) * size


def stream_cost(codec: str, size: int) -> int:
    """Return the bytes of memory that ``decompress_stream`` holds while it runs."""
    # libzstd refuses windows of more than 128 MiB unless it is asked for more.
    return 4 * PIECE + (min(size, 128 << 20) if codec == ZSTD else 0)


def decompress(codec: str, data: Stored, size: int) -> bytes:
    """Return exactly ``size`` raw bytes.

    zstd data are one frame, lz4 data a raw block or frames, deflate data a stream: they must decompress to exactly that
    size. Of DEFLATE_PREFIX the first ``size`` bytes count, and the rest is ignored. Raises Damaged.
    """
    name = name_of(codec)
    if size > reach(codec, len(data)):
        raise Damaged(f"{len(data)} bytes of {name} data cannot give {size} bytes")
    try:
        raw = _WHOLE[codec](data, size)
    except OverflowError as error:
        raise Damaged(f"{name} data cannot give {size} bytes") from error
    if len(raw) > size:
        raise Damaged(f"{name} data give more than the declared {size} bytes")
    if len(raw) != size:
        raise Damaged(f"{name} data give {len(raw)} bytes, but {size} are declared")
    return raw


def decompress_prefix(data: Stored, size: int) -> bytes:
    """Return up to ``size`` first bytes of deflate data of which ``data`` are the first. Raises Damaged."""
    with deflate.errors():
        return deflate.inflater().decompress(data, size) if size else b""  # zlib takes 0 for no limit


def decompress_stream(codec: str, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces, for blocks too large for memory.

    Raises Damaged at the piece that fails, or at the end if the sizes differ.
    """
    left, name = size, name_of(codec)
    for piece in _STREAM[codec](pieces):
        if len(piece) > left:
            if codec != DEFLATE_PREFIX:
                raise Damaged(f"{name} data give more than the declared {size} bytes")
            piece = piece[:left]
        left -= len(piece)
        if piece:
            yield piece
        if left == 0 and codec == DEFLATE_PREFIX:
            return
    if left:
        raise Damaged(f"{name} data give {size - left} bytes, but {size} are declared")


def _unzstd(data: Stored, size: int) -> bytes:
    import zstandard

    try:
        # The frame may declare any size, which the library would allocate.
        declared = zstandard.frame_content_size(data)
        if declared not in (-1, size):
            raise Damaged(f"zstd frame holds {declared} bytes, but {size} are declared")
        if declared == -1:
            return b"".join(decompress_stream(ZSTD, [bytes(data)], size))
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise _zstd_error(error) from error


def _unzstd_stream(pieces: Iterable[bytes]) -> Iterator[bytes]:
    import zstandard

    # A reader, not a decompressobj: it bounds what one step produces, whatever the input expands to.
    reader = zstandard.ZstdDecompressor().stream_reader(_file(pieces))
    try:
        while raw := reader.read(PIECE):
            yield raw
    except zstandard.ZstdError as error:
        raise _zstd_error(error) from error


def _zstd_error(error: Exception) -> GlassfsError:
    if "Allocation error" in str(error):  # zstd_errors.h: memory_allocation
        return Unavailable("there is not enough memory to decode a block")
    return Damaged(f"zstd data cannot be decoded: {error}")


class _Pieces(io.RawIOBase):
    """A file of the bytes in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._rest = memoryview(piece)
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _file(pieces: Iterable[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Pieces(pieces), PIECE)


def _inflate_stream(pieces: Iterable[bytes]) -> Iterator[bytes]:
    return deflate.inflated(deflate.inflater(), pieces)


def _unlz4(data: Stored, size: int) -> bytes:
    import lz4.block

    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=size))
    except lz4.block.LZ4BlockError:
        # liblz4 rejects a block that does not end with enough literals; some writers omit them.
        return b"".join(decompress_stream(LZ4, [bytes(data)], size))


def _unlz4_frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    import lz4.frame

    try:
        # It returns at most as many bytes as it is asked for, whatever the input expands to.
        with lz4.frame.LZ4FrameFile(_file(pieces)) as reader:
            while raw := reader.read(PIECE):
                yield raw
    except (RuntimeError, EOFError) as error:
        raise Damaged(f"lz4 data cannot be decoded: {error}") from error


# Raw LZ4 blocks decoded as a stream, in constant memory however large the block is, which liblz4 does not offer. It
# decodes batches of whole sequences, with the last 64 KiB as dictionary; single sequences that do not fit into a batch
# are decoded here. Blocks that end with a match, or with fewer literals than the format demands, are accepted.

WINDOW = 1 << 16
"""Bytes that a match can reach back (LZ4 block format)."""
_CLOSING = b"\xf0\0" + bytes(15)
"""A sequence of 15 literals: liblz4 demands at least 12 bytes after the start of the last match."""
_LONG = 15
"""A length of four bits that says that bytes to be added follow, up to one below 255."""


def _unlz4_stream(file: io.BufferedReader) -> Iterator[bytes]:
    """Yield the raw bytes, about PIECE at a time. Raises Damaged at a bad sequence; does not check the size."""
    window = bytearray()
    while ahead := file.peek():
        end, size = _whole_sequences(ahead)
        for raw in [_batch(file.read(end), size, window)] if size else _sequence(file, window):
            yield raw
            window += raw[-WINDOW:]
            del window[:-WINDOW]


def _batch(data: bytes, size: int, window: bytearray) -> bytes:
    """Return the ``size`` raw bytes of sequences that end with a match."""
    import lz4.block

    try:
        raw = lz4.block.decompress(data + _CLOSING, uncompressed_size=size + len(_CLOSING) - 2, dict=window)
    except lz4.block.LZ4BlockError as error:
        raise Damaged(f"lz4 data cannot be decoded: {error}") from error
    return bytes(raw[:size])


def _whole_sequences(data: bytes) -> tuple[int, int]:
    """Return the end and the raw size of the whole sequences that ``data`` begins with, of little more than PIECE."""
    end, size, position = 0, 0, 0
    try:
        # Only the lengths are read here, in Python: literals and matches are copied by liblz4, a batch at a time.
        while size < PIECE:
            token = data[position]
            position += 1
            literals, length = token >> 4, token & 15
            if literals == _LONG:
                while (byte := data[position]) == 255:
                    literals += 255
                    position += 1
                literals += byte
                position += 1
            position += literals + 2
            if length == _LONG:
                while (byte := data[position]) == 255:
                    length += 255
                    position += 1
                length += byte
                position += 1
            if position > len(data) or literals + length > PIECE:
                break
            end = position
            size += literals + length + 4
    except IndexError:
        pass
    return end, size


def _sequence(file: io.BufferedReader, window: bytearray) -> Iterator[bytes]:
    """Decode one sequence of any size. The caller adds what this yields to the window of the last bytes."""
    token = file.read(1)[0]
    literals = _length(file, token >> 4)
    while literals:
        raw = file.read(min(literals, PIECE))
        if not raw:
            raise Damaged("lz4 data cannot be decoded: literals run out of the block")
        literals -= len(raw)
        yield raw
    stored = file.read(2)
    if not stored:  # the last sequence has no match
        return
    distance, length = int.from_bytes(stored, "little"), _length(file, token & 15) + 4
    if len(stored) < 2 or not 0 < distance <= len(window):
        raise Damaged("lz4 data cannot be decoded: a match reaches back too far")
    while length:
        count = min(length, PIECE)
        # A match may reach into the bytes that it makes itself: it repeats the last ``distance`` bytes.
        yield bytes(window[-distance:] * (count // distance + 1))[:count]
        length -= count


def _length(file: io.BufferedReader, length: int) -> int:
    more = b"\xff" if length == _LONG else b""
    while more == b"\xff":
        more = file.read(1)
        if not more:
            raise Damaged("lz4 data cannot be decoded: the block is cut")
        length += more[0]
    return length


_WHOLE: dict[str, Callable[[Stored, int], bytes]] = {
    NONE: lambda data, size: bytes(data), ZSTD: _unzstd, LZ4: _unlz4,
    LZ4_FRAME: lambda data, size: b"".join(decompress_stream(LZ4_FRAME, [bytes(data)], size)),
    DEFLATE: lambda data, size: decompress_prefix(data, size + 1),  # one more, to find one that is too long
    DEFLATE_PREFIX: decompress_prefix,
}
_STREAM: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    NONE: iter, ZSTD: _unzstd_stream, DEFLATE: _inflate_stream, DEFLATE_PREFIX: _inflate_stream,
    LZ4: lambda pieces: _unlz4_stream(_file(pieces)), LZ4_FRAME: _unlz4_frames,
}
