"""The record of an episode as a whole, and its table with the names of its channels.

Any thread may use this module. Each use reads the metadata again; nothing is kept. Values of unreadable metadata are
unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from glassfs.content import Cells, Column, Member, Records, Table
from glassfs.formats.wshard.episode import EPISODE, WSHARD, Episode
from glassfs.formats.wshard.steps import with_recording

NAME = b"episodes"
CHANNELS = "channels"
COST = 8 << 10
TEXT_COST = 48  # per byte of JSON or name, as text of wide characters that all need escapes
_CHANNEL_PREFIXES = (b"signal/", b"action/")
_TEXTS = {
    "episode_name": ("episode_id", "id"), "embodiment": ("embodiment",), "env_id": ("env_id",),
    "language_instruction": ("language_instruction", "instruction", "task"),
}
"""Text fields of a record, and the metadata keys that may hold them."""
_DTYPES = {
    "position": "<i8", "fps": "<f8", "success": "|b1", "total_reward": "<f8", "num_frames": "<i8", "state_dim": "<i8",
    "action_dim": "<i8",
}
_ORDER = (
    "position", "episode_name", "embodiment", "env_id", "language_instruction", "fps", "success", "total_reward",
    "num_frames", "state_dim", "action_dim", CHANNELS,
)
_OWN_KEYS = {key for keys in _TEXTS.values() for key in keys} | {"length_T", "length_t", "chunks"}
_SURROGATE = re.compile("[\ud800-\udfff]")


class EpisodeRecord:
    """The record of an episode with ``steps`` steps and blocks called ``names``.

    ``sources`` are metadata blocks, each given as an episode and a name; the first that has a key counts. ``left_out``
    are keys that do not describe the whole episode.
    """

    def __init__(
        self, sources: list[tuple[Episode, bytes]], steps: int | None, rate: Callable[[], float],
        names: Callable[[], Iterable[bytes]], left_out: tuple[str, ...] = (),
    ) -> None:
        self._sources = sources
        self._steps = steps
        self._rate = rate
        self._names = names
        self._left_out = {*_OWN_KEYS, *left_out}

    def table(self) -> Table:
        return Table(NAME, 1, self._columns, Records(NAME, 1, self._rows, cost=self._cost))

    def record(self) -> dict[str, Any]:
        """Return the row of the table, and all other values in the metadata."""
        with ExitStack() as stack:
            values = self._merged(stack)
            found = self._row(values)
            return found | {key: value for key, value in values.items() if key not in self._left_out | found.keys()}

    def _rows(self, block: int) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            return [self._row(self._merged(stack))]

    def _columns(self) -> list[Column]:
        return [Column(name.encode(), self._column(name), is_list=name == CHANNELS) for name in _ORDER]

    def _column(self, name: str) -> Records:
        def block(number: int) -> list[Any]:
            return [row[name] for row in self._rows(number)]

        dtype = _DTYPES.get(name)
        if dtype is None:
            return Records(name.encode(), 1, block, cost=self._cost)
        return Cells(name.encode(), 1, block, cost=self._cost, dtype=dtype)

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

        found: dict[str, Any] = dict.fromkeys(_ORDER)
        for name, keys in _TEXTS.items():
            text = first(keys, lambda value: isinstance(value, str))
            found[name] = None if text is None else _SURROGATE.sub("\ufffd", text)
        found["fps"] = self._rate() or None
        found["success"] = first(["success"], lambda value: isinstance(value, bool))
        reward = first(["total_reward"], _is_number)
        found["total_reward"] = None if reward is None else float(reward)
        found["num_frames"] = self._steps
        found[CHANNELS] = list(self._channels())
        return found

    def _channels(self) -> Iterator[str]:
        seen: set[bytes] = set()
        for name in self._names():
            if name.startswith(_CHANNEL_PREFIXES) and name not in seen:
                seen.add(name)
                yield name.decode("utf-8", "replace")

    def _cost(self, block: int) -> int:
        sizes = [entry.size for episode, name in self._sources for entry in episode.index.find(name).values()]
        names = sum(map(len, self._names()))
        return COST + TEXT_COST * (sum(sizes) + names)


def record_of(episode: Episode) -> EpisodeRecord:
    """Return the record of an episode in one file."""
    names = partial(_names_of, episode)
    sources = [(episode, block) for block in (EPISODE, WSHARD)]
    return EpisodeRecord(sources, episode.metadata.length, episode.rate, names)


def members(episode: Episode) -> Iterator[Member]:
    """Yield all blocks in the order of the index, the table of steps, and the episode."""
    return with_recording(episode.blocks(), episode.metadata.length, episode.contents, record_of(episode).record)


def _names_of(episode: Episode) -> Iterator[bytes]:
    return (entry.name for entry in episode.index if entry.name is not None)


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False
