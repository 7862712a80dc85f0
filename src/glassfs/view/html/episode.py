"""The page of an episode: its metadata, its cameras frame by frame, and plots of its steps.

The page is rendered when its size is first needed: that reads metadata and the headers of images, and decodes nothing.
The page names what cannot be read. Any thread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache as cached
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Data, Member, Memory, Omitted, Recording, Rendered, Video
from glassfs.content.video import DIGITS, video_of
from glassfs.errors import LASTING
from glassfs.view import json
from glassfs.view.canonical import file_of
from glassfs.view.contract import Key, Shown
from glassfs.view.html import escape, page, plots
from glassfs.view.mp4 import FASTEST, SLOWEST, USUAL_RATE

BODY, SCRIPT = "episode.html", "episode.js"
POSTER = b"poster"
"""The first image of the first camera; the name is the same for all episodes, so lists need no look-up."""
NO_IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
    "0000000b4944415478da6364600000000600023081d02f0000000049454e44ae426082"
)
"""One transparent pixel: the poster of an episode without cameras."""
PAGE_COST = 4 << 20
MOST_CAMERAS = 64
MOST_PROBES, MOST_PROBED_BYTES = 4096, 64 << 20
"""Limits for all cameras together: frames read to find the kind of their files, and their bytes."""
MOST_RUNS, AT_ONCE = 100_000, 4096
"""Limit of runs of frames of all cameras, and number of frames between two checks of it."""
LONGEST_TEXT, LONGEST_TITLE = 4000, 200
MOST_FACTS = 256
MOST_NOTES = 40
SHOWN_AS = (".png", ".jpg")

INSTRUCTION, SUCCESS, RATE = "language_instruction", "success", "fps"
_NAMES = ("episode_name", "episode_id", "position")
_LABELS = {
    "language_instruction": "Instruction", "fps": "Frames a second", "num_frames": "Frames", "episode_id": "Id",
    "episode_name": "Name", "state_dim": "State dimensions", "action_dim": "Action dimensions", "env_id": "Environment",
}


def shown(recording: Recording, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, its data and the poster."""
    made = Rendered(cache, (*key, "page"), partial(_page, recording, cache), cost=PAGE_COST)
    yield Shown(made, page.SUFFIX, page.NAME)
    yield Shown(plots.data_of(recording.steps, cache, (*key, "data")), page.DATA_SUFFIX, page.DATA_NAME)
    yield Shown(_Poster(partial(_first_image, recording, cache, (*key, "poster"))), "", POSTER)


def _page(recording: Recording, cache: BlockCache) -> bytes:
    notes: list[str] = []
    record: dict[str, Any] = {}
    try:
        record = recording.record()
    except LASTING as error:
        notes.append(f"The metadata cannot be read: {error.without_source}")
    cameras: list[dict[str, Any]] = []
    try:
        cameras = _cameras(recording.cameras(), cache, notes)
    except LASTING as error:
        notes.append(f"The cameras cannot be shown: {error.without_source}")
    try:
        notes += [_left_out(member) for member in islice(recording.omitted(), MOST_NOTES)]
        recording.steps.columns()
    except LASTING as error:
        notes.append(f"The steps cannot be plotted: {error.without_source}")
    rates = [_rate(value) for value in (record.get(RATE), *(camera.pop("fps") for camera in cameras))]
    rate = next((value for value in rates if value), None)
    if rate is None and cameras:
        notes.append(f"The frame rate is unknown; {USUAL_RATE} frames a second are assumed.")
    facts = {"fps": rate or float(USUAL_RATE), "rows": recording.steps.rows, "cameras": cameras}
    title = _title(record)
    return page.document(title, _body(title, record, notes), SCRIPT, facts)


def _left_out(member: Member) -> str:
    name = b"/".join(member.name).decode("utf-8", "replace")
    reason = member.content.reason if isinstance(member.content, Omitted) else ""
    return f"Left out: {name[:LONGEST_TITLE]}: {reason[:LONGEST_TITLE]}"


class _Poster(Data):
    """The bytes of the data that ``find`` returns, called when they are first needed."""

    __slots__ = ("_found",)

    def __init__(self, find: Callable[[], Data]) -> None:
        self._found = cached(find)

    @property
    def size(self) -> int:
        return self._found().size

    @property
    def is_sized(self) -> bool:
        return False

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._found().read_into(buffer, offset)


def _first_image(recording: Recording, cache: BlockCache, key: Key) -> Data:
    for _, video, _ in _videos(recording.cameras()):
        numbers = range(video.count) if video.present is None else video.present
        if len(numbers):
            suffix, data = file_of(video.frame(numbers[0]), cache, key)
            if suffix in SHOWN_AS:
                return data
    return Memory(NO_IMAGE)


class _Camera(NamedTuple):
    name: tuple[bytes, ...]
    video: Video
    is_uniform: bool
    """Whether all frames exist and are of one kind."""


def _videos(cameras: Iterable[Member]) -> Iterator[_Camera]:
    for name, content in cameras:
        is_array = isinstance(content, Array)
        video = video_of(content)
        if video is not None and video.count > 0:
            yield _Camera(name, video, is_array)


