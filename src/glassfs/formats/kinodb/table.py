"""The table of all episodes: rows of index and metadata, a block at a time. Any thread.

Index entries may share metadata and images, or have sections that overlap. A section is read once for all rows of a
block, and the memory for metadata counted once. A block ends where its rows would need much memory: each of them is at
least one row.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from glassfs.content import Array, Cells, Column, Counted, Data, Gathered, Records, Rendered, Table
from glassfs.content.features import Camera, decoded
from glassfs.formats.kinodb.episode import (
    CAMERAS_COST,
    ENTRY,
    LONGEST_TEXTS,
    Entry,
    Episode,
    Metadata,
    described,
    metadata_cost,
)
from glassfs.formats.kinodb.scan import FirstImage
from glassfs.formats.registry import Opening
from glassfs.once import once

EPISODES, CAMERAS = b"episodes", b"cameras"
AT_ONCE = 256  # episodes whose metadata are read together
MOST_TEXT = 1 << 20  # bytes of metadata in the rows of a block, each row counted
MOST_MEMORY = 8 << 20  # bytes that a block may take, each section counted once
ROW_COST = (1 << 10) + CAMERAS_COST  # bytes of a row without its metadata
LONG = 4 << 10  # bytes of a section that is faster to read again than to keep as JSON
_COLUMNS = (
    (b"episode_id", 0, "<u8"), (b"embodiment", "embodiment", ""), (b"language_instruction", "task", ""),
    (b"fps", "fps", "<f8"), (b"success", "outcome", "|b1"), (b"total_reward", "total_reward", "<f8"),
    (b"num_frames", 8, "<u4"), (b"state_dim", 14, "<u2"), (b"action_dim", 12, "<u2"),
)
"""Columns of the table: offset in an index entry, or field of the metadata (§4); dtype, none for text."""
_SECTION = struct.Struct("<48xQQ")

Section: TypeAlias = tuple[int, int]
"""Offset and length of the metadata of an episode."""


def episode_table(opening: Opening, index: Data, episode: Callable[[int], Episode]) -> Table:
    """Return the table of the episodes in a packed index. ``episode`` returns the one at a position."""
    rows = _Rows(opening, index, episode)
    records = _RowRecords(rows, EPISODES, rows.of_block)
    return Table(
        EPISODES, rows.count, partial(_columns, rows), records, EPISODES,
        recording=lambda position: episode(position).recording(), features=rows.features,
    )


def _columns(rows: _Rows) -> list[Column]:
    count = rows.count
    found = [Column(b"position", Array(b"position", Counted(count), "<i8", (count,)))]
    for name, field, dtype in _COLUMNS:
        content: Array | Records
        if isinstance(field, int):
            data = Gathered(rows.index, field, int(dtype[2:]), ENTRY.size, count)
            content = Array(name, data, dtype, (count,))
        elif dtype:
            content = _RowCells(rows, name, partial(rows.values, field), dtype)
        else:
            content = _RowRecords(rows, name, partial(rows.values, field))
        found.append(Column(name, content))
    return [*found, Column(CAMERAS, _RowRecords(rows, CAMERAS, rows.cameras), is_list=True)]


class _Rows:
    """The rows in blocks."""

    def __init__(self, opening: Opening, index: Data, episode: Callable[[int], Episode]) -> None:
        self.index = index
        self.count = index.size // ENTRY.size
        self._opening = opening
        self._episode = episode

    @once
    def starts(self) -> array[int]:
        """The position of the first row of each block, and the end. Takes a pass over the index."""
        starts = array("Q", [0])
        rows = text = memory = 0
        known: set[Section] = set()
        sections: Iterable[Section] = chain.from_iterable(map(_SECTION.iter_unpack, self.index.pieces()))
        for position, section in enumerate(sections):  # pieces end between entries
            more = metadata_cost(section[1]) if section not in known else 0
            length = min(section[1], LONGEST_TEXTS)
            is_full = rows == AT_ONCE or text + length > MOST_TEXT or memory + more > MOST_MEMORY
            if rows and is_full:
                starts.append(position)
                rows = text = memory = 0
                known.clear()
                more = metadata_cost(section[1])
            known.add(section)
            rows, text, memory = rows + 1, text + length, memory + more
        if rows:
            starts.append(self.count)
        return starts

    def of_block(self, block: int) -> list[dict[str, Any]]:
        rows = zip(self._entries(block), self._metadata(block), self.cameras(block), strict=True)
        return [
            {**described(position, entry, metadata), CAMERAS.decode(): cameras}
            for position, (entry, metadata, cameras) in enumerate(rows, self.starts[block])
        ]

    def values(self, name: str, block: int) -> list[Any]:
        """Return one column of a block, of the metadata."""
        return [getattr(metadata, name) if metadata else None for metadata in self._metadata(block)]

    def cameras(self, block: int) -> list[list[str] | None]:
        """Return the names of the cameras of each row, None if its images are damaged."""
        return [
            None if images is None else [_shown(camera.name) for camera in images] for images in self._cameras(block)
        ]

    def features(self, block: int) -> list[str]:
        """Return the features of each row."""
        found = self._cameras(block)
        return [self._episode(row).features(cameras) for row, cameras in enumerate(found, self.starts[block])]

    def _cameras(self, block: int) -> list[list[Camera] | None]:
        """Return the cameras of each row, None if its images are damaged."""
        key = (self._opening.source.version, CAMERAS, block)
        cost = ROW_COST * (self.starts[block + 1] - self.starts[block])
        kept = Rendered(self._opening.cache, key, partial(self._rendered_cameras, block), cost=cost)
        found = json.loads(kept.read(0, kept.size))
        return [cameras and [Camera(*camera) for camera in cameras] for cameras in found]

    def cost(self, block: int) -> int:
        sections = self._sections(block)
        return ROW_COST * len(sections) + sum(metadata_cost(length) for _, length in set(sections))

    def _metadata(self, block: int) -> list[Metadata | None]:
        """Return the metadata of each row, None if they are unreadable. Rows with the same section share them."""
        sections = self._sections(block)
        firsts: dict[Section, int] = {}
        for position, section in enumerate(sections, self.starts[block]):
            firsts.setdefault(section, position)
        found: Iterable[Metadata | None]
        if sum(length for _, length in firsts) > LONG * len(firsts):
            found = [self._episode(position).readable() for position in firsts.values()]
        else:
            key = (self._opening.source.version, EPISODES, block)
            make = partial(self._rendered, list(firsts.values()))
            kept = Rendered(self._opening.cache, key, make, cost=self.cost(block))
            found = [fields and Metadata._make(fields) for fields in json.loads(kept.read(0, kept.size))]
        if len(firsts) == len(sections):
            return found
        by_section = dict(zip(firsts, found, strict=True))
        return [by_section[section] for section in sections]

    def _rendered(self, positions: Sequence[int]) -> bytes:
        """Return the metadata of these episodes as JSON, for the cache."""
        return json.dumps([self._episode(position).readable() for position in positions]).encode()

    def _rendered_cameras(self, block: int) -> bytes:
        """Return the cameras of each row as JSON, for the cache."""
        known: dict[Section, list[Camera] | None] = {}
        found = []
        for position, entry in enumerate(self._entries(block), self.starts[block]):
            section = entry.images_offset, entry.images_length
            if section not in known:
                images = self._episode(position).first_images()
                known[section] = None if images is None else list(map(_camera, images))
            found.append(known[section])
        return json.dumps(found).encode()

    def _entries(self, block: int) -> Iterable[Entry]:
        return map(Entry._make, ENTRY.iter_unpack(self._packed(block)))

    def _sections(self, block: int) -> list[Section]:
        return list(_SECTION.iter_unpack(self._packed(block)))

    def _packed(self, block: int) -> bytes:
        """Return the index entries of a block."""
        start, end = self.starts[block], self.starts[block + 1]
        return self.index.read(start * ENTRY.size, (end - start) * ENTRY.size)


def _camera(image: FirstImage) -> Camera:
    """Return the camera that has this first image: its video has the size of that."""
    reason = ""
    if not image.width * image.height or not (image.is_encoded or 1 <= image.channels <= 4):
        reason = f"has images of {image.width} x {image.height} pixels and {image.channels} channels"
    return Camera(f"images/{decoded(image.camera)}", image.width, image.height, reason)


def _shown(name: str) -> str:
    """Return the name of a camera for the table."""
    return name.removeprefix("images/").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class _RowRecords(Records):
    """The rows, or one column of them. The number of blocks is found when it is first needed."""

    def __init__(self, rows: _Rows, name: bytes, block: Callable[[int], list[Any]]) -> None:
        self.key = name
        self.type_name = ""
        self.block = block
        self.cost = rows.cost
        self._rows = rows

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return len(self._rows.starts) - 1


class _RowCells(Cells, _RowRecords):
    """The values of a column that is not text."""

    def __init__(self, rows: _Rows, name: bytes, block: Callable[[int], list[Any]], dtype: str) -> None:
        _RowRecords.__init__(self, rows, name, block)
        self.dtype = dtype
