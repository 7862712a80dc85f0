"""Raw pixels as PNG files with stored deflate: nothing is compressed, and the size is a formula.

PNG: W3C Recommendation, third edition, §5 (chunks), §9 (filter type 0), §10 (zlib); stored blocks: RFC 1951 §3.2.4.

The rows, each after its filter type, are cut into stored blocks, wherever that is in a row, and each block has a chunk
of its own. Chunks end at multiples of 64 KiB in the file, as most requests do. The head and the end of the zlib stream
have further chunks. So any range is made from the chunks that it touches. The last bytes are a checksum of all pixels:
those of the chunks are noted, so that a reader that took the file in parts waits for no other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from glassfs.cache import BlockCache
from glassfs.codec import deflate
from glassfs.content import Data, Image, Location
from glassfs.errors import TooLarge

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
STREAM_HEAD = b"\x78\x01"
STREAM_END = b"\x01\x00\x00\xff\xff"
"""A last stored block, without bytes. The Adler-32 of all pixels follows."""
LAST_CHUNK = b"\x00\x00\x00\x00IEND\xae\x42\x60\x82"
CHUNK = struct.Struct(">I4s")
"""Length and type of a chunk. Its body and a CRC-32 of four bytes follow."""
HEAD = len(SIGNATURE) + CHUNK.size + 13 + 4 + CHUNK.size + len(STREAM_HEAD) + 4
TAIL = CHUNK.size + len(STREAM_END) + 4 + 4 + len(LAST_CHUNK)
BLOCK_HEAD = struct.Struct("<BHH")
BEFORE, AFTER = CHUNK.size + BLOCK_HEAD.size, 4
"""What is around a block in its chunk."""
STEP = 64 << 10
STORED = STEP - BEFORE - AFTER
"""Bytes in a block. The first one has fewer by HEAD, the last one as many as are left."""
CHUNKS_AT_ONCE = 16
SHORT_ROW = 64
"""Bytes of rows of which a chunk has too many to keep where they are."""
LARGEST = 8 << 30
"""Bytes of a file: its last bytes take a pass over all pixels, for which the reader waits."""


@dataclass(slots=True, eq=False)
class Png(Data):
    """An image as a PNG. Only checksums are kept of it."""

    _image: Image
    _cache: BlockCache
    _key: tuple[Hashable, ...]

    @property
    def size(self) -> int:
        return self._start(self._chunks) + TAIL

    @property
    def _row(self) -> int:
        """The bytes of a row, with its filter type."""
        return 1 + self._image.width * self._image.channels * self._image.bits // 8

    @property
    def _chunks(self) -> int:
        return -(-(HEAD + self._image.height * self._row) // STORED)

    def _before(self, number: int) -> int:
        """Return the bytes of the rows before a chunk, or before the end."""
        return min(max(0, number * STORED - HEAD), self._image.height * self._row)

    def _start(self, number: int) -> int:
        """Return the position of a chunk, or the end of the last one."""
        return HEAD + self._before(number) + number * (BEFORE + AFTER)

    def location(self) -> Location | None:
        return self._image.data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        chunks, size = self._chunks, self.size
        if size > LARGEST:
            raise TooLarge(f"an image of {size} bytes is too large for a PNG")
        end, tail = offset + len(buffer), size - TAIL
        # Chunks that are in the range as a whole are made in place, several at once: those of ``[first, last)``.
        first, last = 0 if offset <= HEAD else -(-offset // STEP), chunks if end >= tail else end // STEP
        touched = min(chunks, offset // STEP), min(chunks, -(-end // STEP))
        cuts = {*touched, *range(first or 1, last, CHUNKS_AT_ONCE), last} if first <= last else {*touched}
        sums: dict[int, int] = {}
        for number, after in pairwise(sorted(cuts)):
            start, stop = self._start(number), self._start(after)
            if offset <= start and stop <= end:
                self._fill(buffer[start - offset : stop - offset], number, sums)
            else:
                _put(buffer, self._made(number, sums), start - offset)
        if end < size:  # a reader that takes all needs no notes
            for number, adler in sums.items():
                self._cache.notes.put((*self._key, number), (adler,))
        if offset < HEAD:
            _put(buffer, _head(self._image), -offset)
        if end > tail:
            adler = self._adler(sums) if end > tail + CHUNK.size + len(STREAM_END) else 0
            _put(buffer, _chunk(b"IDAT", STREAM_END + adler.to_bytes(4, "big")) + LAST_CHUNK, tail - offset)

    def _made(self, number: int, sums: dict[int, int]) -> memoryview:
        made = memoryview(bytearray(self._start(number + 1) - self._start(number)))
        self._fill(made, number, sums)
        return made

    def _adler(self, sums: dict[int, int]) -> int:
        """Return the Adler-32 of all rows, making the chunks whose checksums are neither noted nor in ``sums``."""
        found = 1
        for number in range(self._chunks):
            noted = self._cache.notes.get((*self._key, number)) if number not in sums else None
            if noted is None and number not in sums:
                self._made(number, sums)
            adler = sums[number] if noted is None else noted[0]
            found = deflate.adler32_combined(found, adler, self._before(number + 1) - self._before(number))
        return found

    def _fill(self, buffer: memoryview, first: int, sums: dict[int, int]) -> None:
        """Write chunks from number ``first`` on, as many as the buffer has, and the Adler-32 of each into ``sums``.

        The first chunk of all, which is shorter, is made by itself.
        """
        row, chunks = self._row, range(0, len(buffer), STEP)
        parts_of = _parts if row > SHORT_ROW else _parts.__wrapped__
        numbers = range(first, first + len(chunks))
        bounds = [*map(self._before, numbers), self._before(numbers.stop)]
        # Before a byte of the rows are as many filter types as rows begin before it.
        begin, end = (bound - -(-bound // row) for bound in (bounds[0], bounds[-1]))
        pixels = _pixels(self._image, begin, end - begin)
        for number, place, (start, stop) in zip(numbers, chunks, pairwise(bounds), strict=True):
            block = b"\0".join(map(pixels.__getitem__, parts_of(row, start, stop, begin)))
            chunk = buffer[place : place + STEP]
            chunk[: CHUNK.size] = CHUNK.pack(BLOCK_HEAD.size + len(block), b"IDAT")
            chunk[CHUNK.size : BEFORE] = BLOCK_HEAD.pack(0, len(block), len(block) ^ 0xFFFF)
            chunk[BEFORE:-AFTER] = block
            chunk[-AFTER:] = deflate.crc32(chunk[4:-AFTER]).to_bytes(4, "big")
            sums[number] = deflate.adler32(block)


@lru_cache(64)
def _parts(row: int, start: int, stop: int, begin: int) -> list[slice]:
    """Return where the pixels of each of some rows are, behind ``begin`` others; frames of one size have equal ones."""
    first, after = -(-start // row), -(-stop // row)
    cuts = [start - first, *range(first * (row - 1), after * (row - 1), row - 1), stop - after]
    return [slice(a - begin, b - begin) for a, b in pairwise(cuts)]


def _pixels(image: Image, offset: int, size: int) -> memoryview:
    """Return bytes of pixels as a PNG has them: interleaved, most significant byte first."""
    if image.bits == 8 and (image.channels == 1 or not image.is_planar):  # they are stored like this
        return memoryview(image.data.read(offset, size))
    sample = image.bits // 8
    planes = image.channels if image.is_planar else 1  # interleaved samples are treated as pixels
    unit = sample * planes
    first, end = offset // unit, -(-(offset + size) // unit)
    pixels = bytearray((end - first) * unit)
    for plane in range(planes):
        start = plane * image.width * image.height + first
        raw = image.data.read(start * sample, (end - first) * sample)
        for byte in range(sample):
            # Bytes of a sample are reversed, and planes interleaved, by slices: NumPy takes long to load.
            pixels[(plane + 1) * sample - 1 - byte :: unit] = raw[byte::sample]
    return memoryview(pixels)[offset - first * unit :][:size]


def _put(buffer: memoryview, data: bytes | memoryview, position: int) -> None:
    """Write the part of ``data`` at ``position`` that lies in the buffer."""
    start, end = max(0, position), min(len(buffer), position + len(data))
    if start < end:
        buffer[start:end] = data[start - position : end - position]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return CHUNK.pack(len(body), kind) + body + deflate.crc32(kind + body).to_bytes(4, "big")


def _head(image: Image) -> bytes:
    kind = COLOR_TYPES[image.channels]
    header = struct.pack(">IIBBBBB", image.width, image.height, image.bits, kind, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", STREAM_HEAD)
