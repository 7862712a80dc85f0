"""Decode stored JPEG, PNG and WebP images with Pillow.

The bytes are untrusted. What takes much time or memory is refused by the header alone, before anything is decoded, and
callers reserve memory from the cache (``COPIES`` of the stored bytes, and ``cost``). Any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glassfs.errors import Damaged, Unavailable

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

MOST_BYTES = 16 << 20  # of a stored image that is decoded
MOST_PIXELS = 16 << 20
COPIES = 4  # of the stored bytes, at most, on their way to the decoder
_CHUNK = struct.Struct(">I4s")


def opened(stored: bytes, media: str) -> ImageFile:
    """Open an image and read its header. Raises Damaged."""
    import io

    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    with decoding(f"is not a {media.upper()} that can be decoded"):
        if media == "png":
            return PngImageFile(io.BytesIO(_without_text(stored)))
        return (WebPImageFile if media == "webp" else JpegImageFile)(io.BytesIO(stored))


def decode(image: ImageFile) -> None:
    """Decode the pixels of an opened image. Raises Damaged."""
    with decoding("is an image that does not decode"):
        image.load()


@contextmanager
def decoding(reason: str) -> Iterator[None]:
    """Turn what a decoder raises into Damaged with this reason, or Unavailable without enough memory."""
    try:
        yield
    except MemoryError as error:
        raise Unavailable("there is not enough memory to decode an image") from error
    except Exception as error:  # decoders raise exceptions of any type
        raise Damaged(reason) from error


def is_quick(stored: bytes, media: str) -> bool:
    """Return whether the number of pixels bounds the time that decoding takes."""
    # A progressive JPEG decodes all of its pixels in each of its scans.
    return media == "png" or stored.count(b"\xff\xda") <= 100


def cost(media: str, width: int, height: int) -> int:
    """Return the bytes of memory that decoding takes besides the stored bytes."""
    if media == "jpeg":
        # Four bytes of a pixel and four coefficients of two bytes, in units of up to 32 rows and columns.
        return 12 * (width + 32) * (height + 32)
    # Four bytes of a pixel, and two stored rows with at most eight bytes for a pixel.
    return 4 * width * height + 16 * width


def _without_text(png: bytes) -> bytes:
    """Return only the chunks that pixels need: text and color profiles may be compressed, and large."""
    position = 8  # behind the signature
    parts = [png[:position]]
    while position + _CHUNK.size <= len(png):
        size, kind = _CHUNK.unpack_from(png, position)
        end = position + _CHUNK.size + size + 4  # of its checksum
        if not kind[0] & 0x20:  # a capital letter: the chunk is critical
            parts.append(png[position:end])
        position = end
        if kind == b"IEND":
            break
    return b"".join(parts)
