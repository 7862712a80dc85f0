"""Episodes of recordings, for formats: the table of them, and the steps and cameras of one, made from its contents.

A format that has episodes gives ``episodes_table`` to its ``Container``, and yields the members of each episode through
``with_recording``. All views of episodes, the joined tables and the commands follow from that. Any thread; nothing is
read before it is used, and nothing is kept.

The *features* of an episode are its signals and cameras without their data, as one short text: so a table over many
containers knows of each episode which others are of the same kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from glassfs import names
from glassfs.content.data import Counted
from glassfs.content.model import Array, Content, Member, Omitted, Records
from glassfs.content.table import WIDEST, Column, Recording, Table
from glassfs.content.video import video_of
from glassfs.errors import Damaged

EPISODES_KEY, STEPS, FRAME, WHOLE = b"episodes", b"steps", b"frame", b"episode"
TEXT, TEXTS = "", "list"
POSITION = "position"
EPISODE_COLUMNS: Mapping[str, str] = {
    POSITION: "<i8",  # number of the episode in its container, None if the container is the episode
    "episode_id": "<u8",
    "episode_name": TEXT,  # of a container whose ids are texts
    "embodiment": TEXT,
    "env_name": TEXT,  # of the environment, such as a simulated task
    "language_instruction": TEXT,
    "fps": "<f8",  # steps per second
    "success": "|b1",
    "total_reward": "<f8",
    "num_frames": "<i8",  # steps
    "state_dim": "<i8",  # values in the state of a step
    "action_dim": "<i8",
    "channels": TEXTS,  # names of the signals
    "cameras": TEXTS,  # names of the videos
    "splits": TEXTS,  # names of the lists, such as train and valid, that have the episode
}
"""The columns that joined tables have as well, and their dtypes: TEXT has none, TEXTS is a list of texts."""
MOST_CAMERAS = 256
LONGEST = 64 << 10
"""Limit of characters in a text, and in a list of texts in all."""


def episodes_table(
    count: int, block: Callable[[int], Sequence[Mapping[str, Any]]], blocks: int = 1,
    columns: Mapping[str, str] = EPISODE_COLUMNS, cost: Callable[[int], int] = lambda block: 1 << 20,
    directory: bytes = b"", recording: Callable[[int], Recording] | None = None,
    features: Callable[[int], Sequence[str]] | None = None,
) -> Table:
    """Return the table of ``count`` episodes, one row each.

    ``block(i)`` returns the rows of block i of ``blocks``: values by the names of ``columns``; a missing one is None.
    ``cost(i)`` is the memory in bytes that they may take, together with one of them as JSON. ``columns`` may leave out
    some of EPISODE_COLUMNS, which a format cannot have, and add others, which joined tables do not show. If episodes
    are subdirectories named by their numbers, ``directory`` is the name of the directory around them. For ``recording``
    and ``features`` see ``Table``: with both, views can show recordings of many containers as one dataset.
    """
    def rows(number: int) -> list[dict[str, Any]]:
        return [{name: row.get(name) for name in columns} for row in block(number)]

    records = Records(EPISODES_KEY, blocks, block, cost=cost)
    made = partial(columns_of, columns.items(), records, lambda row, name, dtype: row.get(name))
    records = replace(records, block=rows)
    return Table(EPISODES_KEY, count, made, records, directory, recording=recording, features=features)


def record_cost(text: int) -> int:
    """Return the memory in bytes that the record of an episode may take with its JSON, made of ``text`` bytes."""
    return (8 << 10) + 48 * text  # of wide characters that all need escapes


def recording_in(members: Iterable[Member]) -> Recording:
    """Return the recording among the members of an episode. Raises Damaged if there is none."""
    for member in members:
        if isinstance(member.content, Recording):
            return member.content
    raise Damaged("is not an episode any more")


def columns_of(
    columns: Iterable[tuple[str, str]], records: Records, value: Callable[[Any, str, str], Any],
) -> list[Column]:
    """Return columns of records, given their names and dtypes, TEXT and TEXTS included.

    ``value`` returns that of a record, given also the name and the dtype of the column.
    """
    def values(name: str, dtype: str, number: int) -> list[Any]:
        return [value(record, name, dtype) for record in records.block(number)]

    found = []
    for name, dtype in columns:
        key, is_list = name.encode("utf-8", "replace"), dtype == TEXTS
        made = replace(records, key=key, block=partial(values, name, dtype), dtype=TEXT if is_list else dtype)
        found.append(Column(key, made, is_list))
    return found


def with_recording(
    members: Callable[[], Iterable[Member]], record: Callable[[], dict[str, Any]], steps: int | None = None,
    depth: int | None = None, is_aligned: bool = False,
) -> Iterator[Member]:
    """Yield the members of an episode, then the table of its steps if it has signals, and the episode as a whole.

    A signal is an array of one or two axes, the first of which has ``steps`` rows; if that is unknown, the first signal
    gives it. The table has a column for each, called by its name with slashes, after the column ``frame``. Cameras are
    videos, and arrays that views may take for videos. ``members`` is called again when they are needed; its names begin
    at the directory of the episode. ``record`` returns what is known of the episode, JSON values by name; for names of
    EPISODE_COLUMNS, those of the table. For ``depth`` and ``is_aligned`` see ``Recording``.
    """
    signals, member = 0, None
    for member in members():
        yield member
        # Members are yielded as they come, and only counted: a container may have very many, and the table is seldom
        # needed.
        found = steps_of(member.content)
        if found is not None and steps in (None, found):
            steps = found
            signals += 1
    table = Table(STEPS, steps or 0, lambda: step_columns(members(), steps or 0), width=1 + signals)
    if signals:
        yield Member((STEPS,), table)
    if member is not None:
        yield Member((WHOLE,), Recording(
            WHOLE, record, table, partial(_cameras, members),
            lambda: [member for member in members() if isinstance(member.content, Omitted)], depth, is_aligned,
        ))


def steps_of(content: Content) -> int | None:
    """Return the rows of an array that may be a signal, or None for other contents."""
    shape = (content.known_shape or ()) if isinstance(content, Array) else ()
    return shape[0] if len(shape) in (1, 2) and 0 not in shape[1:] else None


def is_camera(content: Content) -> bool:
    """Return whether views may show a content as a video."""
    return video_of(content) is not None


def step_columns(members: Iterable[Member], steps: int) -> list[Column]:
    """Return the columns of a table of ``steps`` steps: ``frame``, and the signals among the members of an episode."""
    columns = [Column(FRAME, Array(FRAME, Counted(steps), "<i8", (steps,)))]
    for name, content in members:
        if isinstance(content, Array) and steps_of(content) == steps and len(columns) < WIDEST:
            columns.append(Column(b"/".join(name), content))
    return columns


def _cameras(members: Callable[[], Iterable[Member]]) -> list[Member]:
    """Return the first videos, the first of each name."""
    found: dict[tuple[bytes, ...], Member] = {}
    for member in islice((member for member in members() if is_camera(member.content)), MOST_CAMERAS):
        found.setdefault(member.name, member)
    return list(found.values())


OBSERVED = ("signal", "obs", "observation", "observations")
"""Groups of observations."""
ACTIONS, OUTCOMES = ("action", "actions"), ("reward", "rewards", "is_terminal", "done", "dones", "success")


class Signal(NamedTuple):
    """An array with a row for each step: its path in the episode, its dtype, and the values in a row.

    ``length`` is None if each row is a single value, in an array of one axis. ``role`` is that of the array.
    """

    name: str
    dtype: str
    length: int | None
    role: str = ""


class Camera(NamedTuple):
    """A video with a frame for each step: its path in the episode, and its size in pixels.

    ``reason`` says why it cannot be shown as 8-bit frames, if it cannot. ``title`` is its name for people, if it has
    one beside its path.
    """

    name: str
    width: int
    height: int
    reason: str = ""
    title: str = ""


class Features(NamedTuple):
    """The signals and cameras of a recording, in the container's order. Bytes of names that are not UTF-8 are
    surrogates.
    """

    signals: tuple[Signal, ...]
    cameras: tuple[Camera, ...]


def features_of(members: Iterable[Member], steps: int | None) -> str:
    """Return the features of an episode with these contents as text; empty if they are unknown.

    If ``steps`` is unknown, the first signal gives it, as for ``with_recording``.
    """
    signals: list[Signal] = []
    videos: list[tuple[str, Content]] = []
    for name, content in members:
        text, found = names.text(b"/".join(name)), steps_of(content)
        if is_camera(content):
            videos.append((text, content))
        elif isinstance(content, Array) and found is not None and steps in (None, found) and len(signals) < WIDEST:
            steps = found
            signals.append(signal_of(text, content))
    cameras = [_camera(text, content, steps) for text, content in videos]
    return features_text(signals, list(filter(None, cameras))[:MOST_CAMERAS])


def signal_of(name: str, array: Array) -> Signal:
    shape = array.known_shape or ()
    return Signal(name, array.dtype, shape[1] if len(shape) == 2 else None, array.role)


def states_of(signals: Sequence[Signal]) -> list[Signal]:
    """Return the signals that are the state of a step, one after another.

    They are what a layout calls that; else the one called ``state``; else all vectors of floats that are observations.
    """
    known = [signal for signal in signals if signal.role == "state"]
    if known:
        return known
    parts = {signal: signal.name.split("/") for signal in signals}
    heads = {split[0] for split in parts.values() if len(split) > 1}
    # Where a container has a group of observations, signals outside it are something else. Where it has none, all
    # signals are observations but those with a meaning of their own.
    has_group = any(head in heads for head in OBSERVED)
    observed = [
        signal for signal, split in parts.items()
        if (split[0] in OBSERVED if has_group else len(split) == 1 and split[0] not in (*ACTIONS, *OUTCOMES))
    ]
    state = next((signal for signal in (*observed, *signals) if parts[signal][-1] == "state"), None)
    vectors = [signal for signal in observed if signal.dtype[1] == "f" and signal.length is not None]
    return vectors if state is None else [state]


def features_text(signals: Sequence[Signal], cameras: Sequence[Camera]) -> str:
    """Return features as text. Equal features have equal texts; too many of them are unknown."""
    text = json.dumps([signals, cameras], separators=(",", ":"))
    return text if len(text) <= LONGEST else ""


def features_in(text: str) -> Features | None:
    """Return the features in a text, or None if they are unknown."""
    if not text:
        return None
    signals, cameras = json.loads(text)
    return Features(tuple(Signal(*signal) for signal in signals), tuple(Camera(*camera) for camera in cameras))


def _camera(name: str, content: Content, steps: int | None) -> Camera | None:
    """Return a camera, or None if it has not a frame for each step."""
    video = video_of(content)
    if video is None or video.count != steps:
        return None
    is_deep = isinstance(content, Array) and content.dtype == "<u2"
    return Camera(name, video.width, video.height, "has samples of 16 bits" if is_deep else "", video.title)
