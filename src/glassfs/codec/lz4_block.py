"""The raw LZ4 block format as a stream, which liblz4 does not offer: memory stays flat however large the block is.

Whole sequences are cut off in batches and given to liblz4, with the 64 KiB before them as dictionary and closing
literals of our own after them; what is too large for a batch is copied here. Blocks that end on a match, without the
literals that have to close a block, are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glassfs.errors import Damaged

BATCH = 1 << 20
WINDOW = 1 << 16
LENGTH_AHEAD = 1 << 12
_CLOSING = b"\xf0\x00" + bytes(15)  # liblz4 wants at least 12 bytes after the start of the last match
_CLOSED = 15
_LONG = 15


def decompress_stream(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The raw bytes, about BATCH at a time. Raises Damaged at the sequence that is wrong; the size is not checked."""
    stored = _Stored(pieces)
    window = b""
    while True:
        stored.fill()
        size, batch = _batch(stored, window)
        for raw in (batch,) if size else _single(stored, window):
            yield raw
            window = _window(window, raw)
        if not size and stored.is_empty:
            return


class _Stored:
    """The stored bytes, from ``position`` on in ``data``; ``data`` has BATCH bytes left after ``fill``, or all."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.data = b""
        self.position = 0

    def fill(self) -> None:
        if len(self.data) - self.position >= BATCH:
            return
        parts = [self.data[self.position :]]
        left = BATCH - len(parts[0])
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
        """At least one byte, at most ``size``."""
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
            # The length of a match over many megabytes has thousands of these.
            ahead = self.data[self.position : self.position + LENGTH_AHEAD]
            run = len(ahead) - len(ahead.lstrip(b"\xff"))
            length += 255 * run
            self.position += run
        return length


def _batch(stored: _Stored, window: bytes) -> tuple[int, bytes]:
    """As many whole sequences as give about BATCH bytes, decoded, and the size of that; 0 if there is none."""
    import lz4.block

    end, size = _whole_sequences(stored.data, stored.position)
    if not size:
        return 0, b""
    try:
        raw = lz4.block.decompress(
            stored.data[stored.position : end] + _CLOSING, uncompressed_size=size + _CLOSED, dict=window
        )
    except lz4.block.LZ4BlockError as error:
        raise Damaged("lz4 data cannot be decoded: a match reaches back too far") from error
    stored.position = end
    return size, raw[:size]


def _whole_sequences(data: bytes, start: int) -> tuple[int, int]:
    """Where the sequences end that are all there and give not much more than BATCH bytes, and what they give."""
    end, size, available = start, 0, len(data)
    position = start
    try:
        while size < BATCH:
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
            if position > available or literals + length > BATCH:
                break
            end = position
            size += literals + length + 4
    except IndexError:
        pass
    return end, size


def _single(stored: _Stored, window: bytes) -> Iterator[bytes]:
    """The next sequence, whatever its size, or the last one, which has no match."""
    if stored.is_empty:
        return
    token = stored.byte()
    literals = stored.length(token >> 4)
    while literals:
        raw = stored.take(min(literals, BATCH))
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
        count = min(length, BATCH)
        pattern = window[-distance:]
        raw = (pattern * (count // distance + 1))[:count]
        length -= count
        window = _window(window, raw)
        yield raw


def _window(window: bytes, raw: bytes) -> bytes:
    """The last bytes that a match can reach, after ``raw``."""
    return raw[-WINDOW:] if len(raw) >= WINDOW else (window + raw)[-WINDOW:]
