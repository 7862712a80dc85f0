"""Pictures for people: as Pillow has them, and as pixels. Any thread."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from glassfs.content import EncodedImage, Image
from glassfs.errors import Damaged, Unavailable, Unsuited

if TYPE_CHECKING:
    from PIL.Image import Image as Decoded

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP")
"""What is decoded of files that no container describes. Others of Pillow's formats run programs or are rarely tried."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp")
_MODES = {(1, 8): "L", (2, 8): "LA", (3, 8): "RGB", (4, 8): "RGBA", (1, 16): "I;16"}
_AS_PIXELS = {"1": "L", "P": "RGBA", "PA": "RGBA"}


def head(picture: EncodedImage) -> Decoded:
    """A stored picture of which only the head was decoded. Raises Damaged."""
    return _opened(picture.data.whole(), (picture.media.upper(),))


def decoded(picture: EncodedImage) -> Decoded:
    """Raises Damaged."""
    return _loaded(head(picture))


def of_file(stored: bytes) -> Decoded:
    """A picture in a file of a format that is known here. Raises Damaged."""
    return _loaded(_opened(stored, FORMATS))


def of_raw(image: Image, png: bytes | None) -> Decoded:
    """Raw pixels; ``png`` is the same as a PNG, for kinds of pixels that Pillow has no room for as they are."""
    from PIL import Image as Pillow

    mode = _MODES.get((image.channels, image.bits))
    if mode is None or (image.is_planar and image.channels > 1):
        if png is None:
            raise Unsuited("is no picture that Pillow has a mode for")
        return of_file(png)
    return Pillow.frombytes(mode, (image.width, image.height), image.data.whole())


def is_direct(image: Image) -> bool:
    """Whether ``of_raw`` needs no PNG."""
    return (image.channels, image.bits) in _MODES and not (image.is_planar and image.channels > 1)


def pixels(picture: Decoded) -> Decoded:
    """The picture in a mode whose values are those of pixels: no palette, and no bits."""
    mode = _AS_PIXELS.get(picture.mode)
    return picture if mode is None else picture.convert(mode)


def channels(mode: str) -> int:
    """How many values a pixel of that mode has in ``pixels``."""
    from PIL import Image as Pillow

    return len(Pillow.new(_AS_PIXELS.get(mode, mode), (1, 1)).getbands())


def _opened(stored: Any, formats: tuple[str, ...]) -> Decoded:
    from PIL import Image as Pillow

    try:
        return Pillow.open(io.BytesIO(stored), formats=formats)
    except MemoryError as error:
        raise Unavailable("there is not enough memory for a picture") from error
    except Exception as error:  # decoders raise whatever comes
        raise Damaged("is not a picture that can be decoded") from error


def _loaded(picture: Decoded) -> Decoded:
    try:
        picture.load()
    except MemoryError as error:
        raise Unavailable("there is not enough memory for a picture") from error
    except Exception as error:
        raise Damaged("is a picture that does not decode") from error
    return picture
