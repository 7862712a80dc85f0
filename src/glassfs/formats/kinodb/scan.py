"""Locating the images of an episode: one pass over its image section (§6), which has no table of offsets.

A scan belongs to the thread that makes it until it is complete; then any thread may read it. A scan reads headers and
names, and skips pixels.
"""

from __future__ import annotations

import re
import struct
import threading
from array import array
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, chain, cycle, islice, repeat
from operator import add
from typing import Any, NamedTuple

from glassfs.errors import Damaged
from glassfs.source import Reader, Source

MOST_IMAGES = 400_000  # listed in one episode
MOST_NAME_BYTES = 16 << 20  # of camera names in one episode, each directory counted as DIRECTORY bytes
DIRECTORY = 128
FAR = 8 << 10  # larger images are skipped, smaller ones are read along
NEAR_WINDOW, WINDOW, WIDE_WINDOW = 512, 64 << 10, 256 << 10
MANY_IMAGES = 4096  # of a section; numbers of more are not remembered for other sections
FEW_IMAGES = 8  # of a frame, whose headers are remembered for other sections
IMAGE_HEAD = 256  # bytes that hold the header of most images and the signature of their data

MOST_CAMERAS, CAMERA_BYTES = 32, 512
"""Limits of the names, and of their bytes in all, that ``first_images`` returns."""

PREDICT_FROM_BYTES = 16 << 20  # smaller remote sections are scanned

MEDIA = (None, "jpeg", "png")
_SIGNATURES = (b"", b"\xff\xd8\xff", b"\x89PNG")
_LENGTH = struct.Struct("<I")
_Unpack = Callable[[memoryview, int], tuple[Any, ...]]
_WITH_FORMAT, _WITHOUT_FORMAT = struct.Struct("<IIBB"), struct.Struct("<IIB")
_SHAPES = {shape.size: shape for shape in (_WITH_FORMAT, _WITHOUT_FORMAT)}
_PACKED, _TYPE = struct.Struct("<BQIIIB"), struct.Struct("<IIIBB")  # of a packed scan: its head, and an image type
_SIZE = array("I").itemsize
IMAGE_SIZE, REGULAR_IMAGE_SIZE = 21, 12  # bytes of an image in a packed scan: the latter if its frames are alike
_ZEROS = re.compile(rb"\0+")


class ImageType(NamedTuple):
    """The header fields that images have in common. ``raw_size`` is width x height x channels."""

    camera: bytes
    width: int
    height: int
    channels: int
    format: int
    raw_size: int


_Pattern = tuple[tuple[bytes, int], ...]
"""The header and the kind of data of each image of a frame."""


class _Window(threading.local):
    """Bytes of a section that a scan of this thread looks at, allocated once.

    ``pattern`` is that of the frames scanned last, and ``shape`` their layout: sections of a recording are alike.
    """

    pattern: _Pattern = ()
    shape: struct.Struct | None = None

    def __init__(self) -> None:
        self.bytes = bytearray(WIDE_WINDOW)


_window = _Window()


