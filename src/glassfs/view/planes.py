"""Images as planes of luma and chroma, 4:2:0, scaled to any size, one strip of rows after another.

BT.601 at full range. Alpha is dropped. Samples of 16 bits are scaled by a range, from black to white. Images that must
be scaled or decoded are held in memory as a whole, which is reserved from the cache; others are read in strips. Any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Content, EncodedImage, Image, images
from glassfs.errors import Damaged, TooLarge
from glassfs.lazy import NDArray, np

if TYPE_CHECKING:
    from PIL import Image as Pillow

    Plane = NDArray[np.uint8]

COST = 24
"""Bytes of memory for a pixel while it becomes planes: as stored, as 8 bits, in Pillow, and in planes."""
GRAY = 128
"""Chroma of what has no color."""

Range = tuple[int, int]
FULL: Range = (0, 0xFFFF)

_READY = ("L", "RGB")
_DEEP = ("I", "I;16", "I;16B", "I;16L")


class Planes(NamedTuple):
    """Samples [rows, columns]; blue and red have half as many of both, rounded up."""

    luma: Plane
    blue: Plane
    red: Plane


def strip_rows(width: int) -> int:
    """Return the number of rows in a strip of about half a million pixels, a multiple of a macroblock's."""
    return max(1, (1 << 19) // (width * 16)) * 16


def strip_cost(width: int, height: int) -> int:
    """Return the bytes of memory that making a strip takes."""
    return COST * width * min(height, strip_rows(width))


def strips(
    content: Content, width: int, height: int, cache: BlockCache, shown: Callable[[], Range],
) -> Generator[Planes, None, None]:
    """Yield the planes of an image, scaled to a size, from the first rows to the last.

    ``shown`` is called for the range of 16-bit samples. One thread must iterate and close it.
    """
    step = strip_rows(width)
    spans = [(first, min(step, height - first)) for first in range(0, height, step)]
    if isinstance(content, Image) and (content.width, content.height) == (width, height):
        for first, count in spans:
            yield _planes(_image(content, first, count, shown))
        return
    # Scaling and decoding need all pixels of the image; only its strips are made of that one at a time.
    with _whole(content, cache, shown) as whole:
        for first, count in spans:
            yield _planes(_part(whole, width, height, first, count))


@contextmanager
def rgb(content: Content, width: int, height: int, cache: BlockCache) -> Iterator[Pillow.Image]:
    """Yield an image of 8 bits in the mode RGB, scaled to a size. Raises Damaged or TooLarge."""
    with _whole(content, cache, lambda: FULL) as whole:
        yield _part(whole if whole.mode == "RGB" else whole.convert("RGB"), width, height, 0, height)


def range_of(content: Content, cache: BlockCache) -> Range:
    """Return the minimum and maximum sample of a 16-bit image; FULL for others."""
    if isinstance(content, Image) and content.bits == 16:
        _demand_few(content.width, content.height)
        found = [_extremes(_deep(piece)) for piece in content.data.pieces()]
        return min(least for least, _ in found), max(largest for _, largest in found)
    if isinstance(content, EncodedImage) and content.media == "png":
        with _decoded(content, cache) as decoded:
            if decoded.mode in _DEEP:
                return _extremes(_samples(decoded))
    return FULL


@contextmanager
def _whole(content: Content, cache: BlockCache, shown: Callable[[], Range]) -> Iterator[Pillow.Image]:
    """Yield a whole image, in a mode of ``_READY``."""
    if isinstance(content, Image):
        _demand_few(content.width, content.height)
        with cache.reserved(COST * content.width * content.height):
            yield _image(content, 0, content.height, shown)
    elif isinstance(content, EncodedImage):
        with _decoded(content, cache) as decoded:
            yield _ready(decoded, shown)
    else:
        raise Damaged("is neither pixels nor an encoded image")


@contextmanager
def _decoded(content: EncodedImage, cache: BlockCache) -> Iterator[Pillow.Image]:
    """Yield a decoded image. One that would take too much is refused by its header."""
    data, media = content.data, content.media
    if data.size > images.MOST_BYTES:
        raise TooLarge(f"an image of {data.size} stored bytes is too large for a video")
    with cache.measuring(images.COPIES * data.size):
        stored = data.read(0, data.size)
        # A small file can make a decoder work for minutes: it is refused before anything is decoded.
        if not images.is_quick(stored, media):
            raise TooLarge("an image of so many scans takes too long to decode for a video")
        with images.opened(stored, media) as decoded:
            _demand_few(*decoded.size)
            extra = 0 if decoded.mode in _READY else COST * decoded.width * decoded.height
            with cache.measuring(extra + images.cost(media, *decoded.size)):
                images.decode(decoded)
                yield decoded


def _demand_few(width: int, height: int) -> None:
    if not 0 < width * height <= images.MOST_PIXELS:
        raise TooLarge(f"an image of {width} x {height} pixels is too large for a video")


def _image(image: Image, first: int, rows: int, shown: Callable[[], Range]) -> Pillow.Image:
    """Return rows of pixels from number ``first`` on, without alpha."""
    from PIL import Image as Pillow

    size, count = (image.width, rows), image.channels if image.is_planar else 1
    row = image.width * image.channels // count * image.bits // 8
    planes: list[Any] = [image.data.read((plane * image.height + first) * row, rows * row) for plane in range(count)]
    if image.bits == 16:
        planes = [_shallow(_deep(plane), shown()) for plane in planes]
    if image.is_planar and image.channels > 1:
        bands = [Pillow.frombuffer("L", size, plane, "raw", "L", 0, 1) for plane in planes]
        return Pillow.merge("RGB", bands[:3]) if image.channels > 2 else bands[0]
    mode, raw = {1: ("L", "L"), 2: ("LA", "LA"), 3: ("RGB", "RGB"), 4: ("RGB", "RGBX")}[image.channels]
    found = Pillow.frombytes(mode, size, planes[0], "raw", raw)
    return found.getchannel(0) if mode == "LA" else found


def _ready(decoded: Pillow.Image, shown: Callable[[], Range]) -> Pillow.Image:
    """Return a decoded image in a mode of ``_READY``."""
    from PIL import Image as Pillow

    if decoded.mode in _READY:
        return decoded
    if decoded.mode in _DEEP:
        return Pillow.fromarray(_shallow(_samples(decoded), shown()))
    return decoded.convert("L" if decoded.mode in ("1", "LA") else "RGB")


def _samples(decoded: Pillow.Image) -> NDArray[np.uint16]:
    """Return the samples of a 16-bit image, whatever mode Pillow uses."""
    return np.asarray(decoded).clip(*FULL).astype(np.uint16)


def _deep(stored: bytes) -> NDArray[np.uint16]:
    return np.frombuffer(stored, "<u2")


def _extremes(samples: NDArray[np.uint16]) -> Range:
    return int(samples.min()), int(samples.max())


def _shallow(samples: NDArray[np.uint16], shown: Range) -> NDArray[np.uint8]:
    """Reduce 16 bits to 8; samples outside the range become black or white."""
    least, largest = shown
    levels = (np.arange(FULL[1] + 1, dtype=np.float32) - least) * (255 / max(1, largest - least))
    table = levels.round().clip(0, 255).astype(np.uint8)
    # A table of all 65,536 samples, as computing each pixel takes longer.
    shallow: Plane = table[samples]
    return shallow


def _part(whole: Pillow.Image, width: int, height: int, first: int, count: int) -> Pillow.Image:
    """Return rows of a scaled image. Only these are made: the size may exceed that of the image by far."""
    from PIL import Image as Pillow

    if whole.size == (width, height):
        return whole if count == height else whole.crop((0, first, width, first + count))
    scale = whole.height / height
    box = (0, first * scale, whole.width, min(whole.height, (first + count) * scale))
    return whole.resize((width, count), Pillow.Resampling.BILINEAR, box)


def _planes(strip: Pillow.Image) -> Planes:
    luma = _band(strip.convert("L"), "L")
    if strip.mode == "L":
        gray = np.full((-(-strip.height // 2), -(-strip.width // 2)), GRAY, np.uint8)
        return Planes(luma, gray, gray)
    # Each sample of chroma is the mean of four pixels. So only a quarter of the pixels is converted to chroma.
    half = strip.reduce(2).convert("YCbCr")
    return Planes(luma, _band(half, "Cb"), _band(half, "Cr"))


def _band(image: Pillow.Image, name: str) -> Plane:
    """Return one band of an image, copied once."""
    return np.frombuffer(image.tobytes("raw", name), np.uint8).reshape(image.height, image.width)
