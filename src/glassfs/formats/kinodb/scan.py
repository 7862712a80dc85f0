"""Locating the images of an episode: one pass over its image section (§6), which has no table of offsets.

The pass reads headers and names, and skips pixels. A scan is for one thread until it is complete, then for any.
"""

from __future__ import annotations

import re
import struct
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from operator import add
from typing import Any, NamedTuple

from glassfs.content.allowance import OBJECT, Allowance
from glassfs.errors import TooLarge
from glassfs.source import Source

FAR = 8 << 10  # larger images are skipped, smaller ones are read along
NEAR_WINDOW, WINDOW = 512, 64 << 10
IMAGE_HEAD = 256  # bytes that hold the header of most images and the signature of their data
PREDICT_FROM_BYTES = 16 << 20  # smaller remote sections are scanned
IMAGE_COST = OBJECT // 4  # an image takes 21 bytes, in arrays that grow ahead, and its number

MEDIA = (None, "jpeg", "png")
_SIGNATURES = (b"", b"\xff\xd8\xff", b"\x89PNG")
_LENGTH = struct.Struct("<I")
_WITH_FORMAT, _WITHOUT_FORMAT = struct.Struct("<IIBB"), struct.Struct("<IIB")
_PACKED, _TYPE = struct.Struct("<QII"), struct.Struct("<IIIBB")  # of a packed scan: its head, and an image type
_ZEROS = re.compile(rb"\0+")


class ImageType(NamedTuple):
    """The header fields that images have in common. ``raw_size`` is width x height x channels."""

    camera: bytes
    width: int
    height: int
    channels: int
    format: int
    raw_size: int


class Scan:
    """The images in the section ``[start, end)``, as numbers, 21 bytes each.

    ``error`` says why the pass ended before the last frame; of the frame where it ended only images confirmed by their
    size or signature are kept, as a wrong count or length may have led anywhere. ``is_limited`` if only the allowance
    ended it. ``position`` is the end of the last whole frame. ``headers`` are the bytes before each image of a frame,
    if all frames were predicted to be like the first one.
    """

    def __init__(self, start: int, end: int) -> None:
        self.types: list[ImageType] = []
        self.type_of, self.frames, self.sizes = array("I"), array("I"), array("I")
        self.starts, self.media = array("Q"), array("B")
        self.position, self.end = start, end
        self.error: str | None = None
        self.is_limited = False
        self.headers: list[bytes] = []

    @classmethod
    def of(
        cls, source: Source, start: int, end: int, num_frames: int, has_format: bool, allowance: Allowance,
        may_predict: bool = False, is_sample: bool = False,
    ) -> Scan:
        """Scan a section; up to the first frame with images if ``is_sample``.

        With ``may_predict``, a section whose frames are probably alike is not scanned beyond its second frame.
        """
        scan = cls(start, end)
        shape = _WITH_FORMAT if has_format else _WITHOUT_FORMAT
        _Pass(scan, source, num_frames, shape, allowance).run(may_predict, is_sample)
        return scan

    def packed(self) -> bytes:
        """Return the scan as bytes for ``unpacked``, in the byte order of this machine."""
        head = _PACKED.pack(self.position, len(self.types), len(self.frames))
        types = (
            _TYPE.pack(len(kind.camera), kind.width, kind.height, kind.channels, kind.format) + kind.camera
            for kind in self.types
        )
        return b"".join((head, *types, *self._columns()))

    @classmethod
    def unpacked(cls, packed: bytes, start: int, end: int) -> Scan | None:
        """Return the scan of the section ``[start, end)``, or None if these bytes are not what ``packed`` returns.

        All images lie inside the section.
        """
        scan = cls(start, end)
        try:
            scan.position, types, images = _PACKED.unpack_from(packed)
            at = _PACKED.size
            for _ in range(types):
                length, width, height, channels, form = _TYPE.unpack_from(packed, at)
                at += _TYPE.size + length
                camera = packed[at - length : at]
                scan.types.append(ImageType(camera, width, height, channels, form, width * height * channels))
            for column in scan._columns():
                size = images * column.itemsize
                column.frombytes(packed[at : at + size])
                at += size
        except (struct.error, ValueError):
            return None
        if at != len(packed):
            return None
        # These bytes come from a catalogue on disk: what would lead outside the section, or to an unknown type, counts
        # as damage of the catalogue, and the section is scanned again.
        is_inside = start <= min(scan.starts, default=end) and max(map(add, scan.starts, scan.sizes), default=0) <= end
        is_known = max(scan.type_of, default=-1) < len(scan.types) and max(scan.media, default=0) < len(MEDIA)
        return scan if is_inside and is_known and start <= scan.position <= end else None

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

    def keep_confirmed(self, first: int) -> None:
        """Drop images that nothing confirms, from the image ``first`` on."""
        confirmed = [image for image in range(first, len(self.frames)) if self.is_confirmed(image)]
        for column in self._columns():
            column[first:] = array(column.typecode, [column[image] for image in confirmed])

    def _columns(self) -> tuple[array[int], ...]:
        return self.type_of, self.frames, self.sizes, self.starts, self.media


