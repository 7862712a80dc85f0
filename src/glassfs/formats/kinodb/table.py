"""The table of all episodes: rows of index and metadata, a block at a time. Any thread.

Index entries may share metadata and images, or have sections that overlap. A section is read once for all rows of a
block, and the memory for metadata counted once. A block ends where its rows would need much memory: each of them is at
least one row.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from glassfs.content import Array, Cells, Column, Counted, Data, Gathered, Records, Rendered, Table
from glassfs.content.features import Camera, decoded
from glassfs.formats.kinodb.episode import (
    ENTRY,
    LONGEST_TEXTS,
    TEXT_COST,
    EpisodeEntry,
    EpisodeMetadata,
    KinoEpisode,
    described,
    metadata_cost,
)
from glassfs.formats.kinodb.scan import ImageType
from glassfs.formats.registry import Opening
from glassfs.once import once

EPISODES, CAMERAS = b"episodes", b"cameras"
AT_ONCE = 256  # rows of a block at most
CAMERA_BYTES = 512  # of the names in a row
TEXT_BYTES = 1 << 20  # of metadata in the rows of a block, each row counted
BLOCK_BYTES = 8 << 20  # of memory for the metadata of a block, each section counted once
LONG = 4 << 10  # bytes of a section that is faster to read again than to keep as JSON
_COLUMNS = (
    (b"episode_id", 0, "<u8"), (b"embodiment", "embodiment", ""), (b"language_instruction", "task", ""),
    (b"fps", "fps", "<f8"), (b"success", "outcome", "|b1"), (b"total_reward", "total_reward", "<f8"),
    (b"num_frames", 8, "<u4"), (b"state_dim", 14, "<u2"), (b"action_dim", 12, "<u2"),
)
"""Columns of the table: offset in an index entry, or field of the metadata (§4); dtype, none for text."""
_SECTION = struct.Struct("<48xQQ")

Section: TypeAlias = tuple[int, int]
"""Offset and length of the metadata, or the images, of an episode."""


def episode_table(opening: Opening, index: Data, episode: Callable[[int], KinoEpisode]) -> Table:
    """Return the table of the episodes in a packed index. ``episode`` returns the one at a position."""
    rows = _EpisodeRows(opening, index, episode)
    records = _RowRecords(rows, EPISODES, rows.of_block)
    return Table(
        EPISODES, rows.count, partial(_columns, rows), records, EPISODES,
        recording=lambda position: episode(position).recording(), features=rows.features,
    )


def _columns(rows: _EpisodeRows) -> list[Column]:
    count = rows.count
    columns = [Column(b"position", Array(b"position", Counted(count), "<i8", (count,)))]
    for name, field, dtype in _COLUMNS:
        content: Array | Records
        if isinstance(field, int):
            data = Gathered(rows.index, field, int(dtype[2:]), ENTRY.size, count)
            content = Array(name, data, dtype, (count,))
        elif dtype:
            content = _RowCells(rows, name, partial(rows.values, field), dtype)
        else:
            content = _RowRecords(rows, name, partial(rows.values, field))
        columns.append(Column(name, content))
    return [*columns, Column(CAMERAS, _RowRecords(rows, CAMERAS, rows.cameras), is_list=True)]


class _EpisodeRows:
    """The rows in blocks."""

    def __init__(self, opening: Opening, index: Data, episode: Callable[[int], KinoEpisode]) -> None:
        self.index = index
        self.count = index.size // ENTRY.size
        self._opening = opening
        self._episode = episode

    @once
    def starts(self) -> array[int]:
        """The position of the first row of each block, and the end. Takes a pass over the index."""
        starts, text, memory = array("Q", [0]), 0, 0
        known: set[Section] = set()
        sections: Iterable[Section] = chain.from_iterable(map(_SECTION.iter_unpack, self.index.pieces()))
        for position, section in enumerate(sections):  # pieces end between entries
            rows, length = position - starts[-1], min(section[1], LONGEST_TEXTS)
            more = 0 if section in known else metadata_cost(length)
            if rows and (rows == AT_ONCE or text + length > TEXT_BYTES or memory + more > BLOCK_BYTES):
                starts.append(position)
                text, memory, more = 0, 0, metadata_cost(length)
                known.clear()
            known.add(section)
            text, memory = text + length, memory + more
        if self.count:
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
        rows = enumerate(self._cameras(block), self.starts[block])
        return [self._episode(row).features(cameras) for row, cameras in rows]

    def cost(self, block: int) -> int:
        """Return the bytes that the rows of a block may take."""
        sections = {(entry.meta_offset, entry.meta_length) for entry in self._entries(block)}
        return self._cameras_cost + sum(metadata_cost(length) for _, length in sections)

    _cameras_cost = AT_ONCE * ((1 << 10) + TEXT_COST * CAMERA_BYTES)

    def _metadata(self, block: int) -> list[EpisodeMetadata | None]:
        """Return the metadata of each row, None if they are unreadable. Rows with the same section share them."""
        def read(rows: Iterable[int]) -> list[EpisodeMetadata | None]:
            return [self._episode(row).readable() for row in rows]

        sections = [(entry.meta_offset, entry.meta_length) for entry in self._entries(block)]
        firsts: dict[Section, int] = {}
        for position, section in enumerate(sections, self.starts[block]):
            firsts.setdefault(section, position)
        if sum(length for _, length in firsts) > LONG * len(firsts):
            different = read(firsts.values())
        else:
            kept = self._kept(block, EPISODES, lambda: read(firsts.values()), self.cost(block))
            different = [fields and EpisodeMetadata._make(fields) for fields in kept]
        by_section = dict(zip(firsts, different, strict=True))
        return [by_section[section] for section in sections]

    def _cameras(self, block: int) -> list[list[Camera] | None]:
        """Return the cameras of each row, None if its images are damaged."""
        def read() -> list[list[Camera] | None]:
            known: dict[Section, list[Camera] | None] = {}
            rows = []
            for position, entry in enumerate(self._entries(block), self.starts[block]):
                section = entry.images_offset, entry.images_length
                if section not in known:
                    known[section] = _cameras_of(self._episode(position))
                rows.append(known[section])
            return rows

        rows = self._kept(block, CAMERAS, read, self._cameras_cost)
        return [cameras and [Camera(*camera) for camera in cameras] for cameras in rows]

    def _kept(self, block: int, what: bytes, read: Callable[[], list[Any]], cost: int) -> list[Any]:
        """Return what ``read`` returns for a block as JSON has it, which the cache keeps."""
        key = self._opening.source.version, what, block
        kept = Rendered(self._opening.cache, key, lambda: json.dumps(read()).encode(), cost=cost)
        rows: list[Any] = json.loads(kept.read(0, kept.size))
        return rows

    def _entries(self, block: int) -> Iterable[EpisodeEntry]:
        start, end = self.starts[block : block + 2]
        packed = self.index.read(start * ENTRY.size, (end - start) * ENTRY.size)
        return map(EpisodeEntry._make, ENTRY.iter_unpack(packed))


def _cameras_of(episode: KinoEpisode) -> list[Camera] | None:
    """Return the cameras of an episode, as many as names may take; None if its images are damaged."""
    images = episode.first_images()
    if images is None:
        return None
    cameras: dict[bytes, Camera] = {}
    left = CAMERA_BYTES
    for image in images:
        left -= len(image.camera)
        if left < 0:
            break
        cameras.setdefault(image.camera, _camera(image))
    return list(cameras.values())


def _camera(image: ImageType) -> Camera:
    """Return the camera that has this first image: its video has the size of that."""
    reason = ""
    if not image.width * image.height or not (image.format or 1 <= image.channels <= 4):
        reason = f"has images of {image.width} x {image.height} pixels and {image.channels} channels"
    return Camera(f"images/{decoded(image.camera)}", image.width, image.height, reason)


def _shown(name: str) -> str:
    """Return the name of a camera for the table."""
    return name.removeprefix("images/").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class _RowRecords(Records):
    """The rows, or one column of them. The number of blocks is found when it is first needed."""

    def __init__(self, rows: _EpisodeRows, name: bytes, block: Callable[[int], list[Any]]) -> None:
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

    def __init__(self, rows: _EpisodeRows, name: bytes, block: Callable[[int], list[Any]], dtype: str) -> None:
        _RowRecords.__init__(self, rows, name, block)
        self.dtype = dtype
