"""The record of an episode as a whole, the tables of the episode and of its steps, and its videos.

Any thread may use this module. Each use reads the metadata again; nothing is kept. Values of unreadable metadata are
unknown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from glassfs.content import Array, Cells, Column, Content, Counted, Member, Recording, Records, Table
from glassfs.content.table import WIDEST
from glassfs.content.video import is_video
from glassfs.formats.wshard.episode import EPISODE, WSHARD, Episode

EPISODES, CHANNELS, CAMERAS = b"episodes", "channels", "cameras"
STEPS, FRAME, WHOLE = b"steps", b"frame", b"episode"
COST = 8 << 10
TEXT_COST = 48  # per byte of JSON or name, as text of wide characters that all need escapes
MOST_CAMERAS = 256
_CHANNEL_PREFIXES = (b"signal/", b"action/")
_TEXTS = {
    "episode_name": ("episode_id", "id"), "embodiment": ("embodiment",), "env_id": ("env_id",),
    "language_instruction": ("language_instruction", "instruction", "task"),
}
"""Text fields of a record, and the metadata keys that may hold them."""
_COLUMNS = {
    "position": "<i8", **dict.fromkeys(_TEXTS, ""), "fps": "<f8", "success": "|b1", "total_reward": "<f8",
    "num_frames": "<i8", "state_dim": "<i8", "action_dim": "<i8", CHANNELS: "",
    CAMERAS: "",
}
"""Columns of the table of the episode, and their dtypes; text has none."""
_OWN_KEYS = {key for keys in _TEXTS.values() for key in keys} | {"length_T", "length_t", "chunks"}
_SURROGATE = re.compile("[\ud800-\udfff]")


class EpisodeRecord:
    """The record of an episode with ``steps`` steps and blocks called ``names``, of which ``cameras`` are videos.

    ``sources`` are metadata blocks, each given as an episode and a name; the first that has a key counts. ``left_out``
    are keys that do not describe the whole episode.
    """

    def __init__(
        self, sources: list[tuple[Episode, bytes]], steps: int | None, rate: Callable[[], float],
        names: Callable[[], Iterable[bytes]], cameras: Callable[[], Iterable[bytes]], left_out: tuple[str, ...] = (),
    ) -> None:
        self._sources = sources
        self._steps = steps
        self._rate = rate
        self._names = names
        self._cameras = cameras
        self._left_out = {*_OWN_KEYS, *left_out}

    def members(self, blocks: Iterable[Member], contents: Callable[[], Iterable[Content]]) -> Iterator[Member]:
        """Yield the blocks, then the table of steps if there are signals, and the episode.

        The table has a row per step and a column per signal: an array of one or two axes with steps first.
        ``contents`` returns the contents of the blocks again. If the number of steps is unknown, the first signal gives
        it.
        """
        signals, steps, member = 0, self._steps, None
        for member in blocks:
            yield member
            found = _steps(member.content)
            if found is not None and steps in (None, found):
                steps = found
                signals += 1
        table = Table(STEPS, steps or 0, partial(_columns, contents, steps or 0), width=1 + signals)
        if signals:
            yield Member((STEPS,), table)
        if member is not None:
            yield Member((WHOLE,), Recording(WHOLE, self._record, table, partial(_cameras, contents)))

    def table(self) -> Table:
        """Return the table of episodes with its only row."""
        return Table(EPISODES, 1, self._columns, Records(EPISODES, 1, self._rows, cost=self._cost))

    def _record(self) -> dict[str, Any]:
        """Return the row of the table, and all other values in the metadata."""
        with ExitStack() as stack:
            values = self._merged(stack)
            found = self._row(values)
            return found | {key: value for key, value in values.items() if key not in self._left_out | found.keys()}

    def _rows(self, block: int) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            return [self._row(self._merged(stack))]

    def _columns(self) -> list[Column]:
        found = []
        for name, dtype in _COLUMNS.items():
            content = Records(name.encode(), 1, partial(self._values, name), cost=self._cost)
            if dtype:
                content = Cells(content.key, 1, content.block, cost=self._cost, dtype=dtype)
            found.append(Column(content.key, content, is_list=name in (CHANNELS, CAMERAS)))
        return found

    def _values(self, name: str, block: int) -> list[Any]:
        return [row[name] for row in self._rows(block)]

    def _merged(self, stack: ExitStack) -> dict[str, Any]:
        """Return the values of all sources; they stay reserved while the stack is held."""
        found: dict[str, Any] = {}
        for episode, block in self._sources:
            value = stack.enter_context(episode.json(block))
            if isinstance(value, dict):
                found = value | found
        return found

    def _row(self, values: dict[str, Any]) -> dict[str, Any]:
        nested = values.get("metadata")
        objects = [values, nested] if isinstance(nested, dict) else [values]

        def first(keys: Iterable[str], is_valid: Callable[[Any], bool]) -> Any:
            candidates = (item[key] for item in objects for key in keys if key in item)
            return next(filter(is_valid, candidates), None)

        found: dict[str, Any] = dict.fromkeys(_COLUMNS)
        for name, keys in _TEXTS.items():
            text = first(keys, lambda value: isinstance(value, str))
            found[name] = None if text is None else _SURROGATE.sub("\ufffd", text)
        found["fps"] = self._rate() or None
        found["success"] = first(["success"], lambda value: isinstance(value, bool))
        reward = first(["total_reward"], _is_number)
        found["total_reward"] = None if reward is None else float(reward)
        found["num_frames"] = self._steps
        found[CHANNELS] = _texts(name for name in self._names() if name.startswith(_CHANNEL_PREFIXES))
        found[CAMERAS] = _texts(self._cameras())
        return found

    def _cost(self, block: int) -> int:
        sizes = [entry.size for episode, name in self._sources for entry in episode.index.find(name).values()]
        return COST + TEXT_COST * (sum(sizes) + 2 * sum(map(len, self._names())))


def record_of(episode: Episode) -> EpisodeRecord:
    """Return the record of an episode in one file."""
    sources = [(episode, block) for block in (EPISODE, WSHARD)]
    return EpisodeRecord(sources, episode.metadata.length, lambda: episode.rate, episode.names, episode.cameras)


def members(episode: Episode) -> Iterator[Member]:
    """Yield all blocks in the order of the index, the table of steps, and the episode."""
    return record_of(episode).members(episode.blocks(), lambda: map(episode.content, episode.index))


def _columns(contents: Callable[[], Iterable[Content]], steps: int) -> list[Column]:
    columns = [Column(FRAME, Array(FRAME, Counted(steps), "<i8", (steps,)))]
    for content in contents():
        if isinstance(content, Array) and _steps(content) == steps and len(columns) < WIDEST:
            columns.append(Column(content.key, content))
    return columns


def _shape(content: Content) -> tuple[int, ...]:
    return content.shape if isinstance(content, Array) and isinstance(content.shape, tuple) else ()


def _steps(content: Content) -> int | None:
    """Return the steps of a signal, or None if it is none."""
    shape = _shape(content)
    return shape[0] if len(shape) in (1, 2) and 0 not in shape[1:] else None


def _cameras(contents: Callable[[], Iterable[Content]]) -> list[Member]:
    """Return the first videos."""
    found: dict[bytes, Member] = {}
    for content in contents():
        if is_camera(content) and len(found) < MOST_CAMERAS:
            found.setdefault(content.key, Member(tuple(content.key.split(b"/")), content))
    return list(found.values())


def is_camera(content: Content) -> bool:
    return isinstance(content, Array) and is_video(content.dtype, _shape(content), content.modality)


def _texts(names: Iterable[bytes]) -> list[str]:
    return [name.decode("utf-8", "replace") for name in dict.fromkeys(names)]


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
