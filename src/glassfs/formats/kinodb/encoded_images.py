"""Whether stored image bytes decode, and to how many pixels (docs/formats/kinodb.md §6).

The bytes are untrusted: memory for decoding is reserved first. Any thread may use this module, except one that waits
for a block of the cache.
"""

from __future__ import annotations

from glassfs.cache import BlockCache
from glassfs.content import Data, images
from glassfs.errors import Damaged


def decoded_size(
    data: Data, media: str, cache: BlockCache, most_pixels: int = images.MOST_PIXELS,
) -> tuple[int, int] | None:
    """Return width and height of an image, or None if it does not decode.

    An image of more than ``most_pixels`` pixels is not decoded; its size is that of its header.
    """
    stored = images.COPIES * min(data.size, images.MOST_BYTES)
    with cache.reserved(stored):
        size, is_quick = _inspect(data, media, is_decoded=False)
    if size is None or not is_quick or size[0] * size[1] > min(most_pixels, images.MOST_PIXELS):
        return size
    with cache.reserved(stored + images.cost(media, *size)):
        return _inspect(data, media, is_decoded=True)[0]


def _inspect(data: Data, media: str, is_decoded: bool) -> tuple[tuple[int, int] | None, bool]:
    """Return width and height, and whether decoding the pixels is quick."""
    stored = data.read(0, min(data.size, images.MOST_BYTES))
    is_quick = len(stored) == data.size and images.is_quick(stored, media)
    try:
        with images.opened(stored, media) as image:
            if is_decoded:
                images.decode(image)
            return image.size, is_quick
    except Damaged:
        return None, False
