"""Pages that show episodes in a browser, without a server: frames, plots, metadata, and lists of episodes.

``page`` is what all share, and keeps untrusted text text. Scripts and styles are files of this package, embedded in
pages; ``data.js`` beside a page is loaded by it. Any thread.

The page of an episode is rendered when its size is first needed: that reads metadata, and decodes nothing. It names
what cannot be read. Its ``data.js`` has base64 of at most POINTS numbers for each channel; its size follows from the
columns and their lengths alone. Of more steps than POINTS, each stretch is reduced to its minimum and maximum; of very
many, only the first steps of each stretch are read, and the page says so. A damaged column is marked as damaged; the
others stay readable.

The page of a table has rows that describe things: the episodes of a container or of a folder, or the containers there.
Rows, up to MOST_ROWS and MOST_BYTES, link to the pages of episodes, or to the directories of other things. They are
made when the size is first needed, one block of records at a time. All containers have the same page, with the rows in
``data.js``. That of a folder has them in itself, as its ``data.js`` could be any file.
"""

from __future__ import annotations

import math
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache as cached
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

from glassfs.cache import BlockCache
from glassfs.content import (
    EPISODES,
    Array,
    Concatenated,
    Content,
    Counted,
    Data,
    Member,
    Memory,
    Omitted,
    Recording,
    Records,
    Rendered,
    Stream,
    Table,
    Video,
)
from glassfs.content.summary import Joined
from glassfs.content.video import DIGITS, video_of
from glassfs.errors import LASTING
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE
from glassfs.view import json
from glassfs.view.canonical import file_of
from glassfs.view.contract import Key, Shown, View
from glassfs.view.html import page
from glassfs.view.mp4 import USUAL_RATE, is_rate

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
POINTS = 2000
MOST_CHANNELS = 256
"""Limit of plots in a page; half of it is that of one column."""
MOST_READ = 256 << 20
"""Limit of bytes read of all columns; each has the same share."""

_PLOTTED = {"|b1", "|i1", "|u1"} | {f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)} | {"<f2", "<f4", "<f8"}
_EXACT = {"|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<f4"}
"""Types that 32-bit floats hold exactly. Times in nanoseconds, for example, would become a staircase."""
_GOOD, _DAMAGED = b"1", b"0"
_BEFORE, _AFTER = b'glassfs.values(%d, "', b'", %b);\n'
"""What is around the values of a column: its number, and whether they are good."""