def _cameras(members: Iterable[Member], cache: BlockCache, notes: list[str]) -> list[dict[str, Any]]:
    """Return what the script needs to name the file of each frame."""
    found: list[dict[str, Any]] = []
    probes, left = _Probes(cache), MOST_RUNS
    cameras = list(islice(_videos(members), MOST_CAMERAS + 1))
    if len(cameras) > MOST_CAMERAS:
        notes.append(f"Only the first {MOST_CAMERAS} cameras are shown.")
    shared = len({name[:1] for name, _, _ in cameras}) == 1 and all(len(name) > 1 for name, _, _ in cameras)
    for camera in cameras[:MOST_CAMERAS]:
        name, video, _ = camera
        label = escape.brief(b"/".join(name[shared:]), LONGEST_TEXT)
        runs = _Runs(camera, probes, left)
        left -= runs.count
        if runs.is_cut:
            notes.append(f"Of {label}, only the frames before {runs.end} are shown.")
        found.append({
            "name": label, "folder": escape.address(name) + "/", "video": escape.address(name, ".mp4"),
            "count": video.count, "width": video.width, "height": video.height, "digits": DIGITS,
            "suffixes": runs.suffixes, "runs": runs.numbers,
            "fps": video.fps() if callable(video.fps) else video.fps,
        })
    return found


class _Probes:
    """A budget of frames to read to find the suffixes of their files."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._left, self._bytes_left = MOST_PROBES, MOST_PROBED_BYTES

    @property
    def is_exhausted(self) -> bool:
        return self._left <= 0 or self._bytes_left <= 0

    def suffix(self, video: Video, number: int) -> str:
        """Return the suffix of a frame's file, or "" if it is unknown."""
        self._left -= 1
        try:
            content = video.frame(number)
            suffix, data = file_of(content, self._cache, ())
            self._bytes_left -= data.size
        except LASTING:
            return ""
        return suffix


class _Runs:
    """The files of a video's frames: runs of frames that exist and have one suffix.

    ``numbers`` has three integers for each run: its distance from the end of the previous run, its length, and the
    number of its suffix. Frames outside the budget are assumed to have the suffix of the previous one; if that is
    wrong, the page tries the other suffix.
    """

    def __init__(self, camera: _Camera, probes: _Probes, most: int) -> None:
        self.numbers = array("q")
        self.suffixes: list[str] = []
        self.end = 0
        self.is_cut = False
        self._assumed = SHOWN_AS[0]
        video = camera.video
        present: Sequence[int] = range(video.count) if video.present is None else video.present
        for first in range(0, len(present), AT_ONCE):
            if camera.is_uniform or (video.present is None and probes.is_exhausted):
                self._add(first, video.count - first, self._suffix(video, first, probes))
                return
            for number in present[first : first + AT_ONCE]:
                if video.is_missing is not None and video.is_missing(number):
                    continue
                self._add(number, 1, self._suffix(video, number, probes))
            if self.count > most:
                self.is_cut = True
                return

    @property
    def count(self) -> int:
        return len(self.numbers) // 3

    def _suffix(self, video: Video, number: int, probes: _Probes) -> str:
        found = "" if probes.is_exhausted else probes.suffix(video, number)
        if found in SHOWN_AS:
            self._assumed = found
        return found or self._assumed

    def _add(self, number: int, count: int, suffix: str) -> None:
        if suffix not in self.suffixes:
            self.suffixes.append(suffix)
        kind = self.suffixes.index(suffix)
        if self.numbers and self.end == number and self.numbers[-1] == kind:
            self.numbers[-2] += count
        else:
            self.numbers.extend((number - self.end, count, kind))
        self.end = number + count


def _rate(value: Any) -> float | None:
    is_number = type(value) in (int, float) and math.isfinite(value) and SLOWEST <= value <= FASTEST
    return float(value) if is_number else None


def _title(record: dict[str, Any]) -> str:
    instruction = record.get(INSTRUCTION)
    if isinstance(instruction, str) and instruction.strip():
        return instruction
    name = next((record[key] for key in _NAMES if record.get(key) is not None), None)
    return "Episode" if name is None else f"Episode {_text(name)}"


def _body(title: str, record: dict[str, Any], notes: list[str]) -> str:
    """Return the part of the page that needs no script; the script fills in the rest."""
    rows = "".join(
        f'<tr><th scope="row">{escape.html(_label(name))}</th><td dir="auto">{escape.html(_text(value))}</td></tr>\n'
        for name, value in list(record.items())[:MOST_FACTS]
    )
    items = "".join(f'<li dir="auto">{escape.html(escape.brief(note, LONGEST_TEXT))}</li>\n' for note in notes)
    return page.part(BODY).format(
        title=escape.html(escape.brief(title, LONGEST_TITLE)), outcome=_outcome(record.get(SUCCESS)), rows=rows,
        notes=items, embodiment=escape.html(_text(record.get("embodiment") or "")),
    )


def _outcome(success: Any) -> str:
    if not isinstance(success, bool):
        return ""
    return f'<span class="badge {"good" if success else "bad"}">{"succeeded" if success else "failed"}</span>'


def _label(name: str) -> str:
    return _LABELS.get(name) or escape.brief(name.replace("_", " "), LONGEST_TITLE).capitalize()


def _text(value: Any) -> str:
    """Return a value as text for readers."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    short = escape.brief(value, LONGEST_TEXT)
    return short if isinstance(short, str) else json.line(short).decode()[:LONGEST_TEXT]
