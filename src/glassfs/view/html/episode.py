"""The page of an episode: its metadata, its cameras frame by frame, and plots of its steps.

The page is rendered when its size is first needed: that reads metadata and the headers of images, and decodes nothing.
The page names what cannot be read. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Data, Member, Memory, Omitted, Recording, Rendered, Video
from glassfs.content.video import DIGITS, video_of
from glassfs.errors import LASTING
from glassfs.view import json
from glassfs.view.canonical import file_of
from glassfs.view.contract import Key, Shown
from glassfs.view.html import page, plots
from glassfs.view.mp4 import USUAL_RATE, is_rate

BODY, SCRIPT = "episode.html", "episode.js"
POSTER = b"poster"
"""The first image of the first camera; the name is the same for all episodes, so lists need no look-up."""
NO_IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
    "0000000b4944415478da6364600000000600023081d02f0000000049454e44ae426082"
)
"""One transparent pixel: the poster of an episode without cameras."""
MOST_CAMERAS = 64
RUN = 16
"""Characters of a run of frames in a page, roughly."""
SHOWN_AS = (".png", ".jpg")

_NAMES = ("episode_name", "episode_id", "position")
_LABELS = {
    "language_instruction": "Instruction", "fps": "Frames a second", "num_frames": "Frames", "episode_id": "Id",
    "episode_name": "Name", "state_dim": "State dimensions", "action_dim": "Action dimensions",
    "env_name": "Environment",
}


def shown(recording: Recording, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, its data and the poster."""
    made = Rendered(cache, (*key, "page"), partial(_page, recording, cache), cost=4 * page.BUDGET)
    yield Shown(made, page.SUFFIX, page.NAME)
    yield Shown(plots.data_of(recording.steps, cache, (*key, "data")), page.DATA_SUFFIX, page.DATA_NAME)
    yield Shown(page.Deferred(partial(_first_image, recording, cache, (*key, "poster"))), "", POSTER)


def _page(recording: Recording, cache: BlockCache) -> bytes:
    notes: list[str] = []
    record: dict[str, Any] = {}
    try:
        # A page shows what can be read: damage costs the part of it that it affects, and is noted there.
        record = recording.record()
    except LASTING as error:
        notes.append(f"The metadata cannot be read: {error.without_source}")
    cameras: list[dict[str, Any]] = []
    try:
        cameras = _cameras(recording.cameras(), cache, notes)
    except LASTING as error:
        notes.append(f"The cameras cannot be shown: {error.without_source}")
    try:
        notes += page.fitting(map(_left_out, recording.omitted()))
        recording.steps.columns()
    except LASTING as error:
        notes.append(f"The steps cannot be plotted: {error.without_source}")
    rates = [record.get("fps"), *(camera.pop("fps") for camera in cameras)]
    rate = next((float(value) for value in rates if is_rate(value)), None)
    if rate is None and cameras:
        notes.append(f"The frame rate is unknown; {USUAL_RATE} frames a second are assumed.")
    facts = {
        "fps": rate or float(USUAL_RATE), "rows": recording.steps.rows, "cameras": cameras,
        "number": record.get("position"), "up": recording.depth,
    }
    title = _title(record)
    before, after = page.frame(title, _body(title, record, notes), SCRIPT)
    return before + page.script(facts) + after


def _left_out(member: Member) -> str:
    name = b"/".join(member.name).decode("utf-8", "replace")
    reason = member.content.reason if isinstance(member.content, Omitted) else ""
    return f"Left out: {name[:page.LONGEST_TITLE]}: {reason[:page.LONGEST_TITLE]}"


def _first_image(recording: Recording, cache: BlockCache, key: Key) -> Data:
    for _, video in _videos(recording.cameras()):
        numbers = range(video.count) if video.present is None else video.present
        if len(numbers):
            suffix, data = file_of(video.frame(numbers[0]), cache, key)
            if suffix in SHOWN_AS:
                return data
    return Memory(NO_IMAGE)


def _videos(cameras: Iterable[Member]) -> Iterator[tuple[tuple[bytes, ...], Video]]:
    for name, content in cameras:
        video = video_of(content)
        if video is not None and video.count > 0:
            yield name, video