def _of_episode(recording: Recording, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, its data and the poster."""
    made = Rendered(cache, (*key, "page"), partial(_page, recording), cost=4 * page.BUDGET)
    yield Shown(made, page.SUFFIX, page.NAME)
    yield Shown(_data_of(recording.steps, cache, (*key, "data")), page.DATA_SUFFIX, page.DATA_NAME)
    yield Shown(page.Deferred(partial(_first_image, recording, cache, (*key, "poster"))), "", POSTER)


def _page(recording: Recording) -> bytes:
    notes: list[str] = []
    record: dict[str, Any] = {}
    try:
        # A page shows what can be read: damage costs the part of it that it affects, and is noted there.
        record = recording.record()
    except LASTING as error:
        notes.append(f"The metadata cannot be read: {error.without_source}")
    cameras: list[dict[str, Any]] = []
    try:
        cameras = _cameras(recording.cameras(), notes)
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
    before, after = page.frame(title, _body(title, record, notes), "episode.js")
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


def _cameras(members: Iterable[Member], notes: list[str]) -> list[dict[str, Any]]:
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
            "runs": runs,
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
    return page.PARTS["episode.html"].format(
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


# The values of an episode for its page.


class _PlottedColumn(NamedTuple):
    """A column whose steps become points: one for ``stretch`` steps, of which the first ``taken`` are read."""

    name: bytes
    array: Array
    items: int
    channels: int
    """Number of items that are plotted."""
    steps: int
    stretch: int
    taken: int

    @property
    def points(self) -> int:
        """NDArray[Any] of a channel: one for each step, or the minimum and maximum of each stretch."""
        return self.steps if self.stretch == 1 else 2 * -(-self.steps // self.stretch)

    @property
    def is_exact(self) -> bool:
        return self.array.dtype in _EXACT

    @property
    def size(self) -> int:
        return self.points * self.channels * (4 if self.is_exact else 8)


def _data_of(steps: Table, cache: BlockCache, key: Key) -> Data:
    """Return the bytes of the file for the steps of an episode: its head, and a part for each column."""

    def find() -> Data:
        columns, left_out = _columns(steps)
        parts: list[Data] = [Memory(_head(steps.rows, columns, left_out))]
        for number, column in enumerate(columns):
            size = _size(number, column)
            made = partial(_made, number, column)
            # The points of a column are made from up to its share of what is read, a piece at a time.
            parts.append(Rendered(cache, (*key, number), made, size, 4 * (PIECE + size)))
        return Concatenated(parts)

    return page.Deferred(find)


def _columns(steps: Table) -> tuple[list[_PlottedColumn], int]:
    """Return the plotted columns, and the number of channels left out because there are too many."""
    found: list[_PlottedColumn] = []
    left_out = 0
    left = MOST_CHANNELS
    columns = ((column.name, column.content) for column in steps.columns())
    plotted = [(name, array) for name, array in columns if _is_plotted(array, steps.rows)]
    stretch = 1 if steps.rows <= POINTS else -(-steps.rows // (POINTS // 2))
    # Each column has its share, so that the size of one does not depend on the values of others.
    read = MOST_READ // max(1, min(len(plotted), MOST_CHANNELS)) // -(-max(1, steps.rows) // stretch)
    for name, content in plotted:
        items = math.prod((content.known_shape or ())[1:])
        channels = min(items, left, MOST_CHANNELS // 2)
        left -= channels
        left_out += items - channels
        if channels:
            taken = max(1, min(stretch, read // (items * int(content.dtype[2:]))))
            found.append(_PlottedColumn(name, content, items, channels, steps.rows, stretch, taken))
    return found, left_out


def _is_plotted(array: Content, rows: int) -> TypeGuard[Array]:
    if not isinstance(array, Array):
        return False
    shape = array.known_shape
    return (
        shape is not None and len(shape) > 0 and shape[0] == rows > 0 and 0 not in shape
        and array.dtype in _PLOTTED and not isinstance(array.data, Counted) and video_of(array) is None
    )


def _head(rows: int, columns: Sequence[_PlottedColumn], left_out: int) -> bytes:
    described = [
        {
            "name": page.brief(column.name, page.LONGEST_TITLE), "items": column.items, "channels": column.channels,
            "type": "f4" if column.is_exact else "f8", "stretch": column.stretch, "taken": column.taken,
            "points": column.points,
        }
        for column in columns
    ]
    facts = {"rows": rows, "leftOut": left_out, "columns": described}
    return b'"use strict";\nglassfs.columns(%b);\n' % page.script(facts)


def _size(number: int, column: _PlottedColumn) -> int:
    return len(_BEFORE % number) + 4 * -(-column.size // 3) + len(_AFTER % _GOOD)


def _made(number: int, column: _PlottedColumn) -> bytes:
    dtype = "<f4" if column.is_exact else "<f8"
    state = _GOOD
    try:
        values = _values(column, dtype)
    except LASTING:
        # The size is known already, so a column that cannot be read has zeros in its place, and says so.
        values, state = np.zeros(column.size, np.uint8), _DAMAGED
    return _BEFORE % number + b2a_base64(values.tobytes(), newline=False) + _AFTER % state


def _values(column: _PlottedColumn, dtype: str) -> NDArray[Any]:
    """Return the points, one channel after another."""
    if column.stretch == 1:
        return np.concatenate([part.astype(dtype) for part in _read(column, 0, column.steps)]).T
    points = np.empty((column.channels, column.points // 2, 2), dtype)
    for point in range(points.shape[1]):
        first = point * column.stretch
        # The minimum and the maximum of each stretch: an outlier of one step in a million stays visible. NaN does not
        # count, unless a stretch has nothing else.
        least = greatest = np.full(column.channels, np.nan)
        for part in _read(column, first, min(column.taken, column.steps - first)):
            values = part.astype(dtype)
            least = np.fmin(least, np.fmin.reduce(values))
            greatest = np.fmax(greatest, np.fmax.reduce(values))
        points[:, point, 0], points[:, point, 1] = least, greatest
    return points


def _read(column: _PlottedColumn, first: int, count: int) -> Iterator[NDArray[Any]]:
    """Yield the channels of ``count`` steps, some steps at a time."""
    item = int(column.array.dtype[2:])
    width, wanted = column.items * item, column.channels * item
    data = column.array.data
    at_once = max(1, PIECE // wanted)
    for start in range(first, first + count, at_once):
        steps = min(at_once, first + count - start)
        if wanted == width:
            raw = data.read(start * width, steps * width)
        else:  # the values that are not plotted may be many times as much
            raw = b"".join(data.read(step * width, wanted) for step in range(start, start + steps))
        yield np.frombuffer(raw, column.array.dtype).reshape(steps, column.channels)


PLACE = "place"
MOST_ROWS = 100_000
MOST_BYTES = 32 << 20
MOST_AT_ONCE = 2000
"""Rows of a page whose filter a server applies."""


def show(content: Recording | Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the files of an episode or of a table of episodes."""
    if isinstance(content, Recording):
        yield from _of_episode(content, cache, key)
    else:
        yield from _of_table(content, cache, key)


def _of_table(table: Table, cache: BlockCache, key: Key) -> Iterator[Shown]:
    """Yield the page, or nothing for a table whose rows have no directories."""
    if table.records is None:
        return
    if isinstance(table, Joined):
        before, after = _around(table.name, has_data=False)
        rows = partial(_pieces, table, table.records, cache, before + b'{"rows": [\n', after)
        yield Shown(Stream(cache, key, rows), page.SUFFIX, page.NAME if table.is_first else table.name.encode())
    elif table.directory:
        rows = partial(_pieces, table, table.records, cache, b'"use strict";\nglassfs.rows({"rows": [\n', b");\n")
        yield Shown(Memory(_list_page()), page.SUFFIX, page.NAME)
        yield Shown(Stream(cache, key, rows), page.DATA_SUFFIX, page.DATA_NAME)


@cached
def _list_page() -> bytes:
    return b"null".join(_around(EPISODES, has_data=True))


def _around(table: str, has_data: bool) -> tuple[bytes, bytes]:
    """Return what is before and after the facts of the page of a table."""
    is_of_episodes = table == EPISODES
    thing = "episode" if is_of_episodes else "row"
    words = {
        "Things": f"{thing}s".capitalize() if is_of_episodes else page.brief(table, page.LONGEST_TITLE),
        "things": f"{thing}s", "a thing": f"{'an' if is_of_episodes else 'a'} {thing}", "table": table,
    }
    body = page.PARTS["list.html"].format(**{placeholder: page.html(word) for placeholder, word in words.items()})
    return page.frame(words["Things"], body, "list.js", has_data)


def rows_page(
    table: Table, cache: BlockCache, keep: Callable[[Mapping[str, Any]], bool] | None, where: str,
) -> Iterator[bytes]:
    """Yield the page of a table with the first rows that satisfy a condition, of which ``where`` is the text."""
    before, after = _around(table.name if isinstance(table, Joined) else EPISODES, has_data=False)
    assert table.records is not None
    return _pieces(table, table.records, cache, before + b'{"rows": [\n', after, MOST_AT_ONCE, keep, where)


def _pieces(
    table: Table, records: Records, cache: BlockCache, before: bytes, after: bytes, most: int = 0,
    keep: Callable[[Mapping[str, Any]], bool] | None = None, where: str | None = None,
) -> Iterator[bytes]:
    """Yield the rows, one on a line, and the facts about them, between ``before`` and ``after``.

    ``where`` is the condition that a server applied; None without a server.
    """
    names: list[str] = []
    rows, left, is_cut = 0, MOST_BYTES, False
    yield before
    for number in range(records.blocks):
        lines: list[bytes] = []
        with cache.measuring(records.cost(number)):
            for record in records.block(number):
                if keep is not None and not keep(record):
                    continue
                short = {name: page.brief(value, page.LONGEST_TEXT) for name, value in record.items()}
                if isinstance(table, Joined):
                    short[PLACE] = page.brief(table.path_of(record), 2 * page.LONGEST_TEXT)
                # Most rows have the names of the first one. They are lists of values, which take fewer bytes.
                names = names or list(short)
                lines.append(page.script(list(short.values()) if list(short) == names else short) + b",\n")
                left -= len(lines[-1])
                is_cut = left < 0 or rows + len(lines) > (most or MOST_ROWS)
                if is_cut:
                    lines.pop()
                    break
        rows += len(lines)
        yield b"".join(lines)
        if is_cut:
            break
    yield _facts(table, names, rows, where) + after


def _facts(table: Table, names: list[str], rows: int, where: str | None) -> bytes:
    """Return what follows the rows, starting with a null that ends their list."""
    known = table.attributes()
    facts = {
        "names": names, "total": max(rows, table.rows), "omitted": known.get("omitted"),
        "error": page.brief(known.get("error"), page.LONGEST_TEXT),
        "directory": page.address((table.directory,)) if table.directory else None,
        "selection": table.selection and page.brief(table.selection.text, page.LONGEST_TEXT),
    }
    if where is not None:
        facts["where"] = where
    if isinstance(table, Joined):
        facts |= {
            "table": page.brief(table.name, page.LONGEST_TITLE), "title": page.brief(table.title, page.LONGEST_TITLE),
            "tables": [page.brief(name, page.LONGEST_TITLE) for name in table.tables()],
        }
    return b'null], "facts": %b}' % page.script(facts)


VIEW = View("html", "episodes in a browser: a page for each, and lists of them", (Recording, Table), show)
