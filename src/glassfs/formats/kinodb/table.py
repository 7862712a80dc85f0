"""The table of all episodes, one row per episode, from the index (§3) and the metadata (§4).

Any thread may use this module. Index columns are read as stored. Metadata are read for a block of episodes at once, for
all columns, and cached; values of unreadable metadata are unknown, and the episode's own document raises the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from glassfs.content import Array, Cells, Column, Counted, Data, Gathered, Records, Rendered, Table
from glassfs.errors import Damaged
from glassfs.formats.kinodb.episode import DOCUMENT_COST, LONGEST_TEXTS, TEXT_COST, Episode
from glassfs.formats.registry import Opening

NAME = b"episodes"
AT_ONCE = 256
"""Episodes whose metadata are read together."""
_ID = ((b"episode_id", 0, "<u8"),)
_SIZES = ((b"num_frames", 8, "<u4"), (b"state_dim", 14, "<u2"), (b"action_dim", 12, "<u2"))
"""Columns of the index: names, offsets in an entry and dtypes."""
_METADATA = (
    (b"embodiment", ""), (b"language_instruction", ""), (b"fps", "<f8"), (b"success", "|b1"), (b"total_reward", "<f8"),
)
"""Columns of the metadata and their dtypes; text has none."""


def episodes_table(
    opening: Opening, index: Data, entry_size: int, count: int, episode: Callable[[int], Episode],
) -> Table:
    """Return the table of the ``count`` episodes whose entries are in ``index``."""

    metadata = _Metadata(opening, count, episode)

    def stored(name: bytes, offset: int, dtype: str) -> Column:
        return Column(name, Array(name, Gathered(index, offset, int(dtype[2:]), entry_size, count), dtype, (count,)))

    def columns() -> list[Column]:
        found = [Column(b"position", Array(b"position", Counted(count), "<i8", (count,)))]
        found += [stored(*column) for column in _ID]
        for name, dtype in _METADATA:
            block = partial(metadata.column, name.decode())
            content = Cells(name, metadata.blocks, block, cost=metadata.cost, dtype=dtype) if dtype else Records(
                name, metadata.blocks, block, cost=metadata.cost,
            )
            found.append(Column(name, content))
        return found + [stored(*column) for column in _SIZES]

    return Table(NAME, count, columns, Records(NAME, metadata.blocks, metadata.records, cost=metadata.cost), NAME)


class _Metadata:
    """The metadata of all episodes, in blocks of AT_ONCE episodes."""

    def __init__(self, opening: Opening, count: int, episode: Callable[[int], Episode]) -> None:
        self.blocks = -(-count // AT_ONCE)
        self._opening = opening
        self._count = count
        self._episode = episode

    def cost(self, block: int) -> int:
        lengths = (self._episode(position).entry.meta_length for position in self._positions(block))
        return sum(DOCUMENT_COST + TEXT_COST * min(length, LONGEST_TEXTS) for length in lengths)

    def records(self, block: int) -> list[dict[str, Any]]:
        """Return the episodes of a block."""
        key = (self._opening.source.version, NAME, block)
        kept = Rendered(self._opening.cache, key, partial(self._rendered, block), cost=self.cost(block))
        found: list[dict[str, Any]] = json.loads(kept.read(0, kept.size))
        return found

    def column(self, name: str, block: int) -> list[Any]:
        return [record[name] for record in self.records(block)]

    def _positions(self, block: int) -> range:
        return range(block * AT_ONCE, min((block + 1) * AT_ONCE, self._count))

    def _rendered(self, block: int) -> bytes:
        """Return a block as JSON, for the cache."""
        return json.dumps([_described(self._episode(position)) for position in self._positions(block)]).encode()


def _described(episode: Episode) -> dict[str, Any]:
    try:
        return episode.described(episode.metadata())
    except Damaged:
        return episode.described(None)
