"""Images and pictures as planes of luma and chroma, 4:2:0, of any size: a strip of rows after another.

BT.601 at full range, what JPEG has: so a JPEG need not be turned into RGB first. Alpha is left out. Samples of 16 bits
are shown by a range, from black to white. Pixels of the right size are read a strip at a time; what has to be scaled or
decoded is held as a whole, up to ``MOST_PIXELS``, and room for it is taken from the cache. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Content, Data, EncodedImage, Image, images
from glassfs.errors import Damaged, TooLarge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as Pillow

    Plane = NDArray[np.uint8]

STRIP = 1 << 19
"""Pixels in a strip, but for pictures that are wider than so many sixteenths."""
ROWS = 16
COST = 24
"""Memory that a pixel takes while it is turned into planes: stored, of 8 bits, as Pillow has it, and in planes."""
MOST_PIXELS = images.MOST_PIXELS
GREY = 128

Range = tuple[int, int]
FULL: Range = (0, 0xFFFF)

_READY = ("L", "RGB", "YCbCr")
_DEEP = ("I", "I;16", "I;16B", "I;16L")


class Planes(NamedTuple):
    """Samples [rows, columns]; of blue and red half as many of both, rounded up."""

    luma: Plane
    blue: Plane
    red: Plane


def strip_rows(width: int) -> int:
    """The rows in a strip, whole macroblocks of them."""
    return max(1, STRIP // (width * ROWS)) * ROWS


def strip_cost(width: int, height: int) -> int:
    """The memory that it takes to make a strip of planes."""
    return COST * width * min(height, strip_rows(width))


def strips(
    content: Content, width: int, height: int, cache: BlockCache, shown: Callable[[], Range],
) -> Generator[Planes, None, None]:
    """The planes of an image or a picture, scaled to a size, from the first rows to the last.

    ``shown`` is asked for the range of 16 bits. To be gone through, and closed, by one thread.
    """
    step = strip_rows(width)
    spans = [(first, min(step, height - first)) for first in range(0, height, step)]
    if isinstance(content, Image) and (content.width, content.height) == (width, height):
        for first, count in spans:
            with cache.waiting():
                stored = _stored(content, first, count)
            yield _planes(_image(content, stored, count, shown))
        return
    with _whole(content, cache, shown) as whole:
        for first, count in spans:
            yield _planes(_part(whole, width, height, first, count))


def range_of(content: Content, cache: BlockCache) -> Range:
    """The least and the largest sample of an image or picture of 16 bits; FULL for others."""
    if isinstance(content, Image) and content.bits == 16:
        _demand_few(content.width, content.height, images.MOST_PIXELS * 4)
        found = [_extremes(_deep(piece)) for piece in content.data.pieces()]
        return min(least for least, _ in found), max(largest for _, largest in found)
    if isinstance(content, EncodedImage) and content.media == "png":
        with _decoded(content, cache) as picture:
            if picture.mode in _DEEP:
                return _extremes(_samples(picture))
    return FULL


@contextmanager
def _whole(content: Content, cache: BlockCache, shown: Callable[[], Range]) -> Iterator[Pillow.Image]:
    """All of an image or a picture, of a mode in ``_READY``."""
    if isinstance(content, Image):
        _demand_few(content.width, content.height)
        with cache.reserved(COST * content.width * content.height):
            with cache.waiting():
                stored = _stored(content, 0, content.height)
            yield _image(content, stored, content.height, shown)
    elif isinstance(content, EncodedImage):
        with _decoded(content, cache) as picture:
            yield _ready(picture, shown)
    else:
        raise Damaged("is neither pixels nor a picture")


@contextmanager
def _decoded(content: EncodedImage, cache: BlockCache) -> Iterator[Pillow.Image]:
    """A picture, decoded. One that would take too much is refused by its head."""
    data, media = content.data, content.media
    if data.size > images.MOST_BYTES:
        raise TooLarge(f"a picture of {data.size} stored bytes is too large for a film to be made of it")
    with cache.reserved(images.COPIES * data.size):
        stored = _read(data, cache)
        if not images.is_quick(stored, media):
            raise TooLarge("a picture of so many scans takes too long to decode for a film")
        with images.opened(stored, media) as picture:
            _demand_few(*picture.size)
            extra = 0 if picture.mode in _READY else COST * picture.width * picture.height
            with cache.reserved(extra + images.cost(media, *picture.size)):
                if _is_ycbcr(picture):
                    picture.draft("YCbCr", None)
                images.decode(picture)
                yield picture


def _read(data: Data, cache: BlockCache) -> bytes:
    with cache.waiting():
        return data.read(0, data.size)


def _is_ycbcr(picture: Any) -> bool:
    """Whether a JPEG surely is stored as YCbCr, and so can be left as it is."""
    if picture.format != "JPEG" or picture.mode != "RGB":
        return False
    transform = picture.info.get("adobe_transform")
    return transform == 1 or (transform is None and "jfif" in picture.info)


def _demand_few(width: int, height: int, most: int = MOST_PIXELS) -> None:
    if not 0 < width * height <= most:
        raise TooLarge(f"a picture of {width} x {height} pixels is too large for a film to be made of it")


def _stored(image: Image, first: int, count: int) -> list[bytes]:
    """The bytes of so many rows, plane by plane."""
    planes = image.channels if image.is_planar else 1
    row = image.width * image.channels // planes * image.bits // 8
    return [image.data.read((plane * image.height + first) * row, count * row) for plane in range(planes)]


def _image(image: Image, stored: list[bytes], rows: int, shown: Callable[[], Range]) -> Pillow.Image:
    """Rows of pixels, without alpha."""
    from PIL import Image as Pillow

    size = image.width, rows
    planes: list[Any] = list(stored)
    if image.bits == 16:
        planes = [_shallow(_deep(plane), shown()) for plane in planes]
    if image.is_planar and image.channels > 1:
        bands = [Pillow.frombuffer("L", size, plane, "raw", "L", 0, 1) for plane in planes]
        return Pillow.merge("RGB", bands[:3]) if image.channels > 2 else bands[0]
    mode, raw = {1: ("L", "L"), 2: ("LA", "LA"), 3: ("RGB", "RGB"), 4: ("RGB", "RGBX")}[image.channels]
    found = Pillow.frombytes(mode, size, planes[0], "raw", raw)
    return found.getchannel(0) if mode == "LA" else found


def _ready(picture: Pillow.Image, shown: Callable[[], Range]) -> Pillow.Image:
    """A decoded picture, of a mode in ``_READY``."""
    from PIL import Image as Pillow

    if picture.mode in _READY:
        return picture
    if picture.mode in _DEEP:
        return Pillow.fromarray(_shallow(_samples(picture), shown()))
    return picture.convert("L" if picture.mode in ("1", "LA") else "RGB")


def _samples(picture: Pillow.Image) -> NDArray[np.uint16]:
    """Those of a picture of 16 bits, whatever Pillow holds them in."""
    import numpy as np

    return np.asarray(picture).clip(*FULL).astype(np.uint16)


def _deep(stored: bytes) -> NDArray[np.uint16]:
    import numpy as np

    return np.frombuffer(stored, "<u2")


def _extremes(samples: NDArray[np.uint16]) -> Range:
    return int(samples.min()), int(samples.max())


def _shallow(samples: NDArray[np.uint16], shown: Range) -> NDArray[np.uint8]:
    """8 bits of 16, what is outside of the range black or white."""
    import numpy as np

    least, largest = shown
    levels = (np.arange(FULL[1] + 1, dtype=np.float32) - least) * (255 / max(1, largest - least))
    table = levels.round().clip(0, 255).astype(np.uint8)
    shallow: Plane = table[samples]
    return shallow


def _part(whole: Pillow.Image, width: int, height: int, first: int, count: int) -> Pillow.Image:
    """Rows of a picture that is scaled. Only they are made: the size may be much larger than the picture."""
    from PIL import Image as Pillow

    if whole.size == (width, height):
        return whole if count == height else whole.crop((0, first, width, first + count))
    scale = whole.height / height
    box = (0, first * scale, whole.width, min(whole.height, (first + count) * scale))
    return whole.resize((width, count), Pillow.Resampling.BILINEAR, box)


def _planes(strip: Pillow.Image) -> Planes:
    import numpy as np

    if strip.mode == "L":
        luma = np.asarray(strip)
        grey = np.full((-(-strip.height // 2), -(-strip.width // 2)), GREY, np.uint8)
        return Planes(luma, grey, grey)
    half = strip.reduce(2)
    if strip.mode == "RGB":
        # Luma and chroma each by themselves: of chroma a quarter of the pixels is turned.
        return Planes(np.asarray(strip.convert("L")), *_chroma(half.convert("YCbCr")))
    return Planes(np.asarray(strip.getchannel(0)), *_chroma(half))


def _chroma(ycbcr: Pillow.Image) -> tuple[Plane, Plane]:
    import numpy as np

    return np.asarray(ycbcr.getchannel(1)), np.asarray(ycbcr.getchannel(2))
