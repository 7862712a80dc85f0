"""Stored JPEG and PNG pictures, decoded with Pillow.

They are bytes of a stranger: what takes much time or memory is judged by the head alone, before anything is decoded,
and room for it is to be taken from the cache (``COPIES`` of the stored bytes, and ``cost``). Any thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glassfs.errors import Damaged, Unavailable

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

MOST_BYTES = 16 << 20  # of a stored picture that is decoded
MOST_PIXELS = 16 << 20
MOST_JPEG_SCANS = 100  # a progressive JPEG decodes all of its pixels in each

COPIES = 4  # of the stored bytes, while they are handed on
LARGEST_UNIT = 32  # a JPEG is decoded in units of so many rows and columns at the most
JPEG_COST = 12  # of a pixel: four bytes of it, and four coefficients of two bytes
PNG_COST = 4
PNG_COLUMN_COST = 16  # two rows are held as they are stored, of eight bytes a pixel at the most

_CHUNK = struct.Struct(">I4s")
_CHUNK_SIZE = 12
_SIGNATURE_SIZE = 8
_ANCILLARY = 0x20  # in the first letter of a chunk's name


def opened(stored: bytes, media: str) -> ImageFile:
    """A picture of which the head is read. Raises Damaged."""
    import io

    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    try:
        if media == "png":
            return PngImageFile(io.BytesIO(_without_text(stored)))
        return JpegImageFile(io.BytesIO(stored))
    except MemoryError as error:
        raise Unavailable("there is not enough memory to decode a picture") from error
    except Exception as error:  # decoders raise whatever comes
        raise Damaged(f"is not a {media.upper()} that can be decoded") from error


def decode(image: ImageFile) -> None:
    """Makes its pixels. Raises Damaged."""
    try:
        image.load()
    except MemoryError as error:
        raise Unavailable("there is not enough memory to decode a picture") from error
    except Exception as error:
        raise Damaged("is a picture that does not decode") from error


def is_quick(stored: bytes, media: str) -> bool:
    """Whether it takes no longer to decode than its pixels tell."""
    return media == "png" or stored.count(b"\xff\xda") <= MOST_JPEG_SCANS


def cost(media: str, width: int, height: int) -> int:
    """The memory that decoding takes beside the stored bytes."""
    if media == "jpeg":
        return JPEG_COST * (width + LARGEST_UNIT) * (height + LARGEST_UNIT)
    return PNG_COST * width * height + PNG_COLUMN_COST * width


def _without_text(png: bytes) -> bytes:
    """The chunks that pixels need: text and colour profiles may be compressed, and large."""
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
