"""The table of all episodes: rows of index, metadata and cameras, a block at a time, kept by the cache. Any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from glassfs.content import Rendered, Table, episodes_table
from glassfs.content.episodes import EPISODE_COLUMNS, EPISODES_KEY
from glassfs.content.features import Camera, decoded
from glassfs.formats.kinodb.episode import TEXT_COST, EpisodeMetadata, KinoEpisode, described, metadata_cost
from glassfs.formats.kinodb.scan import ImageType
from glassfs.formats.registry import Opening

AT_ONCE = 32
"""Rows of a block: each may have 128 KiB of text."""
LONG = 4 << 10
"""Bytes of metadata that are faster to read again than to keep as JSON."""
CAMERA_BYTES = 512  # of the names in a row
COLUMNS = {
    name: dtype for name, dtype in EPISODE_COLUMNS.items() if name not in ("episode_name", "channels", "splits")
}
_CAMERAS, _VIDEOS = "cameras", "videos"


def episode_table(opening: Opening, count: int, episode: Callable[[int], KinoEpisode]) -> Table:
    """Return the table of ``count`` episodes. ``episode`` returns the one at a position."""
    def episodes(block: int) -> list[KinoEpisode]:
        return list(map(episode, range(block * AT_ONCE, min(count, (block + 1) * AT_ONCE))))

    def cost(block: int) -> int:
        return sum(
            metadata_cost(one.entry.meta_length) + TEXT_COST * CAMERA_BYTES + (1 << 10) for one in episodes(block)
        )

    def rows(block: int) -> list[dict[str, Any]]:
        listed = episodes(block)
        if sum(one.entry.meta_length for one in listed) > LONG * len(listed):
            return _rows(listed)
        # Columns are asked for one by one, and the sections of a row are scattered over the file.
        kept = Rendered(
            opening.cache, (opening.source.version, EPISODES_KEY, block), lambda: json.dumps(_rows(listed)).encode(),
            cost=cost(block),
        )
        found: list[dict[str, Any]] = json.loads(kept.read(0, kept.size))
        return found

    def features(block: int) -> list[str]:
        known = (row[_VIDEOS] for row in rows(block))
        return [
            one.features(None if videos is None else [Camera(*video) for video in videos])
            for one, videos in zip(episodes(block), known, strict=True)
        ]

    return episodes_table(
        count, rows, -(-count // AT_ONCE), COLUMNS, cost, EPISODES_KEY,
        recording=lambda position: episode(position).recording(), features=features,
    )


def _rows(episodes: Sequence[KinoEpisode]) -> list[dict[str, Any]]:
    """Return the values of episodes. Those of unreadable metadata, and cameras of damaged images, are None."""
    rows = []
    sections: dict[tuple[int, int], EpisodeMetadata | None] = {}
    for episode in episodes:
        # Thousands of index entries may share one section of the longest texts: it is read once for a block.
        section = episode.entry.meta_offset, episode.entry.meta_length
        if section not in sections:
            sections[section] = episode.readable()
        cameras = _cameras_of(episode)
        # Bytes of names that are not UTF-8 are surrogates in features.
        names = None if cameras is None else [
            camera.name.removeprefix("images/").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            for camera in cameras
        ]
        values = described(episode.position, episode.entry, sections[section])
        rows.append(values | {_CAMERAS: names, _VIDEOS: cameras})
    return rows


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
