"""The record of an episode as a whole, the tables of the episode and of its steps, and its videos. Any thread.

Each use reads the metadata again; nothing is kept. Values of unreadable metadata are unknown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from glassfs.content import Member, Table, episodes_table, with_recording
from glassfs.content.episodes import EPISODE_COLUMNS, is_camera, record_cost, recording_in
from glassfs.content.features import features_of
from glassfs.formats.wshard.episode import EPISODE, WSHARD, WShardEpisode

_CHANNEL_PREFIXES = (b"signal/", b"action/")
_TEXTS = {
    "episode_name": ("episode_id", "id"), "embodiment": ("embodiment",), "env_name": ("env_id",),
    "language_instruction": ("language_instruction", "instruction", "task"),
}
"""Text fields of a record, and the metadata keys that may hold them."""
_COLUMNS = {name: dtype for name, dtype in EPISODE_COLUMNS.items() if name not in ("episode_id", "splits")}
"""Columns of the table of the episode: those of other formats, without the number ``episode_id``."""
_OWN_KEYS = {key for keys in _TEXTS.values() for key in keys} | {"length_T", "length_t", "chunks"}
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(eq=False)
class EpisodeRecord:
    """The record of an episode with ``steps`` steps, if known.

    ``sources`` are metadata blocks, each given as an episode and a name; the first that has a key counts. ``left_out``
    are keys that do not describe the whole episode. ``blocks`` returns the blocks each time it is called.
    """

    sources: list[tuple[WShardEpisode, bytes]]
    steps: int | None
    rate: Callable[[], float]
    blocks: Callable[[], Iterable[Member]]
    left_out: tuple[str, ...] = ()

    def members(self) -> Iterator[Member]:
        """Yield the blocks, the table of steps, and the episode."""
        return with_recording(self.blocks, self._record, self.steps)

    def table(self) -> Table:
        """Return the table of episodes with its only row."""
        return episodes_table(
            1, self._rows, columns=_COLUMNS, cost=self._cost, recording=lambda row: recording_in(self.members()),
            features=lambda block: [features_of(self.blocks(), self.steps)],
        )

    def _record(self) -> dict[str, Any]:
        """Return the row of the table, and all other values in the metadata."""
        with ExitStack() as stack:
            values = self._merged(stack)
            found = self._row(values)
            known = {*_OWN_KEYS, *self.left_out, *found}
            return found | {key: value for key, value in values.items() if key not in known}

    def _rows(self, block: int) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            return [self._row(self._merged(stack))]

    def _merged(self, stack: ExitStack) -> dict[str, Any]:
        """Return the values of all sources; they stay reserved while the stack is held."""
        found: dict[str, Any] = {}
        for episode, block in self.sources:
            value = stack.enter_context(episode.json(block))
            if isinstance(value, dict):
                found = value | found
        return found

    def _row(self, values: dict[str, Any]) -> dict[str, Any]:
        # Writers put facts of the episode into the document itself, or into an object in it; the former counts first.
        nested = values.get("metadata")
        objects = [values, nested] if isinstance(nested, dict) else [values]

        def first(keys: Iterable[str], is_valid: Callable[[Any], bool]) -> Any:
            candidates = (item[key] for item in objects for key in keys if key in item)
            return next(filter(is_valid, candidates), None)

        found: dict[str, Any] = dict.fromkeys(_COLUMNS)
        for name, keys in _TEXTS.items():
            text = first(keys, lambda value: isinstance(value, str))
            found[name] = None if text is None else _SURROGATE.sub("\ufffd", text)
        found["fps"] = self.rate() or None
        found["success"] = first(["success"], lambda value: isinstance(value, bool))
        reward = first(
            ["total_reward"], lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max,
        )
        found["total_reward"] = None if reward is None else float(reward)
        found["num_frames"] = self.steps
        channels, cameras = list[bytes](), list[bytes]()
        for _, content in self.blocks():
            if content.key.startswith(_CHANNEL_PREFIXES):
                channels.append(content.key)
            if is_camera(content):
                cameras.append(content.key)
        found["channels"], found["cameras"] = _texts(channels), _texts(cameras)
        return found

    def _cost(self, block: int) -> int:
        found = [episode.index.named.get(name) for episode, name in self.sources]
        sizes = [entry.size for entry in found if entry is not None]
        return record_cost(sum(sizes) + 2 * sum(len(member.content.key) for member in self.blocks()))


def record_of(episode: WShardEpisode) -> EpisodeRecord:
    """Return the record of an episode in one file."""
    sources = [(episode, block) for block in (EPISODE, WSHARD)]
    return EpisodeRecord(sources, episode.metadata.length, lambda: episode.rate, episode.blocks)


def _texts(names: Iterable[bytes]) -> list[str]:
    return [name.decode("utf-8", "replace") for name in dict.fromkeys(names)]
