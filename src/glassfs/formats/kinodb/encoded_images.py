"""Whether the bytes of a stored picture decode, and to how many pixels (docs/formats/kinodb.md §6).

They are bytes of a stranger: room for what decoding takes is taken from the cache before. Any thread, but not one that
waits for a block of the cache meanwhile.
"""

from __future__ import annotations

from glassfs.cache import BlockCache
from glassfs.content import Data, images
from glassfs.errors import Damaged


def decoded_size(
    data: Data, media: str, cache: BlockCache, most_pixels: int = images.MOST_PIXELS,
) -> tuple[int, int] | None:
    """Width and height of a picture, None where it does not decode. One of more pixels need not decode."""
    stored = images.COPIES * min(data.size, images.MOST_BYTES)
    with cache.reserved(stored):
        size, is_quick = _look(data, media, is_decoded=False)
    if size is None or not is_quick or size[0] * size[1] > min(most_pixels, images.MOST_PIXELS):
        return size
    with cache.reserved(stored + images.cost(media, *size)):
        return _look(data, media, is_decoded=True)[0]


def _look(data: Data, media: str, is_decoded: bool) -> tuple[tuple[int, int] | None, bool]:
    """Width and height, and whether the pixels are decoded soon."""
    stored = data.read(0, min(data.size, images.MOST_BYTES))
    is_quick = len(stored) == data.size and images.is_quick(stored, media)
    try:
        with images.opened(stored, media) as image:
            if is_decoded:
                images.decode(image)
            return image.size, is_quick
    except Damaged:
        return None, False
