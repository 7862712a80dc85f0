"""Raw LZ4 blocks decoded as a stream, in constant memory however large the block is. liblz4 does not offer this.

liblz4 decodes batches of whole sequences, with the previous 64 KiB as dictionary and with closing literals added here;
sequences too large for a batch are decoded here. Blocks that end with a match, without the closing literals that the
format demands, are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glassfs.errors import Damaged
from glassfs.sizes import PIECE

WINDOW = 1 << 16
"""Bytes that a match can reach back (LZ4 block format)."""
_CLOSING = b"\xf0\x00" + bytes(15)  # liblz4 demands at least 12 bytes after the start of the last match
_LONG = 15
"""A length of four bits that says that bytes to be added follow."""


def decompress_stream(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the raw bytes, about PIECE at a time. Raises Damaged at a bad sequence; does not check the size."""
    stored = _Stored(pieces)
    window = b""
    while True:
        stored.fill()
        # If not even one sequence fits into a batch, it is a very long one, or the last one.
        batch = _batch(stored, window)
        for raw in (batch,) if batch else _single(stored, window):
            yield raw
            window = _window(window, raw)
        if not batch and stored.is_empty:
            return


class _Stored:
    """The stored bytes from ``position`` in ``data`` on. After ``fill`` at least PIECE bytes are left, or the last."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.data = b""
        self.position = 0

    def fill(self) -> None:
        if len(self.data) - self.position >= PIECE:
            return
        parts = [self.data[self.position :]]
        left = PIECE - len(parts[0])
        while left > 0 and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            left -= len(piece)
        self.data, self.position = b"".join(parts), 0

    @property
    def is_empty(self) -> bool:
        if self.position == len(self.data):
            self.fill()
        return self.position == len(self.data)

    def byte(self) -> int:
        if self.is_empty:
            raise Damaged("lz4 data cannot be decoded: the block is cut")
        self.position += 1
        return self.data[self.position - 1]

    def take(self, size: int) -> bytes:
        """Return at least one byte, at most ``size``."""
        if self.is_empty:
            raise Damaged("lz4 data cannot be decoded: literals run out of the block")
        taken = self.data[self.position : self.position + size]
        self.position += len(taken)
        return taken

    def length(self, nibble: int) -> int:
        length = nibble
        while nibble == _LONG:
            byte = self.byte()
            length += byte
            if byte != 255:
                break
            # The length of a match of many megabytes has thousands of such bytes.
            ahead = self.data[self.position : self.position + 4096]
            run = len(ahead) - len(ahead.lstrip(b"\xff"))
            length += 255 * run
            self.position += run
        return length


def _batch(stored: _Stored, window: bytes) -> bytes:
    """Return the raw bytes of whole sequences, about PIECE of them; none if no sequence is short enough."""
    import lz4.block

    end, size = _whole_sequences(stored.data, stored.position)
    if not size:
        return b""
    try:
        raw: bytes = lz4.block.decompress(
            stored.data[stored.position : end] + _CLOSING, uncompressed_size=size + len(_CLOSING) - 2, dict=window
        )
    except lz4.block.LZ4BlockError as error:
        raise Damaged("lz4 data cannot be decoded: a match reaches back too far") from error
    stored.position = end
    return raw[:size]


def _whole_sequences(data: bytes, start: int) -> tuple[int, int]:
    """Return the end and the raw size of the whole sequences that give little more than PIECE bytes."""
    end, size, available = start, 0, len(data)
    position = start
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
            if position > available or literals + length > PIECE:
                break
            end = position
            size += literals + length + 4
    except IndexError:
        pass
    return end, size


def _single(stored: _Stored, window: bytes) -> Iterator[bytes]:
    """Decode one sequence of any size, or the last one, which has no match."""
    if stored.is_empty:
        return
    token = stored.byte()
    literals = stored.length(token >> 4)
    while literals:
        raw = stored.take(min(literals, PIECE))
        literals -= len(raw)
        window = _window(window, raw)
        yield raw
    if stored.is_empty:
        return
    distance = stored.byte() | stored.byte() << 8
    length = stored.length(token & 15) + 4
    if not 0 < distance <= len(window):
        raise Damaged("lz4 data cannot be decoded: a match reaches back too far")
    while length:
        count = min(length, PIECE)
        # A match may reach into the bytes that it makes itself: it repeats what lies ``distance`` bytes back.
        pattern = window[-distance:]
        raw = (pattern * (count // distance + 1))[:count]
        length -= count
        window = _window(window, raw)
        yield raw


def _window(window: bytes, raw: bytes) -> bytes:
    """Return the bytes that a match after ``raw`` can refer to."""
    return (window + raw[-WINDOW:])[-WINDOW:]
