"""Raw pixels as PNG files with stored deflate: nothing is compressed, and the size is a formula.

PNG: W3C Recommendation, third edition, §5 (chunks), §9 (filter type 0), §10 (zlib); stored blocks: RFC 1951 §3.2.4.

The pixels are written in bands of rows, each in its own IDAT chunk. The head and the end of the zlib stream have chunks
of their own, so that all bands look alike. Rows are read directly to their positions in the reader's buffer, and the
bytes between them are written around them, so reading a range costs that range. Only a range with the checksum of a
band may read the rest of that band, and a range with the checksum of all pixels the other bands. The progress of
checksums is noted, so that a reader that continues where another stopped reads nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple

from glassfs.cache import BlockCache, Notes
from glassfs.codec import deflate
from glassfs.content import Data, Image, Location
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE
from glassfs.source import SEGMENTS, Scattered, Spans, distribute

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
STORED_BLOCK = 0xFFFF
BLOCK_HEAD = struct.Struct("<BHH")
BLOCK = BLOCK_HEAD.size + STORED_BLOCK
BAND = 4 * STORED_BLOCK
LARGEST = 8 << 30
"""Bytes of a file: its last bytes take a pass over all pixels, for which the reader waits."""
_NO_FILTERS = memoryview(bytes(STORED_BLOCK))


def view(image: Image, cache: BlockCache, key: tuple[Hashable, ...]) -> tuple[str, Data]:
    return ".png", Png(image, cache, key)


class Png(Data):
    """An image as a PNG. Only checksums are kept of it."""

    __slots__ = ("_cache", "_image", "_key")

    def __init__(self, image: Image, cache: BlockCache, key: tuple[Hashable, ...]) -> None:
        self._image = image
        self._cache = cache
        self._key = key

    @property
    def size(self) -> int:
        return self._layout.size

    @property
    def _layout(self) -> PngLayout:
        image = self._image
        return layout(image.width, image.height, image.channels, image.bits)

    def location(self) -> Location | None:
        return self._image.data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        places = self._layout
        if places.rows == 1 and places.blocks(0) >= 1 << 31:  # the length of a chunk has 31 bits
            raise TooLarge(f"an image {self._image.width} pixels wide is too wide for a PNG")
        if places.size > LARGEST:
            raise TooLarge(f"an image of {places.size} bytes is too large for a PNG")
        end = offset + len(buffer)
        pixels = _Pixels(self._image, places)
        pixels.fill(buffer, offset)
        # A reader that takes the whole file at once needs no notes.
        sums = _Sums(pixels, places, self._key, None if len(buffer) == places.size else self._cache.notes)
        found = {}
        for band in places.bands_in(offset, end):
            # Checksums follow the bytes that are read: the next reader finds in the notes how far they got. Only where
            # the checksum itself is asked for, what they do not cover yet is read in addition.
            start = places.start(band) + CHUNK.size - offset
            crc = start + places.blocks(band)
            first = max(0, -start)
            found[band] = sums.of_more(band, buffer[start + first : max(0, crc)], first)
            if -4 < crc < len(buffer):
                found[band] = sums.of_all(band, found[band])
                _put(buffer, found[band].crc.to_bytes(4, "big"), crc)
        if offset < HEAD:
            _put(buffer, _head(self._image), -offset)
        if end > places.end:
            adler = sums.adler(found) if end > places.end + CHUNK.size + len(STREAM_END) else 0
            tail = _chunk(b"IDAT", STREAM_END + adler.to_bytes(4, "big")) + LAST_CHUNK
            _put(buffer, tail, places.end - offset)


class PngLayout(NamedTuple):
    """Positions in the PNGs of images of one kind. Sizes are bytes; a row begins with its filter type."""

    row: int
    height: int
    rows: int
    """In a band; the last one may have fewer."""
    step: int
    """From the start of a band's chunk to that of the next one."""
    end: int
    """The end of the bands."""
    size: int

    @property
    def bands(self) -> int:
        return -(-self.height // self.rows)

    def filtered(self, band: int) -> int:
        """Return the size of a band's rows."""
        return min(self.rows, self.height - band * self.rows) * self.row

    def blocks(self, band: int) -> int:
        """Return the size of a band's stored blocks."""
        return _blocks(self.filtered(band))

    def start(self, band: int) -> int:
        """Return the position of a band's chunk."""
        return HEAD + band * self.step

    def bands_in(self, start: int, end: int) -> range:
        """Return the bands that have bytes in ``[start, end)``."""
        return range(max(0, (start - HEAD) // self.step), min(self.bands, -((HEAD - end) // self.step)))


@lru_cache(1024)
def layout(width: int, height: int, channels: int, bits: int) -> PngLayout:
    row = 1 + width * channels * bits // 8
    rows = max(1, BAND // row)
    step = CHUNK.size + _blocks(rows * row) + 4
    bands, rest = divmod(height, rows)
    end = HEAD + bands * step + (CHUNK.size + _blocks(rest * row) + 4 if rest else 0)
    return PngLayout(row, height, rows, step, end, end + TAIL)


class _Plan(NamedTuple):
    """What to write into a stretch of the PNGs of one kind. Positions are relative to the stretch."""

    fixed: tuple[tuple[slice, bytes | memoryview], ...]
    """Heads of chunks and of stored blocks, and the filter types of rows."""
    rows: tuple[tuple[int, Spans], ...]
    """The offset of the pixels, as a PNG has them, and the places of their rows; at most SEGMENTS places each."""
    narrow: tuple[tuple[slice, int, int], ...]
    """The same for rows so short that there are very many: their places and the arguments of ``_fill_columns``."""


@lru_cache(64)
def _plan(places: PngLayout, offset: int, size: int) -> _Plan:
    """Return the plan of the ``size`` bytes from ``offset`` on. All frames of a video are read in the same
    stretches.
    """
    row = places.row
    fixed: list[tuple[slice, bytes | memoryview]] = []
    narrow: list[tuple[slice, int, int]] = []
    spans: list[tuple[int, int]] = []
    pixels = -1

    def put(data: bytes, position: int) -> None:
        start, end = max(0, position), min(size, position + len(data))
        if start < end:
            fixed.append((slice(start, end), data[start - position : end - position]))

    for band in places.bands_in(offset, offset + size):
        length = places.blocks(band)
        begin = places.start(band) - offset
        put(CHUNK.pack(length, b"IDAT"), begin)
        begin += CHUNK.size
        first, last = max(0, -begin), min(length, size - begin)
        of_band = band * places.rows * (row - 1)
        for block in _stored(first, last, places.filtered(band)) if first < last else ():
            put(block.head, begin + first + block.place)
            start, end = begin + first + block.start, begin + first + block.end
            if start >= end:
                continue
            # A stored block begins anywhere in a row: its first bytes are the rest of the row before.
            inside = start + -block.filtered % row  # where the first row begins
            if inside < end:
                fixed.append((slice(inside, end, row), _NO_FILTERS[: len(range(inside, end, row))]))
            # Copying bytes column by column is faster than a read into so many short rows.
            if row <= 64:
                narrow.append((slice(start, end), block.filtered, of_band))
                continue
            if pixels < 0:
                pixels = of_band + _pixels_before(block.filtered, row)
            if start < inside:
                spans.append((start, min(inside, end) - start))
            spans += [(place, min(row - 1, end - place)) for place in range(inside + 1, end, row)]
    rows = []
    for number in range(0, len(spans), SEGMENTS):
        found = Spans(spans[number : number + SEGMENTS])
        rows.append((pixels, found))
        pixels += found.size
    return _Plan(tuple(fixed), tuple(rows), tuple(narrow))


class _Pixels:
    """The pixels of an image in the order of a PNG, to be written into stretches of it."""

    def __init__(self, image: Image, places: PngLayout) -> None:
        self._image = image
        self._places = places
        self._is_plain = image.bits == 8 and (image.channels == 1 or not image.is_planar)

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Write all bytes from ``offset`` on, except checksums and the two ends of the file."""
        for start in range(0, len(buffer), PIECE):
            stretch = buffer[start : start + PIECE]
            plan = _plan(self._places, offset + start, len(stretch))
            for place, data in plan.fixed:
                stretch[place] = data
            # One read fills all rows: the kernel scatters the pixels to their places around what was just written.
            for pixels, spans in plan.rows:
                rows = Scattered(stretch, spans)
                if self._is_plain:
                    self._image.data.scatter_into(rows, pixels)
                else:
                    distribute(self._read(pixels, spans.size), rows)
            for place, filtered, of_band in plan.narrow:
                self._fill_columns(stretch[place], filtered, of_band)

    def _fill_columns(self, part: memoryview, start: int, offset: int) -> None:
        """Fill ``part``, which begins at byte ``start`` of rows whose pixels begin at ``offset``."""
        row, skipped = self._places.row, _pixels_before(start, self._places.row)
        pixels = self._read(offset + skipped, _pixels_before(start + len(part), row) - skipped)
        for column in range(1, row):
            first = (column - start) % row
            part[first::row] = pixels[_pixels_before(start + first, row) - skipped :: row - 1]

    def _read(self, offset: int, size: int) -> memoryview:
        """Return bytes of pixels as a PNG has them: interleaved, most significant byte first."""
        image = self._image
        if self._is_plain:
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
                # Bytes of a sample are reversed, and planes interleaved, by slices: without NumPy, which takes long to
                # load.
                pixels[(plane + 1) * sample - 1 - byte :: unit] = raw[byte::sample]
        return memoryview(pixels)[offset - first * unit :][:size]


class _Sum(NamedTuple):
    """The checksums of the first ``position`` bytes of a band's blocks: of the chunk, and of the rows in them."""

    position: int = 0
    crc: int = 0x35AF061E  # of the type, IDAT
    adler: int = 1


class _Sums:
    """The checksums of an image's bands. Their progress is kept in ``notes``, if given."""

    def __init__(self, pixels: _Pixels, places: PngLayout, key: tuple[Hashable, ...], notes: Notes | None) -> None:
        self._pixels = pixels
        self._places = places
        self._key = key
        self._notes = notes

    def of_more(self, band: int, blocks: memoryview, first: int) -> _Sum:
        """Return the checksums of a band after adding ``blocks``, its bytes from ``first`` on."""
        return self._with(self._noted(band), band, blocks, first)

    def of_all(self, band: int, known: _Sum) -> _Sum:
        """Return the checksums of a whole band, reading the bytes that ``known`` does not cover."""
        size = self._places.blocks(band)
        while known.position < size:
            blocks = memoryview(bytearray(min(4 * BLOCK, size - known.position)))
            self._pixels.fill(blocks, self._places.start(band) + CHUNK.size + known.position)
            known = self._with(known, band, blocks, known.position)
        return known

    def adler(self, found: dict[int, _Sum]) -> int:
        """Return the Adler-32 of all rows; ``found`` has what is known of some bands."""
        adler = 1
        for band in range(self._places.bands):
            known = self.of_all(band, found.get(band) or self._noted(band))
            adler = deflate.adler32_combined(adler, known.adler, self._places.filtered(band))
        return adler

    def _noted(self, band: int) -> _Sum:
        return _Sum() if self._notes is None else _Sum(*self._notes.get((*self._key, band)) or ())

    def _with(self, known: _Sum, band: int, blocks: memoryview, first: int) -> _Sum:
        position, crc, adler = known
        end = first + len(blocks)
        # Out of order: there is nothing to add to the checksum before the bytes in between.
        if not first <= position < end:
            return known
        blocks = blocks[position - first :]
        for block in _stored(position, end, self._places.filtered(band)):
            adler = deflate.adler32(blocks[block.start : block.end], adler)
        found = _Sum(end, deflate.crc32(blocks, crc), adler)
        if self._notes is not None:
            self._notes.put((*self._key, band), found)
        return found


class StoredBlock(NamedTuple):
    """A stored block with bytes in a stretch. Positions are relative to the stretch."""

    head: bytes
    place: int
    """Position of the head; it may lie before the stretch."""
    start: int
    end: int
    """Bounds of the bytes of the block that are in the stretch."""
    filtered: int
    """Offset in the band's rows of the byte at ``start``."""


@lru_cache(128)
def _stored(first: int, end: int, size: int) -> tuple[StoredBlock, ...]:
    """Return the stored blocks of ``size`` bytes that overlap ``[first, end)``."""
    found = []
    for number in range(first // BLOCK, -(-end // BLOCK)):
        place = number * BLOCK
        length = min(STORED_BLOCK, size - number * STORED_BLOCK)
        start = max(first, place + BLOCK_HEAD.size)
        stop = max(start, min(end, place + BLOCK_HEAD.size + length))
        head = BLOCK_HEAD.pack(0, length, length ^ 0xFFFF)
        filtered = start - BLOCK_HEAD.size * (number + 1)
        found.append(StoredBlock(head, place - first, start - first, stop - first, filtered))
    return tuple(found)


def _blocks(size: int) -> int:
    """Return the size of ``size`` bytes in stored blocks."""
    return size + BLOCK_HEAD.size * -(-size // STORED_BLOCK)


def _pixels_before(position: int, row: int) -> int:
    """Return the number of pixel bytes before a position in rows that begin with a filter type."""
    return position // row * (row - 1) + max(0, position % row - 1)


def _put(buffer: memoryview, data: bytes, position: int) -> None:
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
