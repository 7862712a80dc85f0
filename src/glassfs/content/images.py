"""Decode stored JPEG and PNG images with Pillow.

The bytes are untrusted. What takes much time or memory is refused by the header alone, before anything is decoded, and
callers reserve memory from the cache (``COPIES`` of the stored bytes, and ``cost``). Any thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glassfs.errors import Damaged, Unavailable

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

MOST_BYTES = 16 << 20  # of a stored image that is decoded
MOST_PIXELS = 16 << 20
MOST_JPEG_SCANS = 100  # a progressive JPEG decodes all of its pixels in each

COPIES = 4  # of the stored bytes, at most, on their way to the decoder
LARGEST_UNIT = 32  # rows and columns of the largest unit in which a JPEG is decoded
JPEG_COST = 12  # bytes for a pixel: four of its own, and four coefficients of two
PNG_COST = 4
PNG_COLUMN_COST = 16  # two stored rows, of at most eight bytes for a pixel

_CHUNK = struct.Struct(">I4s")
_CHUNK_SIZE = 12
_SIGNATURE_SIZE = 8
_ANCILLARY = 0x20  # in the first character of a chunk's name


def opened(stored: bytes, media: str) -> ImageFile:
    """Open an image and read its header. Raises Damaged."""
    import io

    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    try:
        if media == "png":
            return PngImageFile(io.BytesIO(_without_text(stored)))
        return JpegImageFile(io.BytesIO(stored))
    except MemoryError as error:
        raise Unavailable("there is not enough memory to decode an image") from error
    except Exception as error:  # decoders raise exceptions of any type
        raise Damaged(f"is not a {media.upper()} that can be decoded") from error


def decode(image: ImageFile) -> None:
    """Decode the pixels of an opened image. Raises Damaged."""
    try:
        image.load()
    except MemoryError as error:
        raise Unavailable("there is not enough memory to decode an image") from error
    except Exception as error:
        raise Damaged("is an image that does not decode") from error


def is_quick(stored: bytes, media: str) -> bool:
    """Return whether the number of pixels bounds the time that decoding takes."""
    return media == "png" or stored.count(b"\xff\xda") <= MOST_JPEG_SCANS


def cost(media: str, width: int, height: int) -> int:
    """Return the bytes of memory that decoding takes besides the stored bytes."""
    if media == "jpeg":
        return JPEG_COST * (width + LARGEST_UNIT) * (height + LARGEST_UNIT)
    return PNG_COST * width * height + PNG_COLUMN_COST * width


def _without_text(png: bytes) -> bytes:
    """Return only the chunks that pixels need: text and color profiles may be compressed, and large."""
    parts = [png[:_SIGNATURE_SIZE]]
    position = _SIGNATURE_SIZE
    while position + _CHUNK.size <= len(png):
        size, kind = _CHUNK.unpack_from(png, position)
        if not kind[0] & _ANCILLARY:
            parts.append(png[position : position + _CHUNK_SIZE + size])
        position += _CHUNK_SIZE + size
        if kind == b"IEND":
            break
    return b"".join(parts)