class _Pattern:
    """The header and the kind of data of each image of a frame, which the next frames mostly repeat.

    ``readers`` has for each image: what unpacks its header, stored size and signature; the header, and its bytes up to
    the data; the signature, and its bytes.
    """

    def __init__(self, images: list[tuple[bytes, int]]) -> None:
        self.images = images
        self.readers: list[tuple[Callable[[memoryview, int], tuple[Any, ...]], bytes, int, bytes, int]] = []
        for number, (head, media) in enumerate(images):
            header, signature = head if number else len(images).to_bytes(2, "little") + head, _SIGNATURES[media]
            fields = struct.Struct(f"<{len(header)}sI{len(signature)}s")
            self.readers.append(
                (fields.unpack_from, header, len(header) + _LENGTH.size, signature, len(signature))
            )


class _Remembered(threading.local):
    """What a thread keeps between its scans: bytes of a section, allocated once, and the pattern scanned last.

    Sections of a recording are alike, so that the first frame of the next one is probably like those, too.
    """

    pattern: _Pattern | None = None
    shape: struct.Struct | None = None

    def __init__(self) -> None:
        self.bytes = bytearray(4 * WINDOW)


_remembered = _Remembered()


@dataclass
class _Pass:
    """The pass that fills a scan. It has a window of the section: ``limit`` bytes from ``base`` on."""

    scan: Scan
    source: Source
    num_frames: int
    shape: struct.Struct
    allowance: Allowance
    limit: int = 0

    def __post_init__(self) -> None:
        self.window, self.base = _remembered.bytes, self.scan.position
        is_small = self.scan.end - self.base <= len(self.window) and not self.source.is_remote
        self.ahead = len(self.window) if is_small else WINDOW
        self.known: dict[bytes, int] = {}

    def run(self, may_predict: bool, is_sample: bool) -> None:
        # Three ways lead forward: frames like the last one are passed in one loop, runs of frames without images are
        # skipped at once, and any other frame is read image by image, which gives the pattern for the next ones. The
        # window moves with the position of the scan, so that each way may stop anywhere and another goes on.
        scan, frame = self.scan, 0
        pattern = _remembered.pattern if _remembered.shape is self.shape and not may_predict else None
        if is_sample:
            self.ahead = NEAR_WINDOW
        first = 0
        try:
            while frame < self.num_frames and not (is_sample and scan.frames):
                if pattern is not None:
                    count = self.similar_frames(pattern, 1 if is_sample else self.num_frames - frame, frame)
                    if count:
                        frame += count
                        continue
                empty = _ZEROS.match(self.window, at := self.at(scan.position, IMAGE_HEAD), self.limit)
                if empty and empty.end() > at + 1:
                    count = min((empty.end() - at) // 2, self.num_frames - frame)
                    frame, scan.position = frame + count, scan.position + 2 * count
                    if is_sample and empty.end() == self.limit and self.base + self.limit < scan.end:
                        return  # so many frames without images are enough
                    continue
                first = len(scan.frames)
                pattern = self.frame(frame)
                frame += 1
                if frame == 1 and may_predict and self.predict():
                    return
        except TooLarge as error:
            scan.is_limited = True
            scan.error = f"only the first {len(scan.frames)} images are shown: the section {error.reason}"
        except EOFError:
            scan.error = f"the image section breaks off in frame {frame} of {self.num_frames}"
            scan.keep_confirmed(first)

    def at(self, position: int, size: int) -> int:
        """Return the index in the window of ``size`` bytes, or of fewer at the end of the section."""
        # Small images are read along with their headers, in a large window, as one read of 256 KiB takes less time than
        # sixty of 256 bytes. Between large images only their headers are read.
        at = position - self.base
        if at + size > self.limit and self.base + self.limit < self.scan.end:
            self.base, at = position, 0
            self.limit = min(max(self.ahead, size), self.scan.end - position)
            self.source.read_into(memoryview(self.window)[: self.limit], position)
        return at

    def frame(self, frame: int) -> _Pattern | None:
        """Scan a frame of any images; return its pattern if later frames may be scanned by it.

        Raises EOFError if it ends outside the section.
        """
        scan, window = self.scan, self.window
        at = self.at(scan.position, 2)
        position = scan.position + 2
        images: list[tuple[bytes, int]] = []
        if at + 2 > self.limit:
            raise EOFError
        for _ in range(window[at] | window[at + 1] << 8):
            at = self.at(position, IMAGE_HEAD)
            if at + 2 > self.limit:
                raise EOFError
            size = 2 + (window[at] | window[at + 1] << 8) + self.shape.size
            at = self.at(position, size + 8)
            data = at + size + _LENGTH.size
            if data > self.limit:
                raise EOFError
            head = bytes(window[at : at + size])
            (stored,) = _LENGTH.unpack_from(window, at + size)
            position = self.base + data + stored
            if position > scan.end:
                raise EOFError
            # The header as bytes is the key of its type: most images have one that is known, so that its fields are
            # unpacked once for each type.
            kind = self.number_of(head)
            self.allowance.take(IMAGE_COST, "images")
            media = 0
            if scan.types[kind].format:
                begin = window[data : min(data + min(stored, 4), self.limit)]
                media = 1 if begin.startswith(_SIGNATURES[1]) else 2 if begin.startswith(_SIGNATURES[2]) else 0
            images.append((head, media))
            scan.type_of.append(kind)
            scan.frames.append(frame)
            scan.sizes.append(stored)
            scan.starts.append(self.base + data)
            scan.media.append(media)
            self.ahead = NEAR_WINDOW if stored > FAR else len(window)
        scan.position = position
        is_sure = all(media or not scan.types[self.known[head]].format for head, media in images)
        if not images or not is_sure or self.ahead == NEAR_WINDOW:
            return None
        pattern = _Pattern(images)
        if sum(len(head) for head, _ in images) <= IMAGE_HEAD:
            _remembered.pattern, _remembered.shape = pattern, self.shape
        return pattern

    def similar_frames(self, pattern: _Pattern, most: int, frame: int) -> int:
        """Scan frames with the headers and signatures of a pattern, up to the window's end; return how many.

        Takes a third of the time, as shared header fields are parsed once.
        """
        scan, images = self.scan, len(pattern.images)
        at = self.at(scan.position, IMAGE_HEAD)
        base, seen = self.base, memoryview(self.window)[: self.limit]
        sizes, starts = list[int](), list[int]()
        add_size, add_start = sizes.append, starts.append
        try:
            # One loop over all images: this line and the next ones run for each.
            for fields_at, head, skipped, signature, least in chain.from_iterable(repeat(pattern.readers, most)):
                header, stored, begin = fields_at(seen, at)
                if header != head or begin != signature or stored < least:
                    break
                at += skipped
                add_size(stored)
                add_start(at)
                at += stored
        except struct.error:  # the image begins at the end of the window, or beyond
            pass
        listed = len(sizes)
        if listed and starts[-1] + sizes[-1] > scan.end - base:  # only the last image can end beyond the section
            listed -= 1
        if listed < images:
            return 0
        self.ahead = len(self.window)
        # Types are added only now that an image of each was found: the pattern may be that of another section.
        kinds = [self.number_of(head) for head, _ in pattern.images]
        count = min(listed, self.allowance.left // IMAGE_COST) // images
        listed = count * images
        if not count:
            return 0
        self.allowance.take(IMAGE_COST * listed, "images")
        scan.position = base + starts[listed - 1] + sizes[listed - 1]
        scan.sizes.extend(sizes[:listed])
        scan.starts.extend(map(base.__add__, starts[:listed]))
        scan.frames.extend(sorted([*range(frame, frame + count)] * images))
        scan.type_of.extend(kinds * count)
        scan.media.extend([media for _, media in pattern.images] * count)
        return count

    def predict(self) -> bool:
        """Return whether all frames are probably like the first one, of raw images, so that no further read is needed.

        The section has the length of that many frames, and the second frame starts like the first. Each image is
        verified when it is read.
        """
        scan, num_frames = self.scan, self.num_frames
        images, heads = len(scan.frames), list(self.known)
        if not images or len(heads) != images or num_frames < 2:
            return False
        start = scan.starts[0] - _LENGTH.size - len(heads[0]) - 2
        size = scan.position - start
        if scan.end - start < PREDICT_FROM_BYTES or start + num_frames * size != scan.end:
            return False
        if any(kind.format for kind in scan.types) or not all(map(scan.is_raw_size, range(images))):
            return False
        # All frames are as long as the first one if the section ends where the last of them would. Frames of other
        # lengths that add up to the same are found when an image is read, whose header is compared then.
        headers = [head + _LENGTH.pack(stored) for head, stored in zip(heads, scan.sizes, strict=True)]
        first = images.to_bytes(2, "little") + headers[0]
        if self.source.read(start + size, len(first)) != first:
            return False
        self.allowance.take(IMAGE_COST * images * num_frames, "images")
        scan.headers = headers
        scan.starts = array("Q", [at + size * frame for frame in range(num_frames) for at in scan.starts])
        scan.frames = array("I", [frame for frame in range(num_frames) for _ in range(images)])
        for column in (scan.type_of, scan.sizes, scan.media):
            column *= num_frames
        scan.position = scan.end
        return True

    def number_of(self, head: bytes) -> int:
        """Return the number of the image type with this header, adding it if it is new."""
        kind = self.known.get(head)
        if kind is None:
            # Each component of the name becomes a directory.
            self.allowance.take(len(head) + OBJECT * (2 + head.count(b"/")), "names of cameras")
            types, end = self.scan.types, len(head) - self.shape.size
            width, height, channels, *rest = self.shape.unpack_from(head, end)
            kind = self.known[head] = len(types)
            form = rest[0] if rest else 0
            types.append(ImageType(head[2:end], width, height, channels, form, width * height * channels))
        return kind


def first_images(source: Source, start: int, end: int, num_frames: int) -> list[ImageType] | None:
    """Return the types of the first frame with images in the section ``[start, end)``, or None if it is damaged.

    Reads the headers of one frame, as a table of many episodes cannot scan them all. Files from before the format byte
    are recognized by images that fit their headers, as in a scan.
    """
    end = min(end, source.size)
    first: list[ImageType] | None = None
    for has_format in (True, False) if start <= end else ():
        scan = Scan.of(source, start, end, num_frames, has_format, Allowance(16 << 10), is_sample=True)
        if scan.error is None or scan.is_limited:
            if scan.is_all_confirmed:
                return scan.types
            first = scan.types if first is None else first
    return first
