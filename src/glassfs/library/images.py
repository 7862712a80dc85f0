"""Convert contents and files to Pillow images and to pixels. Any thread."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from glassfs.content import EncodedImage, Image
from glassfs.errors import Damaged, Unavailable

if TYPE_CHECKING:
    from PIL.Image import Image as Decoded

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP")
"""Formats decoded in plain files. Other formats of Pillow run programs, or are rarely tested."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp")
_MODES = {(1, 8): "L", (2, 8): "LA", (3, 8): "RGB", (4, 8): "RGBA", (1, 16): "I;16"}
_AS_PIXELS = {"1": "L", "P": "RGBA", "PA": "RGBA"}


def head(image: EncodedImage) -> Decoded:
    """Return an encoded image of which only the header was decoded. Raises Damaged."""
    return _opened(image.data.whole(), (image.media.upper(),))


def decoded(image: EncodedImage) -> Decoded:
    """Return an encoded image, decoded. Raises Damaged."""
    return _loaded(head(image))


def of_file(stored: bytes) -> Decoded:
    """Return the image in a plain file of one of ``FORMATS``. Raises Damaged."""
    return _loaded(_opened(stored, FORMATS))


def of_raw(image: Image) -> Decoded | None:
    """Return an image of raw pixels, or None if Pillow has no mode for them."""
    from PIL import Image as Pillow

    mode = _MODES.get((image.channels, image.bits))
    if mode is None or (image.is_planar and image.channels > 1):
        return None
    return Pillow.frombytes(mode, (image.width, image.height), image.data.whole())


def pixels(image: Decoded) -> Decoded:
    """Return the image in a mode whose values are pixels: no palette, no packed bits."""
    mode = _AS_PIXELS.get(image.mode)
    return image if mode is None else image.convert(mode)


def channels(mode: str) -> int:
    """Return how many values a pixel of a mode has in ``pixels``."""
    from PIL import Image as Pillow

    return len(Pillow.new(_AS_PIXELS.get(mode, mode), (1, 1)).getbands())


def _opened(stored: Any, formats: tuple[str, ...]) -> Decoded:
    from PIL import Image as Pillow

    with _as_damage("is not an image that can be decoded"):
        return Pillow.open(io.BytesIO(stored), formats=formats)


def _loaded(image: Decoded) -> Decoded:
    with _as_damage("is an image that cannot be decoded"):
        image.load()
    return image


@contextmanager
def _as_damage(reason: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise Unavailable("there is not enough memory for an image") from error
    except Exception as error:  # decoders raise exceptions of any kind
        raise Damaged(reason) from error