def _cameras(members: Iterable[Member], cache: BlockCache, notes: list[str]) -> list[dict[str, Any]]:
    """Return what the script needs to name the file of each frame."""
    cameras = list(islice(_videos(members), MOST_CAMERAS + 1))
    if len(cameras) > MOST_CAMERAS:
        notes.append(f"Only the first {MOST_CAMERAS} cameras are shown.")
    # Cameras that are all in ``images/`` are called by what follows.
    shared = len({name[:1] for name, _ in cameras}) == 1 and all(len(name) > 1 for name, _ in cameras)
    facts, left = [], page.BUDGET
    for name, video in cameras[:MOST_CAMERAS]:
        label = page.brief(video.title or b"/".join(name[shared:]), page.LONGEST_TEXT)
        runs, end = _runs(video, left)
        left -= RUN * len(runs) // 2
        if end < video.count:
            notes.append(f"Of {label}, only the frames before {end} are shown.")
        facts.append({
            "name": label, "folder": page.address(name) + "/", "video": page.address(name, ".mp4"),
            "count": video.count, "width": video.width, "height": video.height, "digits": DIGITS,
            "suffix": _suffix(video, runs, cache), "runs": runs,
            "fps": video.fps() if callable(video.fps) else video.fps,
        })
    return facts


def _runs(video: Video, budget: int) -> tuple[list[int], int]:
    """Return which frames exist: pairs of how many are missing and how many exist then. And the frame after the last
    one that is known; the others are too many runs.
    """
    if video.present is None and video.is_missing is None:
        return [0, video.count], video.count
    runs: list[int] = []
    end = 0
    numbers = range(video.count) if video.present is None else video.present
    for number in numbers[: page.BUDGET]:
        if video.is_missing is not None and video.is_missing(number):
            continue
        if runs and number == end:
            runs[-1] += 1
        elif RUN * len(runs) // 2 > budget:
            return runs, end
        else:
            runs += [number - end, 1]
        end = number + 1
    return runs, video.count if len(numbers) <= page.BUDGET else end


def _suffix(video: Video, runs: Sequence[int], cache: BlockCache) -> str:
    """Return the suffix of the file of the first frame."""
    # Other frames may have the other suffix: the script tries it. To look at all would read each of them.
    try:
        return file_of(video.frame(runs[0]), cache, ()).suffix if runs else SHOWN_AS[0]
    except LASTING:
        return SHOWN_AS[0]


def _title(record: dict[str, Any]) -> str:
    instruction = record.get("language_instruction")
    if isinstance(instruction, str) and instruction.strip():
        return instruction
    name = next((record[key] for key in _NAMES if record.get(key) is not None), None)
    return "Episode" if name is None else f"Episode {_text(name)}"


def _body(title: str, record: dict[str, Any], notes: list[str]) -> str:
    """Return the part of the page that needs no script; the script fills in the rest."""
    rows = "".join(page.fitting(
        f'<tr><th scope="row">{page.html(_label(name))}</th><td dir="auto">{page.html(_text(value))}</td></tr>\n'
        for name, value in record.items()
    ))
    items = "".join(f'<li dir="auto">{page.html(page.brief(note, page.LONGEST_TEXT))}</li>\n' for note in notes)
    outcomes = {True: '<span class="badge good">succeeded</span>', False: '<span class="badge bad">failed</span>'}
    success = record.get("success")
    return page.PARTS[BODY].format(
        title=page.html(page.brief(title, page.LONGEST_TITLE)), rows=rows, notes=items,
        outcome=outcomes[success] if isinstance(success, bool) else "",
        embodiment=page.html(_text(record.get("embodiment") or "")),
    )


def _label(name: str) -> str:
    return _LABELS.get(name) or page.brief(name.replace("_", " "), page.LONGEST_TITLE).capitalize()


def _text(value: Any) -> str:
    """Return a value as text for readers."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    short = page.brief(value, page.LONGEST_TEXT)
    return short if isinstance(short, str) else json.line(short).decode()[:page.LONGEST_TEXT]