class Scan:
    """One pass over the image section ``[start, end)``.

    Images are kept as numbers, 21 bytes each. ``error`` says why the pass ended before the last frame; of the frame
    where it ended only images confirmed by their size or signature are kept, as a wrong count or length may have led
    anywhere. ``position`` is the end of the last whole frame.

    With ``may_predict``, a section whose frames are probably alike is not scanned beyond its second frame; ``headers``
    then holds the bytes before each image of a frame.
    """

    def __init__(
        self, source: Source, start: int, end: int, num_frames: int, has_format: bool, may_predict: bool = False,
    ) -> None:
        self.types: list[ImageType] = []
        self.type_of, self.frames, self.sizes = array("I"), array("I"), array("I")
        self.starts, self.media = array("Q"), array("B")
        self.end = end
        self.position = start
        self.error: str | None = None
        self.headers: list[bytes] = []
        self._is_regular: bool | None = None
        self._may_predict = may_predict
        self._shape = _WITH_FORMAT if has_format else _WITHOUT_FORMAT
        self._run(source, num_frames, _window.bytes)

    def packed(self) -> bytes:
        """Return the scan as bytes for ``unpacked``, in the byte order of this machine.

        Of images in regular frames only sizes and starts are needed, and one frame's kinds of data.
        """
        types = b"".join(
            _TYPE.pack(len(kind.camera), kind.width, kind.height, kind.channels, kind.format) + kind.camera
            for kind in self.types
        )
        is_regular = self.is_regular
        head = _PACKED.pack(self._shape.size, self.position, len(self.types), len(types), len(self.frames), is_regular)
        if is_regular:
            return b"".join((head, types, self.media[: len(self.types)], self.sizes, self.starts))
        return b"".join((head, types, self.type_of, self.frames, self.sizes, self.starts, self.media))

    @classmethod
    def unpacked(cls, packed: bytes, start: int, end: int) -> Scan | None:
        """Return the scan of the section ``[start, end)``, or None if these bytes are not what ``packed`` returns.

        All images lie inside the section.
        """
        try:
            shape, position, types, size, images, is_regular = _PACKED.unpack_from(packed)
            columns = images * REGULAR_IMAGE_SIZE + types if is_regular else images * IMAGE_SIZE
            at = _PACKED.size + size
            if len(packed) != at + columns or shape not in _SHAPES:
                return None
            scan = cls.__new__(cls)
            scan._may_predict, scan._shape, scan.end = False, _SHAPES[shape], end
            scan.position, scan.error, scan.headers, scan._is_regular = position, None, [], bool(is_regular)
            # Episodes of a dataset mostly have the same cameras.
            unpack = _known_types if size <= IMAGE_HEAD else _unpacked_types
            scan.types = list(unpack(packed[_PACKED.size : at], types))
        except struct.error:
            return None
        is_right = (scan._read_regular if is_regular else scan._read_columns)(packed, at, images, start)
        return scan if is_right and start <= position <= end else None

    def _read_columns(self, packed: bytes, at: int, images: int, start: int) -> bool:
        """Read the images of a packed scan; return whether they are right."""
        self.type_of, self.frames, self.sizes = array("I"), array("I"), array("I")
        self.starts, self.media = array("Q"), array("B")
        for column in (self.type_of, self.frames, self.sizes, self.starts, self.media):
            column.frombytes(packed[at : at + images * column.itemsize])
            at += images * column.itemsize
        if at != len(packed) or not images:
            return at == len(packed)
        is_known = max(self.type_of) < len(self.types) and max(self.media) < len(MEDIA)
        return is_known and start <= min(self.starts) and max(map(add, self.starts, self.sizes)) <= self.end

    def _read_regular(self, packed: bytes, at: int, images: int, start: int) -> bool:
        """Read the images of a packed scan of regular frames; return whether they begin and end where the scan did.

        Computing the starts from the sizes would take longer than all else here.
        """
        count = len(self.types)
        frames = images // count if count else 0
        if not frames or images % count:
            return False
        media = array("B", packed[at : at + count])
        starts_at = at + count + images * _SIZE
        self.sizes, self.starts = array("I", packed[at + count : starts_at]), array("Q", packed[starts_at:])
        self.media = media * frames
        # Episodes of a dataset are often of the same length.
        self.type_of, self.frames = (_known_regular if images <= MANY_IMAGES else _regular)(count, frames)
        is_whole = self.starts[-1] + self.sizes[-1] == self.position <= self.end
        return is_whole and self.starts[0] == start + 2 + self._head_size(self.types[0]) and max(media) < len(MEDIA)

    def _head_size(self, kind: ImageType) -> int:
        """Return the bytes before the data of such an image, beside the number of images at the start of a frame."""
        return 2 + len(kind.camera) + self._shape.size + _LENGTH.size

    @property
    def is_regular(self) -> bool:
        """Whether each frame has the same images, one of each type and of one kind of data, and no frame is missing."""
        if self._is_regular is None:
            self._is_regular = self._has_regular_frames()
        return self._is_regular

    def _has_regular_frames(self) -> bool:
        count, images = len(self.types), len(self.frames)
        if not images or images % count or self.media != self.media[:count] * (images // count):
            return False
        if (self.type_of, self.frames) != _regular(count, images // count):
            return False
        heads = list(map(self._head_size, self.types))
        heads[0] += 2  # the number of images, before the first
        steps = map(add, islice(cycle(heads), 1, None), self.sizes[:-1])
        return self.starts == array("Q", accumulate(steps, initial=self.starts[0]))

    @property
    def is_exact(self) -> bool:
        """Whether the section holds all frames and nothing else."""
        return self.error is None and self.position == self.end

    @property
    def is_all_confirmed(self) -> bool:
        return 0 not in self.media or all(map(self.is_confirmed, range(len(self.frames))))

    def is_raw_size(self, image: int) -> bool:
        return self.sizes[image] == self.types[self.type_of[image]].raw_size

    def is_confirmed(self, image: int) -> bool:
        """Return whether the stored bytes fit the image's header, as far as can be checked without decoding."""
        return self.media[image] != 0 or (self.sizes[image] > 0 and self.is_raw_size(image))

    def _run(self, source: Source, num_frames: int, window: bytearray) -> None:
        # This loop runs for every image of a section: it uses local names, and a window of bytes up to ``limit``.
        read, view, end, shape_size = source.read_into, memoryview(window), self.end, self._shape.size
        position, base, limit, known = self.position, self.position, 0, dict[bytes, int]()
        ahead = WIDE_WINDOW if end - position <= WIDE_WINDOW and not source.is_remote else WINDOW
        frame = name_bytes = 0
        pattern: _Pattern = ()
        if _window.shape is self._shape and not self._may_predict:
            # Sections of a recording are alike: the first frame, too, is probably like those scanned last.
            limit = min(ahead, end - position)
            read(view[:limit], base)
            pattern = _window.pattern
            for head, _ in pattern:
                if head not in known:
                    known[head] = self._add_type(head)
            frame, position = self._read_similar(pattern, known, window, limit, base, 0, num_frames)
            if frame:
                name_bytes = sum(len(head) + DIRECTORY * (1 + head.count(b"/")) for head in known)
                ahead = WIDE_WINDOW
                if frame == num_frames and len(known) == len(pattern):
                    self._is_regular = True  # as each frame is like the pattern
            else:
                pattern = ()
                known.clear()
                self.types.clear()
        while frame < num_frames:
            if pattern:
                frame, position = self._read_similar(pattern, known, window, limit, base, frame, num_frames)
                if frame == num_frames:
                    return None
            at = position - base
            if at + IMAGE_HEAD > limit and base + limit < end:
                base, at, limit = position, 0, min(ahead, end - position)
                read(view[:limit], base)
            if limit - at < 2:
                return self._stop(frame, num_frames, len(self.frames))
            cameras = window[at] | window[at + 1] << 8
            if not cameras:
                empty = _ZEROS.match(window, at, limit)
                count = min((empty.end() - at) // 2 if empty else 0, num_frames - frame)
                frame, position = frame + count, position + 2 * count
                self.position = position
                continue
            position += 2
            first = len(self.frames)
            heads = []
            for _ in range(cameras):
                at = position - base
                if at + IMAGE_HEAD > limit and base + limit < end:
                    base, at, limit = position, 0, min(ahead, end - position)
                    read(view[:limit], base)
                if limit - at < 2:
                    return self._stop(frame, num_frames, first)
                tail = at + 2 + (window[at] | window[at + 1] << 8) + shape_size
                if tail + 8 > limit and base + limit < end:
                    base, at, tail, limit = position, 0, tail - at, min(tail - at + 8, end - position)
                    read(view[:limit], base)
                if tail + 4 > limit:
                    return self._stop(frame, num_frames, first)
                head = bytes(window[at:tail])
                (stored,) = _LENGTH.unpack_from(window, tail)
                tail += 4
                position = base + tail + stored
                if position > end:
                    return self._stop(frame, num_frames, first)
                kind = known.get(head)
                if kind is None:
                    name_bytes += len(head) + DIRECTORY * (1 + head.count(b"/"))
                    kind = known[head] = self._add_type(head)
                if len(self.frames) >= MOST_IMAGES or name_bytes > MOST_NAME_BYTES:
                    self.error = f"only the first {len(self.frames)} images are shown; the section has more"
                    return None
                media = 0
                if self.types[kind].format:
                    stop = min(tail + stored, limit)
                    if window.startswith(_SIGNATURES[1], tail, stop):
                        media = 1
                    elif window.startswith(_SIGNATURES[2], tail, stop):
                        media = 2
                heads.append((head, media))
                self.type_of.append(kind)
                self.frames.append(frame)
                self.sizes.append(stored)
                self.starts.append(base + tail)
                self.media.append(media)
                ahead = NEAR_WINDOW if stored > FAR else WIDE_WINDOW
            frame += 1
            self.position = position
            if frame == 1 and self._may_predict and self._predict(source, heads, num_frames):
                return None
            is_regular = all(media or not self.types[known[head]].format for head, media in heads)
            pattern = tuple(heads) if is_regular and ahead == WIDE_WINDOW else ()
            if pattern and _is_short(pattern):
                _window.pattern, _window.shape = pattern, self._shape
        return None

    def _read_similar(
        self, pattern: _Pattern, known: dict[bytes, int], window: bytearray, limit: int, base: int, frame: int,
        num_frames: int,
    ) -> tuple[int, int]:
        """Scan frames with the headers and signatures of a pattern, mostly the previous frame, up to the window's end.

        Return the next frame and its position. ``known`` has the numbers of the types. Takes a third of the time, as
        shared header fields are parsed once.
        """
        images, first = len(pattern), frame
        heads = (_known_heads if _is_short(pattern) else _heads)(pattern)
        most = min(num_frames - frame, (MOST_IMAGES - len(self.frames)) // images)
        sizes, starts, at = list[int](), list[int](), self.position - base
        add_size, add_start = sizes.append, starts.append
        seen = memoryview(window)[:limit]
        try:
            # One loop over all images: this line and the next ones run for each.
            for fields_at, head, skipped, signature, least in chain.from_iterable(repeat(heads, most)):
                header, stored, begin = fields_at(seen, at)
                if header != head or begin != signature or stored < least:
                    break
                at += skipped
                add_size(stored)
                add_start(at)
                at += stored
        except struct.error:  # the image begins at the end of the window, or beyond
            pass
        found = len(sizes)
        if found and starts[-1] + sizes[-1] > self.end - base:  # only the last image can end beyond the section
            found -= 1
        count = found // images
        found = count * images
        if not count:
            return frame, self.position
        frame += count
        self.position = base + starts[found - 1] + sizes[found - 1]
        self.sizes.extend(sizes[:found])
        self.starts.extend(map(base.__add__, starts[:found]))
        numbers = range(first, frame)
        self.frames.extend(numbers if images == 1 else sorted([*numbers] * images))
        self.type_of.extend([known[head] for head, _ in pattern] * count)
        self.media.extend([media for _, media in pattern] * count)
        return frame, self.position

    def _predict(self, source: Source, heads: list[tuple[bytes, int]], num_frames: int) -> bool:
        """Return whether all frames are probably like the first one, of raw images, so that no further read is needed.

        The section has the length of that many frames, and the second frame starts like the first. Each image is
        verified when it is read.
        """
        images, start = len(self.frames), self.starts[0] - _LENGTH.size - len(heads[0][0]) - 2 if heads else 0
        size = self.position - start
        if not images or start + num_frames * size != self.end or num_frames * images > MOST_IMAGES:
            return False
        if self.end - start < PREDICT_FROM_BYTES or num_frames < 2:
            return False
        if any(kind.format for kind in self.types) or not all(map(self.is_raw_size, range(images))):
            return False
        headers = [head + _LENGTH.pack(stored) for (head, _), stored in zip(heads, self.sizes, strict=True)]
        first = images.to_bytes(2, "little") + headers[0]
        if source.read(start + size, len(first)) != first:
            return False
        self.headers = headers
        self.starts = array("Q", [at + size * frame for frame in range(num_frames) for at in self.starts])
        self.frames = array("I", [frame for frame in range(num_frames) for _ in range(images)])
        for column in (self.type_of, self.sizes, self.media):
            column *= num_frames
        self.position = self.end
        return True

    def _add_type(self, head: bytes) -> int:
        width, height, channels, *rest = self._shape.unpack_from(head, len(head) - self._shape.size)
        camera = head[2 : len(head) - self._shape.size]
        self.types.append(ImageType(camera, width, height, channels, rest[0] if rest else 0, width * height * channels))
        return len(self.types) - 1

    def _stop(self, frame: int, num_frames: int, first: int) -> None:
        self.error = f"the image section breaks off in frame {frame} of {num_frames}"
        confirmed = [image for image in range(first, len(self.frames)) if self.is_confirmed(image)]
        for column in (self.type_of, self.frames, self.sizes, self.starts, self.media):
            column[first:] = array(column.typecode, [column[image] for image in confirmed])


def _unpacked_types(packed: bytes, count: int) -> tuple[ImageType, ...]:
    """Return so many image types of a packed scan. Raises struct.error if they do not take all its bytes."""
    types, at = [], 0
    for _ in range(count):
        length, width, height, channels, form = _TYPE.unpack_from(packed, at)
        at += _TYPE.size + length
        types.append(ImageType(packed[at - length : at], width, height, channels, form, width * height * channels))
    if at != len(packed):
        raise struct.error("the image types have another size")
    return tuple(types)


_known_types = lru_cache(64)(_unpacked_types)


def _regular(count: int, frames: int) -> tuple[array[int], array[int]]:
    """Return the types and the frames of the images of so many frames, each with one image of each of so many types."""
    numbers = array("I", bytes(array("I").itemsize * count * frames))
    for first in range(min(count, len(numbers))):
        numbers[first::count] = array("I", range(frames))
    return array("I", range(count)) * frames, numbers


_known_regular = lru_cache(64)(_regular)


def _heads(pattern: _Pattern) -> list[tuple[_Unpack, bytes, int, bytes, int]]:
    """Return how to read each image of frames with these headers and kinds of data.

    For each image: what unpacks its header, stored size and signature; the header, and its bytes up to the data; the
    signature, and its bytes.
    """
    heads: list[tuple[_Unpack, bytes, int, bytes, int]] = []
    for number, (head, media) in enumerate(pattern):
        header, signature = head if number else len(pattern).to_bytes(2, "little") + head, _SIGNATURES[media]
        fields = struct.Struct(f"<{len(header)}sI{len(signature)}s")
        heads.append((fields.unpack_from, header, len(header) + _LENGTH.size, signature, len(signature)))
    return heads


_known_heads = lru_cache(64)(_heads)


def _is_short(pattern: _Pattern) -> bool:
    """Return whether a pattern is short enough to be remembered."""
    return len(pattern) <= FEW_IMAGES and sum(len(head) for head, _ in pattern) <= IMAGE_HEAD


class FirstImage(NamedTuple):
    """The first image of a camera, as its header describes it."""

    camera: bytes
    width: int
    height: int
    channels: int
    is_encoded: bool


def first_images(source: Source, start: int, end: int, num_frames: int) -> list[FirstImage] | None:
    """Return the images of the first frame with some in the section ``[start, end)``, or None if it is damaged. Of each
    camera there is one.

    Reads the headers of one frame, as a table of many episodes cannot scan them all. Files from before the format byte
    are recognized by images that fit their headers, as in a scan.
    """
    found = None
    for shape in ("<IIBB", "<IIB"):
        try:
            reader = Reader(source, start, min(end, source.size), "the image section", NEAR_WINDOW)
            images, is_confirmed = _images_of_frame(reader, num_frames, shape)
        except Damaged:
            continue
        if is_confirmed:
            return images
        found = found or images
    return found


def _images_of_frame(reader: Reader, num_frames: int, shape: str) -> tuple[list[FirstImage], bool]:
    """Return the first frame with images, one of each camera, and whether they fit their headers."""
    ahead = reader.peek(NEAR_WINDOW)
    reader.skip(2 * min((len(ahead) - len(ahead.lstrip(b"\0"))) // 2, num_frames - 1))
    images: dict[bytes, FirstImage] = {}
    is_confirmed, left = True, CAMERA_BYTES
    for _ in range(reader.integer(2)):
        camera = reader.take(reader.integer(2))
        left -= len(camera)
        if left < 0 or len(images) == MOST_CAMERAS:
            break
        width, height, channels, *form = reader.unpack(shape)
        stored = reader.integer(4)
        images.setdefault(camera, FirstImage(camera, width, height, channels, any(form)))
        has_signature = any(form) and reader.peek(len(_SIGNATURES[2])).startswith(_SIGNATURES[1:])
        is_confirmed = is_confirmed and (has_signature or 0 < stored == width * height * channels)
        reader.skip(stored)
    return list(images.values()), is_confirmed
