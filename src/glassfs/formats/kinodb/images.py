"""The images of an episode as contents (§6): what each image is, numbered series of images, and videos.

Any thread may use this module, except one that waits for a block of the cache: some images are decoded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple
from weakref import ref

from glassfs.cache import BlockCache
from glassfs.content import (
    Blob,
    Content,
    Data,
    EncodedImage,
    Extent,
    Fault,
    Group,
    Image,
    Member,
    Omitted,
    Series,
    Video,
)
from glassfs.content import images as decoder
from glassfs.content.allowance import OBJECT
from glassfs.errors import Damaged
from glassfs.formats.kinodb.scan import IMAGE_COST, MEDIA, Scan
from glassfs.formats.registry import Opening
from glassfs.source import Source

MOST_SERIES = 64  # cameras that are checked for being regular, each in a pass of its own
DECODED_PIXELS = 64 << 20  # of all images in one listing


class Images(Group):
    """The images of an episode. ``offset`` and ``length`` may be invalid; ``place`` is that of the episode.

    ``rate`` returns the frames per second, 0 if unknown. It is the group itself: one that has functions of it would be
    in a cycle of references, and stay in memory until the garbage collector of a mount looks at old objects.
    """

    def __init__(
        self, opening: Opening, place: str, offset: int, length: int, num_frames: int, rate: Callable[[], float],
    ) -> None:
        self.key, self._warned = b"images", ""
        self._opening = opening
        self._source = opening.source
        self._place = f"{place}/images"
        self._offset, self._length = offset, length
        self._num_frames = num_frames
        self._rate = rate
        self._real_scan: Scan | None = None
        """The full scan, if a prediction turned out wrong."""
        self._last_scan: Callable[[], Scan | None] = lambda: None
        """Returns the scan that was made last as long as an image refers to it."""

    def members(self) -> Iterator[Member]:
        """Yield the images. Raises Damaged if a section that should hold images shows none."""
        scan = self._shown_scan()
        lost = [Member((b"",), Omitted(b"", scan.error, is_damage=True))] if scan.error else []
        return chain(self._members(scan), lost)

    def find(self, camera: bytes) -> Series | None:
        """Return the series that ``members`` yields for a camera; None if it yields others or the scan has an error."""
        scan = self._shown_scan()
        for kind, images in () if scan.error else _series(scan).items():
            if scan.types[kind].camera == camera and b"/" not in camera:
                return self._numbered(scan, kind, images)
        self._last_scan = lambda: scan  # kept for ``members``, which is asked next
        return None

    def _shown_scan(self) -> Scan:
        scan = self._scan()
        if scan.error and scan.error != self._warned:
            self._opening.warn(scan.error, self._place)
            self._warned = scan.error
        if scan.error and not scan.frames:
            raise self._source.damage(scan.error, self._place)
        return scan

    def meanings(self) -> Iterator[Member]:
        """Yield a video per camera, with the size of its first image. Raises Damaged as ``members`` does."""
        scan = self._shown_scan()
        cameras: dict[bytes, int] = {}
        for index, kind in enumerate(scan.types):
            cameras.setdefault(kind.camera, index)
        for camera, index in cameras.items():
            kind = scan.types[index]
            kinds = {index for index, one in enumerate(scan.types) if one.camera == camera}
            images = array("I", (image for image, of in enumerate(scan.type_of) if of in kinds))
            frames = _picked(scan.frames, images)
            yield Member(tuple(camera.split(b"/")), Video(
                camera, self._num_frames, self._rate, kind.width, kind.height,
                partial(self._frame, scan, images, frames), frames,
            ))

    def check(self) -> Iterator[Fault]:
        scan = self._scan(may_predict=False)
        if scan.error:
            yield Fault(self._place, scan.error)
        elif scan.position < scan.end:
            yield Fault(self._place, f"{scan.end - scan.position} bytes follow the last frame")
        for image, frame in enumerate(scan.frames):
            reason = self._image_fault(scan, image)
            if reason:
                camera = scan.types[scan.type_of[image]].camera.decode("utf-8", "backslashreplace")
                yield Fault(f"{self._place}/{camera}/{frame:06d}", reason)

    def _scan(self, may_predict: bool = True) -> Scan:
        """Return a scan of the section: one that was kept, or a prediction, if it may be that."""
        source, start, end = self._source, self._offset, min(self._offset + self._length, self._source.size)
        if start > end:
            raise source.damage("the image section lies outside the file", self._place)
        if self._real_scan is not None:
            return self._real_scan
        if not may_predict:
            return self._scanned(start, end, may_predict=False)
        last = self._last_scan()
        if last is not None:
            self._last_scan = ref(last)
            return last
        # The catalogue has what earlier processes found, which matters where the section is large or remote: a scan
        # reads a piece for each image there. A prediction is not kept, as it took two reads and may be wrong.
        name = b"images %d %d %d" % (start, self._length, self._num_frames)
        known = self._opening.found(name)
        scan = None if known is None else Scan.unpacked(known, start, end)
        if scan is None:
            scan = self._scanned(start, end, source.is_remote)
            if not scan.error and not scan.headers:
                self._opening.keep(name, scan.packed())
        self._last_scan = ref(scan)
        return scan

    def _scanned(self, start: int, end: int, may_predict: bool) -> Scan:
        """Scan the section in the layout in which it was written.

        Files from before the format byte also declare version 0.1. In the right layout the last frame ends with the
        section (§8). If that holds for both, or for neither as the section is cut off, the older layout is chosen only
        if it explains all its images to the byte.
        """
        scan = Scan.of(
            self._source, start, end, self._num_frames, True, self._opening.allowance.part(), may_predict,
        )
        if scan.is_exact and scan.is_all_confirmed:
            return scan
        older = Scan.of(self._source, start, end, self._num_frames, False, self._opening.allowance.part())
        if scan.is_exact == older.is_exact:
            is_better = older.is_all_confirmed and (older.is_exact or len(older.frames) > len(scan.frames))
            return older if is_better else scan
        return scan if scan.is_exact else older

    def _members(self, scan: Scan) -> Iterator[Member]:
        paths, series = [tuple(kind.camera.split(b"/")) for kind in scan.types], _series(scan)
        for kind, images in series.items():
            yield Member(paths[kind], self._numbered(scan, kind, images))
        if len(series) == len(paths):
            return
        listed = len(scan.frames) - sum(map(len, series.values()))
        self._opening.allowance.part().take(OBJECT * listed, "images that are listed one by one")
        pixels_left = DECODED_PIXELS
        latest: dict[bytes, int] = {}
        repeats: dict[bytes, int] = {}
        for image, (index, frame) in enumerate(zip(scan.type_of, scan.frames, strict=True)):
            if index in series:
                continue
            camera, media, data = scan.types[index].camera, MEDIA[scan.media[image]], self.data(scan, image)
            if media and scan.is_raw_size(image):
                # Raw pixels may begin like a signature; data that decode are not raw pixels (§6).
                size = decoded_size(data, media, self._opening.cache, pixels_left)
                pixels_left -= size[0] * size[1] if size else 0
                media = media if size else None
            number = b"%06d" % frame
            # A frame may have several images of one camera. The first has the number of the frame as its name, and the
            # others get a suffix here, as the tree would number them in the order of all their types.
            if latest.get(camera) == frame:
                repeats[camera] += 1
                number += b"~%d" % repeats[camera]
            else:
                latest[camera], repeats[camera] = frame, 1
            yield Member((*paths[index], number), _shown(scan, image, media, data))

    def _numbered(self, scan: Scan, kind: int, images: Sequence[int]) -> Series:
        media = MEDIA[scan.media[images[0]]]
        numbered = _SeriesImages(self if scan.headers else None, self._source, scan, images, media)
        return Series(
            scan.types[kind].camera, range(len(images)), numbered.item, digits=6,
            kept=8 * OBJECT + IMAGE_COST * len(images), sizes=numbered.sizes, is_uniform=scan.is_raw_size(images[0]),
        )

    def _frame(self, scan: Scan, images: array[int], frames: array[int], number: int) -> Content:
        """Return the image of a frame; of several images with one name, the first."""
        image = images[bisect_left(frames, number)]
        data, media = self.data(scan, image), MEDIA[scan.media[image]]
        if media and scan.is_raw_size(image):
            # Limited to the declared pixels, so that testing many images takes no longer than reading them.
            kind = scan.types[scan.type_of[image]]
            media = media if decoded_size(data, media, self._opening.cache, kind.width * kind.height) else None
        return _shown(scan, image, media, data)

    def data(self, scan: Scan, image: int) -> Data:
        """Return the bytes of an image, whose offset may be a prediction."""
        stored = _stored(self._source, scan, image)
        if scan.headers:
            return _PredictedImage(stored, scan.headers[image % len(scan.headers)], lambda: self._find(scan, image))
        return stored

    def _find(self, scan: Scan, image: int) -> int:
        """Return the actual offset of a wrongly predicted image: that of its camera and type in its frame.

        Raises Damaged if there is none.
        """
        wanted = scan.types[scan.type_of[image]]
        # One image at another offset shows that the frames are not alike: the scan of all frames replaces the
        # prediction for every later image, too.
        real = self._real_scan = self._scan(may_predict=False)
        first = bisect_left(real.frames, scan.frames[image])
        for number in range(first, bisect_right(real.frames, scan.frames[image])):
            kind = real.types[real.type_of[number]]
            if kind._replace(format=wanted.format) == wanted and real.is_raw_size(number):
                return real.starts[number]
        raise self._source.damage(f"there is no image at {scan.starts[image]}, where one was expected", self._place)

    def _image_fault(self, scan: Scan, image: int) -> str | None:
        """Return what is wrong with an image; glassfs shows its bytes anyway, KinoDB may drop it silently (§6)."""
        kind, size = scan.types[scan.type_of[image]], scan.sizes[image]
        if kind.camera.decode("utf-8", "ignore").encode() != kind.camera:
            return "the camera's name is not UTF-8"
        fits = size == kind.raw_size
        declared = f"{kind.width} x {kind.height}"
        if not kind.format:
            return None if fits else f"holds {size} raw bytes, but {declared} x {kind.channels} are declared"
        media = MEDIA[scan.media[image]]
        pixels = decoded_size(_stored(self._source, scan, image), media, self._opening.cache) if media else None
        if pixels is None:
            held = "holds raw pixels, which KinoDB omits" if fits else "does not hold a complete JPEG or PNG"
            return f"is marked as compressed, but {held}"
        if pixels != (kind.width, kind.height):
            return f"is {pixels[0]} x {pixels[1]} pixels, but {declared} are declared"
        return None


class _SeriesImages(NamedTuple):
    """The images of one camera, one of each frame, for a series.

    It holds as few objects as possible, and ``Images`` only if its offsets are predictions: there may be one for each
    camera of each episode of a dataset, and the garbage collector visits all that they hold.
    """

    images: Images | None
    source: Source
    scan: Scan
    numbers: Sequence[int]
    media: str | None

    def item(self, number: int) -> Content:
        scan, image = self.scan, self.numbers[number]
        data = self.images.data(scan, image) if self.images else _stored(self.source, scan, image)
        return _shown(scan, image, self.media, data)

    def sizes(self, start: int, stop: int) -> Iterator[int]:
        return map(self.scan.sizes.__getitem__, self.numbers[start:stop])


def _stored(source: Source, scan: Scan, image: int) -> Extent:
    return Extent(source, scan.starts[image], scan.sizes[image])


def _shown(scan: Scan, image: int, media: str | None, data: Data) -> Content:
    """Return an image, stored as ``media`` or, if that is None, as raw pixels."""
    kind = scan.types[scan.type_of[image]]
    if media:
        return EncodedImage(kind.camera, data, media)
    if 0 < data.size == kind.raw_size and kind.channels <= 4:
        return Image(kind.camera, data, kind.width, kind.height, kind.channels)
    return Blob(kind.camera, data)


def decoded_size(
    data: Data, media: str, cache: BlockCache, most_pixels: int = decoder.MOST_PIXELS,
) -> tuple[int, int] | None:
    """Return width and height of an untrusted image, or None if it does not decode.

    An image of more than ``most_pixels`` pixels is not decoded; its size is that of its header.
    """
    with cache.reserved(decoder.COPIES * min(data.size, decoder.MOST_BYTES)):
        stored = data.read(0, min(data.size, decoder.MOST_BYTES))
        try:
            with decoder.opened(stored, media) as image:
                width, height = image.size
                is_quick = len(stored) == data.size and decoder.is_quick(stored, media)
                if is_quick and width * height <= min(most_pixels, decoder.MOST_PIXELS):
                    with cache.reserved(decoder.cost(media, width, height)):
                        decoder.decode(image)
                return width, height
        except Damaged:
            return None


class _PredictedImage(Extent):
    """An image of a remote episode, where it is if all frames are alike, as they usually are: ``header`` precedes it.

    Otherwise ``find`` scans all frames and returns the image's offset. It raises Damaged if there is no such image.
    """

    def __init__(self, predicted: Extent, header: bytes, find: Callable[[], int]) -> None:
        super().__init__(predicted.source, predicted.offset, predicted.size)
        self._header, self._find = header, find

    def read_into(self, buffer: memoryview, offset: int) -> None:
        size = len(self._header)
        is_right = self.source.read(self.offset - size, size) == self._header
        self.source.read_into(buffer, (self.offset if is_right else self._find()) + offset)


def _series(scan: Scan) -> dict[int, Sequence[int]]:
    """Return image types with exactly one image of one kind per frame from frame 0 on, and those images.

    Such a camera contains no other camera's directory, and no image needs decoding to determine its kind.
    """
    series: dict[int, Sequence[int]] = {}
    count, total, paths = len(scan.types), len(scan.frames), [kind.camera + b"/" for kind in scan.types]
    if not 0 < count <= MOST_SERIES:
        return series
    # Mostly each frame has the same images in the same order: then those of a camera are a range, which takes no memory
    # and no pass.
    is_cyclic = scan.type_of == array("I", range(count)) * (total // count)
    for index, path in enumerate(paths):
        if sum([other.startswith(path) or path.startswith(other) for other in paths]) > 1:
            continue
        images: Sequence[int] = range(index, total, count)
        if not is_cyclic:
            images = array("I", (image for image in range(total) if scan.type_of[image] == index))
        number, frames, media = len(images), _picked(scan.frames, images), _picked(scan.media, images)
        if not number or frames != array("I", range(number)) or media.count(media[0]) < number:
            continue
        raw = _picked(scan.sizes, images).count(scan.types[index].raw_size)
        if raw == 0 or (raw == number and not media[0]):
            series[index] = images
    return series


def _picked(column: array[int], images: Sequence[int]) -> array[int]:
    if isinstance(images, range):
        return column[images.start :: images.step]
    return array(column.typecode, map(column.__getitem__, images))
