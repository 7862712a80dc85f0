"""Raw LZ4 blocks decoded as a stream, in constant memory however large the block is. liblz4 does not offer this.

liblz4 decodes batches of whole sequences, with the last 64 KiB as dictionary; single sequences that do not
fit into a batch are decoded here. Blocks that end with a match, or with fewer literals than the format demands, are
accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from glassfs.errors import Damaged
from glassfs.sizes import PIECE

WINDOW = 1 << 16
"""Bytes that a match can reach back (LZ4 block format)."""
_CLOSING = b"\xf0\0" + bytes(15)
"""A sequence of 15 literals: liblz4 demands at least 12 bytes after the start of the last match."""
_LONG = 15
"""A length of four bits that says that bytes to be added follow, up to one below 255."""


def decompress_stream(file: BufferedReader) -> Iterator[bytes]:
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


def _sequence(file: BufferedReader, window: bytearray) -> Iterator[bytes]:
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


def _length(file: BufferedReader, length: int) -> int:
    more = b"\xff" if length == _LONG else b""
    while more == b"\xff":
        more = file.read(1)
        if not more:
            raise Damaged("lz4 data cannot be decoded: the block is cut")
        length += more[0]
    return length
