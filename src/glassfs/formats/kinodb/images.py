"""The image section of an episode (§6): found by hopping over it, since it has no table of offsets.

Any thread; a scan belongs to the thread that makes it. Heads and names are read, pixels are not.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple, overload

from glassfs.content import Blob, Content, EncodedImage, Extent, Fault, Group, Image, Member, Series, Video
from glassfs.formats.kinodb.encoded_images import decoded_size
from glassfs.formats.kinodb.foreseen import Foreseen
from glassfs.formats.registry import Opening
from glassfs.source import Source

MOST_IMAGES = 400_000  # listed in one episode
MOST_NAME_BYTES = 16 << 20  # of camera names in one episode; each directory that a name makes counts like DIRECTORY
DIRECTORY = 128
MOST_SERIES = 64  # cameras that are looked at more closely, each in a pass of its own
FAR = 8 << 10  # images of more bytes are hopped over, smaller ones are read along
NEAR_WINDOW, WINDOW, WIDE_WINDOW = 512, 64 << 10, 256 << 10
IMAGE_HEAD = 256  # bytes that hold the fields of most images and the signature of their data

FORESEEN_FROM = 16 << 20  # bytes of a section from which on it takes too long to look at each image far away
DECODED_PIXELS = 64 << 20  # of all pictures in one listing

_MEDIA = (None, "jpeg", "png")
_SIGNATURES = (b"", b"\xff\xd8\xff", b"\x89PNG")
_LENGTH = struct.Struct("<I")
_SCAN_COST, _IMAGE_COST = 1 << 10, 28  # bytes kept: 21 of each image, in arrays that grow ahead, and its place in them
_ZEROS = re.compile(rb"\0+")
_SPARE_WINDOWS = 2
_spare: list[bytearray] = []
"""Windows that nobody reads into: the pages of a new one would cost as much as reading into it."""


class _Look(NamedTuple):
    """What an image has in common with others. ``raw_size`` is width x height x channels."""

    camera: bytes
    width: int
    height: int
    channels: int
    format: int
    raw_size: int


class _Scan:
    """One pass over an image section (§6), up to ``end``: heads and names are read, pixels are not.

    Images are kept as numbers, 21 bytes each. ``error`` says why the pass ended before the last frame; of the frame
    where it did, only those images are kept that their own size or signature confirms: a wrong count or length may have
    led anywhere. ``position`` is the end of the last whole frame.
    """

    def __init__(
        self, source: Source, start: int, end: int, num_frames: int, has_format: bool, may_foresee: bool = False,
    ) -> None:
        self.looks: list[_Look] = []
        self.look_of, self.frames, self.sizes = array("I"), array("I"), array("I")
        self.starts, self.media = array("Q"), array("B")
        self.end = end
        self.position = start
        self.error: str | None = None
        self.told: list[bytes] = []
        """What stands before each image of a frame, if all are foreseen from the first: then it is for all frames."""
        self._may_foresee = may_foresee
        self._shape = struct.Struct("<IIBB" if has_format else "<IIB")
        window = _spare.pop() if _spare else bytearray(WIDE_WINDOW)
        self._run(source, num_frames, window)
        if len(_spare) < _SPARE_WINDOWS:
            _spare.append(window)

    @property
    def is_exact(self) -> bool:
        """Whether all frames are there and nothing else is."""
        return self.error is None and self.position == self.end

    @property
    def is_all_confirmed(self) -> bool:
        return 0 not in self.media or all(map(self.is_confirmed, range(len(self.frames))))

    def is_raw_size(self, image: int) -> bool:
        return self.sizes[image] == self.looks[self.look_of[image]].raw_size

    def is_confirmed(self, image: int) -> bool:
        """Whether the stored bytes are what the image's fields say, as far as can be told without decoding."""
        return self.media[image] != 0 or (self.sizes[image] > 0 and self.is_raw_size(image))

    def _run(self, source: Source, num_frames: int, window: bytearray) -> None:
        # One loop over local names, and a window of bytes, up to ``limit``: it runs for every image of a section.
        read, room, end, shape_size = source.read_into, memoryview(window), self.end, self._shape.size
        position, base, limit, ahead, known = self.position, self.position, 0, WINDOW, dict[bytes, int]()
        frame = name_bytes = 0
        pattern: list[tuple[bytes, int]] = []
        while frame < num_frames:
            if pattern:
                frame, position = self._run_alike(pattern, window, limit, base, frame, num_frames)
                if frame == num_frames:
                    return None
            at = position - base
            if at + IMAGE_HEAD > limit and base + limit < end:
                base, at, limit = position, 0, min(ahead, end - position)
                read(room[:limit], base)
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
                    read(room[:limit], base)
                if limit - at < 2:
                    return self._stop(frame, num_frames, first)
                tail = at + 2 + (window[at] | window[at + 1] << 8) + shape_size
                if tail + 8 > limit and base + limit < end:
                    base, at, tail, limit = position, 0, tail - at, min(tail - at + 8, end - position)
                    read(room[:limit], base)
                if tail + 4 > limit:
                    return self._stop(frame, num_frames, first)
                head = bytes(window[at:tail])
                (stored,) = _LENGTH.unpack_from(window, tail)
                tail += 4
                position = base + tail + stored
                if position > end:
                    return self._stop(frame, num_frames, first)
                look = known.get(head)
                if look is None:
                    name_bytes += len(head) + DIRECTORY * (1 + head.count(b"/"))
                    look = known[head] = self._add_look(head)
                if len(self.frames) >= MOST_IMAGES or name_bytes > MOST_NAME_BYTES:
                    self.error = f"only the first {len(self.frames)} images are shown, the section has more"
                    return None
                media = 0
                if self.looks[look].format:
                    stop = min(tail + stored, limit)
                    if window.startswith(_SIGNATURES[1], tail, stop):
                        media = 1
                    elif window.startswith(_SIGNATURES[2], tail, stop):
                        media = 2
                heads.append((head, media))
                self.look_of.append(look)
                self.frames.append(frame)
                self.sizes.append(stored)
                self.starts.append(base + tail)
                self.media.append(media)
                ahead = NEAR_WINDOW if stored > FAR else WIDE_WINDOW
            frame += 1
            self.position = position
            if frame == 1 and self._may_foresee and self._foresee(source, heads, num_frames):
                return None
            is_regular = all(media or not self.looks[known[head]].format for head, media in heads)
            pattern = heads if is_regular and ahead == WIDE_WINDOW else []
        return None

    def _run_alike(
        self, pattern: list[tuple[bytes, int]], window: bytearray, limit: int, base: int, frame: int, num_frames: int,
    ) -> tuple[int, int]:
        """The same for frames with images that look like those of the frame before, as far as the window goes.

        The next frame and its position. In a third of the time: what the images share is found out once.
        """
        images, first = len(pattern), frame
        prefix = images.to_bytes(2, "little")
        heads = []
        for number, (head, media) in enumerate(pattern):
            told, signature = head if number else prefix + head, _SIGNATURES[media]
            fields = struct.Struct(f"<{len(told)}sI{len(signature)}s")
            heads.append((fields.unpack_from, fields.size, told, len(told) + _LENGTH.size, signature, len(signature)))
        room = min(num_frames, frame + (MOST_IMAGES - len(self.frames)) // images)
        sizes, starts, at = list[int](), list[int](), self.position - base
        while frame < room:
            before = at
            for fields_at, needed, head, skipped, signature, least in heads:
                if at + needed > limit:
                    break
                told, stored, begin = fields_at(window, at)
                if told != head or begin != signature or stored < least:
                    break
                at += skipped
                sizes.append(stored)
                starts.append(base + at)
                at += stored
            else:
                if base + at <= self.end:
                    frame += 1
                    continue
            at = before
            break
        count = frame - first
        self.position = base + at
        self.sizes.extend(sizes[: count * images])
        self.starts.extend(starts[: count * images])
        self.frames.extend([number for number in range(first, frame) for _ in range(images)])
        self.look_of.extend(self.look_of[-images:] * count)
        self.media.extend(self.media[-images:] * count)
        return frame, self.position

    def _foresee(self, source: Source, heads: list[tuple[bytes, int]], num_frames: int) -> bool:
        """Whether all frames are like the first, of raw images: then nothing has to be asked for in between.

        The section is as long as they are together, and the second one begins as it should. All are looked at when they
        are read.
        """
        images, start = len(self.frames), self.starts[0] - _LENGTH.size - len(heads[0][0]) - 2 if heads else 0
        size = self.position - start
        if not images or start + num_frames * size != self.end or num_frames * images > MOST_IMAGES:
            return False
        if self.end - start < FORESEEN_FROM or num_frames < 2:
            return False
        if any(look.format for look in self.looks) or not all(map(self.is_raw_size, range(images))):
            return False
        told = [head + _LENGTH.pack(stored) for (head, _), stored in zip(heads, self.sizes, strict=True)]
        first = images.to_bytes(2, "little") + told[0]
        if source.read(start + size, len(first)) != first:
            return False
        self.told = told
        self.starts = array("Q", [at + size * frame for frame in range(num_frames) for at in self.starts])
        self.frames = array("I", [frame for frame in range(num_frames) for _ in range(images)])
        for column in (self.look_of, self.sizes, self.media):
            column *= num_frames
        self.position = self.end
        return True

    def _add_look(self, head: bytes) -> int:
        width, height, channels, *rest = self._shape.unpack_from(head, len(head) - self._shape.size)
        camera = head[2 : len(head) - self._shape.size]
        self.looks.append(_Look(camera, width, height, channels, rest[0] if rest else 0, width * height * channels))
        return len(self.looks) - 1

    def _stop(self, frame: int, num_frames: int, first: int) -> None:
        self.error = f"the image section breaks off in frame {frame} of {num_frames}"
        confirmed = [image for image in range(first, len(self.frames)) if self.is_confirmed(image)]
        for column in (self.look_of, self.frames, self.sizes, self.starts, self.media):
            column[first:] = array(column.typecode, [column[image] for image in confirmed])


class Images:
    """The images of an episode, as a group. ``place`` names them in messages; ``offset`` and ``length`` may be any.

    ``rate`` gives the frames a second, 0 where nobody knows.
    """

    def __init__(
        self, opening: Opening, place: str, offset: int, length: int, num_frames: int, rate: Callable[[], float],
    ) -> None:
        self.group = Group(b"images", self.members)
        self._opening = opening
        self._source = opening.source
        self._place = place
        self._offset, self._length = offset, length
        self._num_frames = num_frames
        self._rate = rate
        self._looked: _Scan | None = None
        """What is really there, if it was not as it was foreseen."""

    def members(self) -> Iterator[Member]:
        """Raises Damaged where a section that should hold images shows none."""
        scan = self._scan()
        if scan.error and scan.error != self.group.error:
            self._opening.warn(scan.error, self._place)
        self.group.error = scan.error
        if scan.error and not scan.frames:
            raise self._source.damage(scan.error, self._place)
        return self._members(scan)

    def check(self) -> Iterator[Fault]:
        scan = self._scan(may_foresee=False)
        if scan.error:
            yield Fault(self._place, scan.error)
        elif scan.position < scan.end:
            yield Fault(self._place, f"{scan.end - scan.position} bytes follow the last frame")
        for image, frame in enumerate(scan.frames):
            reason = self._image_fault(scan, image)
            if reason:
                camera = scan.looks[scan.look_of[image]].camera.decode("utf-8", "backslashreplace")
                yield Fault(f"{self._place}/{camera}/{frame:06d}", reason)

    def _scan(self, may_foresee: bool = True) -> _Scan:
        """The section in the layout that it is written in.

        Files from before the format byte say 0.1 as well. The right layout ends where the section does (§8); should
        both, or neither because the section is cut, the older one must explain its images to the byte.
        """
        source, start, end = self._source, self._offset, min(self._offset + self._length, self._source.size)
        if start > end:
            raise source.damage("the image section lies outside the file", self._place)
        if self._looked is not None:
            return self._looked
        may_foresee = may_foresee and source.is_remote
        scan = _Scan(source, start, end, self._num_frames, has_format=True, may_foresee=may_foresee)
        if scan.is_exact and scan.is_all_confirmed:
            return scan
        older = _Scan(source, start, end, self._num_frames, has_format=False)
        if scan.is_exact == older.is_exact:
            is_better = older.is_all_confirmed and (older.is_exact or len(older.frames) > len(scan.frames))
            return older if is_better else scan
        return scan if scan.is_exact else older

    def _members(self, scan: _Scan) -> Iterator[Member]:
        paths = [tuple(look.camera.split(b"/")) for look in scan.looks]
        series = dict(_series(scan, paths))
        for look, images in series.items():
            yield Member(paths[look], self._numbered(scan, look, images))
        yield from self._videos(scan, paths)
        if len(series) == len(paths):
            return
        pixels_left = DECODED_PIXELS
        latest: dict[bytes, int] = {}
        repeats: dict[bytes, int] = {}
        for image, (index, frame) in enumerate(zip(scan.look_of, scan.frames, strict=True)):
            if index in series:
                continue
            camera, media = scan.looks[index].camera, _MEDIA[scan.media[image]]
            if media and scan.is_raw_size(image):
                # Raw pixels may begin like a signature; data that can be decoded are not raw pixels (§6).
                found = decoded_size(self._data(scan, image), media, self._opening.cache, pixels_left)
                pixels_left -= found[0] * found[1] if found else 0
                media = media if found else None
            number = b"%06d" % frame
            if latest.get(camera) == frame:
                repeats[camera] += 1
                number += b"~%d" % repeats[camera]
            else:
                latest[camera], repeats[camera] = frame, 1
            yield Member((*paths[index], number), self._content(scan, image, media))

    def _numbered(self, scan: _Scan, look: int, images: Sequence[int]) -> Series:
        media = _MEDIA[scan.media[images[0]]]

        def item(number: int) -> Content:
            return self._content(scan, images[number], media)

        def sizes(start: int, stop: int) -> Iterator[int]:
            return map(scan.sizes.__getitem__, images[start:stop])

        return Series(
            scan.looks[look].camera, len(images), item, digits=6, kept=_SCAN_COST + _IMAGE_COST * len(images),
            sizes=sizes, is_uniform=scan.is_raw_size(images[0]),
        )

    def _videos(self, scan: _Scan, paths: Sequence[tuple[bytes, ...]]) -> Iterator[Member]:
        """What each camera saw, as large as its first image says it is."""
        cameras: dict[bytes, int] = {}
        for index, look in enumerate(scan.looks):
            cameras.setdefault(look.camera, index)
        for camera, index in cameras.items():
            look = scan.looks[index]
            seen = _Seen(scan, camera)
            yield Member(paths[index], Video(
                camera, self._num_frames, self._rate, look.width, look.height, partial(self._frame, seen), seen,
            ))

    def _frame(self, seen: _Seen, number: int) -> Content:
        """What is seen in a frame: of several images of one name the first."""
        scan, image = seen.scan, seen.image(number)
        media = _MEDIA[scan.media[image]]
        if media and scan.is_raw_size(image) and not self._is_decodable(scan, image, media):
            media = None
        return self._content(scan, image, media)

    def _is_decodable(self, scan: _Scan, image: int, media: str) -> bool:
        # Of no more pixels than are declared, so that looking at many takes no longer than reading them.
        look = scan.looks[scan.look_of[image]]
        pixels = look.width * look.height
        return decoded_size(self._data(scan, image), media, self._opening.cache, pixels) is not None

    def _content(self, scan: _Scan, image: int, media: str | None) -> Content:
        look, data = scan.looks[scan.look_of[image]], self._data(scan, image)
        if media:
            return EncodedImage(look.camera, data, media)
        if 0 < data.size == look.raw_size and look.channels <= 4:
            return Image(look.camera, data, look.width, look.height, look.channels)
        return Blob(look.camera, data)

    def _data(self, scan: _Scan, image: int) -> Extent:
        if scan.told:
            told = scan.told[image % len(scan.told)]
            start, size = scan.starts[image], scan.sizes[image]
            return Foreseen(self._source, start, size, told, self._place, lambda: self._found(scan, image))
        return Extent(self._source, scan.starts[image], scan.sizes[image])

    def _found(self, scan: _Scan, image: int) -> int | None:
        """Where an image is that is not where it was foreseen: that of its camera in its frame, if it is as large."""
        wanted = scan.looks[scan.look_of[image]]
        real = self._looked = self._scan(may_foresee=False)
        first = bisect_left(real.frames, scan.frames[image])
        for number in range(first, bisect_right(real.frames, scan.frames[image])):
            look = real.looks[real.look_of[number]]
            if look._replace(format=wanted.format) == wanted and real.is_raw_size(number):
                return real.starts[number]
        return None

    def _image_fault(self, scan: _Scan, image: int) -> str | None:
        """What is wrong with one image; glassfs shows its bytes all the same, KinoDB may drop it silently (§6)."""
        look, size = scan.looks[scan.look_of[image]], scan.sizes[image]
        if _is_not_utf8(look.camera):
            return "the camera's name is not UTF-8"
        fits = size == look.raw_size
        declared = f"{look.width} x {look.height}"
        if not look.format:
            return None if fits else f"holds {size} raw bytes, but {declared} x {look.channels} are declared"
        media, data = _MEDIA[scan.media[image]], Extent(self._source, scan.starts[image], size)
        found = decoded_size(data, media, self._opening.cache) if media else None
        if found is None:
            held = "holds raw pixels, which KinoDB leaves out" if fits else "does not hold a whole JPEG or PNG"
            return f"is marked as compressed, but {held}"
        if found != (look.width, look.height):
            return f"is {found[0]} x {found[1]} pixels, but {declared} are declared"
        return None


class _Seen(Sequence[int]):
    """The numbers of the frames in which there is an image of a camera, looked for when somebody asks."""

    def __init__(self, scan: _Scan, camera: bytes) -> None:
        self.scan = scan
        self._camera = camera

    @cached_property
    def _images(self) -> Sequence[int]:
        looks, look_of = self.scan.looks, self.scan.look_of
        wanted = {index for index, look in enumerate(looks) if look.camera == self._camera}
        if len(wanted) == len(looks):
            return range(len(look_of))
        return array("I", (image for image, look in enumerate(look_of) if look in wanted))

    @cached_property
    def _frames(self) -> array[int]:
        return _picked(self.scan.frames, self._images)

    def image(self, frame: int) -> int:
        """The first image in a frame that is among them."""
        return self._images[bisect_left(self._frames, frame)]

    def __len__(self) -> int:
        return len(self._frames)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self._frames[index]


def _series(scan: _Scan, paths: Sequence[tuple[bytes, ...]]) -> Iterator[tuple[int, Sequence[int]]]:
    """Looks of cameras that have one picture of one kind in each frame, from frame 0 on, and those images.

    None of them lies below another camera, and none needs to be decoded to know its kind.
    """
    if not 0 < len(paths) <= MOST_SERIES:
        return
    count, total = len(paths), len(scan.frames)
    takes_turns = scan.look_of == array("I", range(count)) * (total // count)
    for index, path in enumerate(paths):
        if sum(other[: len(path)] == path or path[: len(other)] == other for other in paths) > 1:
            continue
        images: Sequence[int] = range(index, total, count)
        if not takes_turns:
            images = array("I", (image for image in range(total) if scan.look_of[image] == index))
        frames, media, sizes = (_picked(column, images) for column in (scan.frames, scan.media, scan.sizes))
        if not frames or frames != array("I", range(len(frames))) or media.count(media[0]) != len(media):
            continue
        raw = sizes.count(scan.looks[index].raw_size)
        if raw == 0 or (raw == len(sizes) and not media[0]):
            yield index, images


def _picked(column: array[int], images: Sequence[int]) -> array[int]:
    if isinstance(images, range):
        return column[images.start :: images.step]
    return array(column.typecode, map(column.__getitem__, images))


def _is_not_utf8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False
