"""Whether the bytes of a stored picture decode, and to how many pixels (docs/formats/kinodb.md §6).

They are bytes of a stranger: what takes much time or memory is judged by its head alone, and room for the rest is taken
from the cache before it is decoded. Any thread, but not one that waits for a block of the cache meanwhile.
"""

from __future__ import annotations

import struct

from glassfs.cache import BlockCache
from glassfs.content import Data
from glassfs.errors import Unavailable

DECODED_BYTES = 16 << 20  # of a stored picture that are read to see whether it decodes
DECODED_PIXELS = 16 << 20  # of a picture that is decoded for that
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


def decoded_size(
    data: Data, media: str, cache: BlockCache, most_pixels: int = DECODED_PIXELS,
) -> tuple[int, int] | None:
    """Width and height of a picture, None where it does not decode. One of more pixels need not decode."""
    stored = COPIES * min(data.size, DECODED_BYTES)
    with cache.taken(stored):
        size, is_quick = _look(data, media, is_decoded=False)
    if size is None or not is_quick or size[0] * size[1] > min(most_pixels, DECODED_PIXELS):
        return size
    with cache.taken(stored + _cost(media, *size)):
        return _look(data, media, is_decoded=True)[0]


def _look(data: Data, media: str, is_decoded: bool) -> tuple[tuple[int, int] | None, bool]:
    """Width and height, and whether the pixels are decoded soon."""
    import io

    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    stored = data.read(0, min(data.size, DECODED_BYTES))
    is_quick = len(stored) == data.size and (media == "png" or stored.count(b"\xff\xda") <= MOST_JPEG_SCANS)
    try:
        if media == "png":
            stored = _without_text(stored)
        with (JpegImageFile if media == "jpeg" else PngImageFile)(io.BytesIO(stored)) as picture:
            if is_decoded:
                picture.load()
            return picture.size, is_quick
    except MemoryError as error:
        raise Unavailable("there is not enough memory to decode a picture") from error
    except Exception:  # decoders raise whatever comes
        return None, False


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


def _cost(media: str, width: int, height: int) -> int:
    """The memory that decoding takes beside the stored bytes."""
    if media == "jpeg":
        return JPEG_COST * (width + LARGEST_UNIT) * (height + LARGEST_UNIT)
    return PNG_COST * width * height + PNG_COLUMN_COST * width
