"""Raw pixels as PNG files with stored deflate: no compression to wait for, and a size that is a formula.

PNG: W3C Recommendation, third edition, §5 (chunks), §9 (filter type 0), §10 (zlib); stored blocks: RFC 1951 §3.2.4. The
pixels are written in bands of rows, each an IDAT chunk of its own, so that an image of any size is made in little
memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Hashable, Iterator
from functools import lru_cache

from glassfs.cache import BlockCache
from glassfs.content import Data, Image, Location
from glassfs.errors import TooLarge

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
CHUNK_OVERHEAD = 12
ZLIB_HEADER = b"\x78\x01"
ADLER_SIZE = 4
STORED_BLOCK = 0xFFFF
BLOCK_HEADER = 5
BAND = 4 << 20
LONGEST_ROW = 64 << 20


def view(image: Image, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return ".png", Png(image, cache, key)


class Png(Data):
    """An image as a PNG, made once and kept by the cache."""

    __slots__ = ("_cache", "_image", "key")

    def __init__(self, image: Image, cache: BlockCache, key: Hashable) -> None:
        self._image = image
        self._cache = cache
        self.key = key

    @property
    def size(self) -> int:
        return png_size(self._image.width, self._image.height, self._image.channels, self._image.bits)

    @property
    def cost(self) -> int:
        return 2 * self.size + self.stream_cost

    @property
    def stream_cost(self) -> int:
        return min(4 * BAND, 4 * self.size)

    def location(self) -> Location | None:
        return self._image.data.location()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if len(buffer) == self.size:
            # The kernel keeps what it got, so what is read at once need not be kept here as well.
            buffer[:] = self.whole()
        else:
            self._cache.read_into(self, buffer, offset)

    def whole(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        image = self._image
        if image.width * image.channels * image.bits // 8 > LONGEST_ROW:
            raise TooLarge(f"a picture {image.width} pixels wide is too wide for a PNG to be made of it")
        yield _head(image.width, image.height, image.channels, image.bits)
        adler = 1
        rows = band_rows(image.width, image.channels, image.bits)
        for first in range(0, image.height, rows):
            count = min(rows, image.height - first)
            filtered = self._filtered(first, count)
            adler = zlib.adler32(filtered, adler)
            is_last = first + count == image.height
            parts = [ZLIB_HEADER] if first == 0 else []
            for start in range(0, len(filtered), STORED_BLOCK):
                block = filtered[start : start + STORED_BLOCK]
                is_final = is_last and start + STORED_BLOCK >= len(filtered)
                parts += (_stored_header(is_final, len(block)), block)
            if is_last:
                parts.append(adler.to_bytes(4, "big"))
            yield _chunk(b"IDAT", b"".join(parts))
        yield _END

    def _filtered(self, first: int, count: int) -> bytes:
        """Rows ``first`` … as PNG wants them: interleaved, most significant byte first, each after a filter type."""
        image = self._image
        sample = image.bits // 8
        stride = image.width * image.channels * sample
        if image.is_planar and image.channels > 1:
            pixels = self._interleaved(first, count)
        else:
            pixels = image.data.read(first * stride, count * stride)
        if sample == 2:
            swapped = bytearray(len(pixels))
            swapped[0::2], swapped[1::2] = pixels[1::2], pixels[0::2]
            pixels = bytes(swapped)
        if count == 1:
            return b"\0" + pixels
        return b"\0" + b"\0".join([pixels[start : start + stride] for start in range(0, len(pixels), stride)])

    def _interleaved(self, first: int, count: int) -> bytes:
        image = self._image
        sample, channels = image.bits // 8, image.channels
        row = image.width * sample
        pixels = bytearray(count * row * channels)
        for channel in range(channels):
            plane = image.data.read((channel * image.height + first) * row, count * row)
            for byte in range(sample):
                pixels[channel * sample + byte :: channels * sample] = plane[byte::sample]
        return bytes(pixels)


def band_rows(width: int, channels: int, bits: int) -> int:
    """How many rows one IDAT chunk holds."""
    return max(1, BAND // (1 + width * channels * bits // 8))


@lru_cache(1024)
def png_size(width: int, height: int, channels: int, bits: int) -> int:
    row = 1 + width * channels * bits // 8
    rows = band_rows(width, channels, bits)
    bands, rest = divmod(height, rows)
    image_data = bands * _band_size(rows * row) + (_band_size(rest * row) if rest else 0)
    return len(SIGNATURE) + CHUNK_OVERHEAD + 13 + len(ZLIB_HEADER) + image_data + ADLER_SIZE + CHUNK_OVERHEAD


def _band_size(size: int) -> int:
    return CHUNK_OVERHEAD + size + BLOCK_HEADER * -(-size // STORED_BLOCK)


@lru_cache(1024)
def _head(width: int, height: int, channels: int, bits: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, COLOUR_TYPES[channels], 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header)


def _stored_header(is_final: bool, size: int) -> bytes:
    return struct.pack("<BHH", is_final, size, size ^ 0xFFFF)


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(kind))
    return b"".join((len(body).to_bytes(4, "big"), kind, body, checksum.to_bytes(4, "big")))


_END = _chunk(b"IEND", b"")
