"""An episode: its index entry (§3), metadata (§4) and state/action records (§5), and the table of all episodes.

Any thread may use this module. Making an episode reads nothing; contents in a bad section raise Damaged. The rows of
the table come from index, metadata and cameras, a block at a time, and the cache keeps them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from glassfs.content import (
    TIME,
    Array,
    Column,
    Content,
    Data,
    Document,
    Extent,
    Fault,
    Fields,
    Gathered,
    Member,
    Memory,
    Outline,
    Recording,
    Rendered,
    Table,
    Unreadable,
    booleans,
    episodes_table,
)
from glassfs.content.episodes import (
    EPISODE_COLUMNS,
    EPISODES_KEY,
    Camera,
    Signal,
    features_text,
    record_cost,
    step_columns,
)
from glassfs.errors import Damaged
from glassfs.formats.kinodb.images import Images
from glassfs.formats.kinodb.scan import first_images
from glassfs.formats.registry import Opening
from glassfs.names import text
from glassfs.once import once

STEP_SIZE = 5  # bytes of reward and is_terminal, after state and action of a record
TEXT_WRAP = 1 << 16  # where the length field of a string wraps to 0
BOTH_TEXTS = 2 * TEXT_WRAP  # bytes of the longest texts of an episode
AT_ONCE = 32
"""Rows of a block: each may have 128 KiB of text."""
LONG = 4 << 10
"""Bytes of metadata that are faster to read again than to keep as JSON."""
CAMERA_BYTES = 512  # of the names in a row
COLUMNS = {
    name: dtype for name, dtype in EPISODE_COLUMNS.items()
    if name not in ("episode_name", "env_name", "channels", "splits")
}

ENTRY = struct.Struct("<QIHHQQQQQQ")
_LENGTH, _AFTER_TEXTS = struct.Struct("<H"), struct.Struct("<4sBB")  # of a text, and what follows both
_ARRAYS = (b"state", b"action", b"reward", b"is_terminal")
_WITH_IMAGES, _WITHOUT_IMAGES = Outline((b"meta", b"images"), _ARRAYS), Outline((b"meta",), _ARRAYS)
_META = Outline(others=(b"episode",))


class EpisodeEntry(NamedTuple):
    """An index entry (§3). ``actions`` is the section of states and actions."""

    episode_id: int
    num_frames: int
    action_dim: int
    state_dim: int
    actions_offset: int
    actions_length: int
    images_offset: int
    images_length: int
    meta_offset: int
    meta_length: int

    @property
    def record_size(self) -> int:
        """Bytes of one frame in the state/action section (§5)."""
        return 4 * (self.state_dim + self.action_dim) + STEP_SIZE

    @property
    def cost(self) -> int:
        """Bytes of memory for parsing and rendering its metadata."""
        return record_cost(min(self.meta_length, BOTH_TEXTS))

    @property
    def has_images(self) -> bool:
        """Whether the image section holds more than a camera count of zero per frame."""
        return self.num_frames > 0 and self.images_length != 2 * self.num_frames

    def sections(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, offset and length of each section, in the writer's order."""
        return (
            ("metadata", self.meta_offset, self.meta_length),
            ("state/action section", self.actions_offset, self.actions_length),
            ("image section", self.images_offset, self.images_length),
        )


class EpisodeMetadata(NamedTuple):
    """A metadata blob (§4). ``surplus`` counts the bytes after its last field."""

    embodiment: str
    task: str
    fps: float
    success: int
    reward_flag: int
    total_reward: float | None
    surplus: int


class KinoEpisode:
    """The episode at ``position`` of the index, as described by its entry."""

    def __init__(self, opening: Opening, position: int, entry: EpisodeEntry) -> None:
        self.source = opening.source
        self._opening = opening
        self.position = position
        self.entry = entry

    def contents(self) -> Fields:
        outline = _WITH_IMAGES if self.entry.has_images else _WITHOUT_IMAGES
        return Fields(b"%d" % self.position, outline, self._content, self._meanings)

    def metadata(self) -> EpisodeMetadata:
        """Read the metadata. Raises Damaged if they are cut off, not UTF-8, or have impossible lengths."""
        offset, length = self.entry.meta_offset, self.entry.meta_length
        place = f"the metadata of episode {self.position}"
        if offset + length > self.source.size:
            raise self.source.damage("lie outside the file", place)
        # More than two of the longest texts, and what follows them, is never read.
        data = self.source.read(offset, min(length, BOTH_TEXTS + 64))
        try:
            end = 2 + _LENGTH.unpack_from(data)[0]
            last = end + 2 + _LENGTH.unpack_from(data, end)[0]
            fps, success, flag = _AFTER_TEXTS.unpack_from(data, last)
            embodiment, task = data[2:end].decode(), data[end + 2 : last].decode()
            position, total_reward = last + _AFTER_TEXTS.size, None
            if flag == 1:
                total_reward = shortest(data[position : position + 4])
                position += 4
        except struct.error as error:
            raise self.source.damage(f"are cut off: they have {length} bytes", place) from error
        except UnicodeDecodeError as error:
            raise self.source.damage("have a text that is not UTF-8", place) from error
        # The writer wraps the length of strings of 65536 bytes or more, so the following fields are read from inside
        # the string (§4). The bytes left over are the wrap, give or take a total_reward.
        surplus = length - position
        if surplus >= TEXT_WRAP - 4:
            reason = f"leave {surplus} bytes over: a text is longer than its length field allows"
            raise self.source.damage(reason, place)
        return EpisodeMetadata(embodiment, task, shortest(fps), success, flag, total_reward, surplus)

    def records_damage(self) -> Damaged | None:
        """Return why the state/action section does not hold what the index says, or None.

        States of other lengths than state_dim leave a surplus of whole floats, and may shift every number (§5). Any
        other surplus has another cause and is ignored, as in KinoDB.
        """
        entry = self.entry
        surplus = entry.actions_length - entry.num_frames * entry.record_size
        if entry.actions_offset + entry.actions_length > self.source.size:
            reason = "lies outside the file"
        elif surplus < 0:
            reason = f"is {-surplus} bytes too short for {entry.num_frames} frames"
        # An episode whose states are longer than declared still has its records, but at other offsets than each number
        # is read from. Showing them would show wrong values, so they are refused.
        elif surplus and surplus % 4 == 0:
            reason = f"has {surplus // 4} floats too many: its states are not all of state_dim {entry.state_dim}"
        else:
            return None
        return self.source.damage(reason, f"the state/action section of episode {self.position}")

    def check(self) -> Iterator[Fault]:
        entry, place = self.entry, f"episodes/{self.position}"
        for section, offset, length in entry.sections():
            if offset + length > self.source.size:
                yield Fault(place, f"the {section} lies outside the file")
        if not entry.num_frames:
            yield Fault(place, "has no frames, which the writer never writes")
        yield from self._metadata_faults()
        surplus = entry.actions_length - entry.num_frames * entry.record_size
        damage = self.records_damage()
        reason = damage.reason if damage else f"has {surplus} undescribed bytes"
        if surplus and reason != "lies outside the file":
            yield Fault(place, f"the state/action section {reason}")
        if entry.images_offset <= self.source.size:
            yield from self._images.check()

    def _content(self, name: bytes) -> Content:
        entry = self.entry
        if name == b"images":
            return self._images
        if name == b"meta":
            return Fields(name, _META, lambda name: Document(name, self._document, entry.cost))
        frames = entry.num_frames
        state, action = 4 * entry.state_dim, 4 * entry.action_dim
        match name:
            case b"state":
                return Array(name, self._field(0, state), "<f4", (frames, entry.state_dim), "f32", axis=TIME)
            case b"action":
                return Array(name, self._field(state, action), "<f4", (frames, entry.action_dim), "f32", axis=TIME)
            case b"reward":
                return Array(name, self._field(state + action, 4), "<f4", (frames,), "f32", axis=TIME)
            case _:
                is_terminal = booleans(self._field(state + action + 4, 1), frames)
                return Array(name, is_terminal, "|b1", (frames,), "u8", axis=TIME)

    def _field(self, offset: int, width: int) -> Data:
        """Return one field of all records; ``offset`` and ``width`` in bytes of a record."""
        entry, damage = self.entry, self.records_damage()
        size = width * entry.num_frames
        if damage:
            return Unreadable(size, damage)
        if not size:
            return Memory(b"")
        records = Extent(self.source, entry.actions_offset, entry.actions_length)
        return Gathered(records, offset, width, entry.record_size, entry.num_frames)

    def features(self, cameras: list[Camera] | None) -> str:
        """Return the features of the episode with these cameras as text; empty if its parts cannot be read."""
        if cameras is None or self.records_damage():
            return ""
        entry = self.entry
        lengths = entry.state_dim, entry.action_dim, None, None
        dtypes = "<f4", "<f4", "<f4", "|b1"
        return features_text([
            Signal(name.decode(), dtype, length)
            for name, dtype, length in zip(_ARRAYS, dtypes, lengths, strict=True) if length != 0
        ], cameras)

    def recording(self) -> Recording:
        return Recording(b"episode", self._document, Table(b"steps", self.entry.num_frames, self._steps), self._cameras)

    @once
    def _images(self) -> Images:
        """The images, always the same: they know where they are stored. They do not refer to the episode in turn."""
        entry = self.entry
        return Images(
            self._opening, f"episodes/{self.position}", entry.images_offset, entry.images_length, entry.num_frames,
            partial(_rate, self._opening, self.position, entry),
        )

    def _meanings(self) -> Iterator[Member]:
        """Yield the table of frames, one row per frame, and the recording."""
        recording = self.recording()
        yield Member((b"steps",), recording.steps)
        yield Member((b"episode",), recording)

    def _cameras(self) -> list[Member]:
        """Return the videos, under the directories of their images."""
        if not self.entry.has_images:
            return []
        return [Member((b"images", *name), video) for name, video in self._images.meanings()]

    def _steps(self) -> list[Column]:
        """Return the columns. Raises Damaged if the records do not match the number of frames."""
        damage = self.records_damage()
        if damage:
            raise damage
        return step_columns((Member((name,), self._content(name)) for name in _ARRAYS), self.entry.num_frames)

    def readable(self) -> EpisodeMetadata | None:
        """Return the metadata, or None if they are unreadable."""
        try:
            return self.metadata()
        except Damaged:
            return None

    def _document(self) -> dict[str, Any]:
        return described(self.position, self.entry, self.metadata())

    def _metadata_faults(self) -> Iterator[Fault]:
        metadata = self.readable()
        if metadata is None:
            return  # reading its document reports it
        place = f"episodes/{self.position}/meta/episode"
        if metadata.surplus:
            yield Fault(place, f"{metadata.surplus} bytes follow the last field")
        if metadata.success > 2:
            yield Fault(place, f"success is {metadata.success}, not unknown (0), false (1) or true (2)")
        if metadata.reward_flag > 1:
            yield Fault(place, f"the reward flag is {metadata.reward_flag}, not 0 or 1")


def _rate(opening: Opening, position: int, entry: EpisodeEntry) -> float:
    """Return frames per second, or 0 if the metadata are unreadable (their document raises the reason)."""
    metadata = KinoEpisode(opening, position, entry).readable()
    return metadata.fps if metadata else 0.0


def described(position: int, entry: EpisodeEntry, metadata: EpisodeMetadata | None) -> dict[str, Any]:
    """Return the values of index and metadata, without those of unreadable metadata."""
    known = {} if metadata is None else {
        "embodiment": metadata.embodiment,
        "language_instruction": metadata.task,
        "fps": metadata.fps,
        "success": {1: False, 2: True}.get(metadata.success),
        "total_reward": metadata.total_reward,
    }
    return {
        "position": position,
        "episode_id": entry.episode_id,
        **known,
        "num_frames": entry.num_frames,
        "state_dim": entry.state_dim,
        "action_dim": entry.action_dim,
    }


@lru_cache(1024)
def shortest(stored: bytes) -> float:
    """Return a stored float32 as the shortest decimal that reads back as it (29.97, not 29.969999…)."""
    (value,) = struct.unpack("<f", stored)
    # A float32 keeps any six digits; only subnormal ones may need fewer.
    for digits in range(1 if abs(value) < 1 else 6, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == stored:
            return candidate
    return float(value)


def episode_table(opening: Opening, count: int, episode: Callable[[int], KinoEpisode]) -> Table:
    """Return the table of ``count`` episodes. ``episode`` returns the one at a position."""
    def episodes(block: int) -> list[KinoEpisode]:
        return list(map(episode, range(block * AT_ONCE, min(count, (block + 1) * AT_ONCE))))

    def cost(block: int) -> int:
        return sum(one.entry.cost + record_cost(CAMERA_BYTES) for one in episodes(block))

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
        known = (row["videos"] for row in rows(block))
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
        rows.append(values | {"cameras": names, "videos": cameras})
    return rows


def _cameras_of(episode: KinoEpisode) -> list[Camera] | None:
    """Return the cameras of an episode, as many as names may take; None if its images are damaged."""
    entry, cameras = episode.entry, dict[bytes, Camera]()
    if not entry.has_images:
        return []
    end = entry.images_offset + entry.images_length
    images = first_images(episode.source, entry.images_offset, end, entry.num_frames)
    if images is None:
        return None
    left = CAMERA_BYTES
    for image in images:
        left -= len(image.camera)
        if left < 0:
            break
        reason = ""
        if not image.width * image.height or not (image.format or 1 <= image.channels <= 4):
            reason = f"has images of {image.width} x {image.height} pixels and {image.channels} channels"
        # A video has the size of its first image.
        cameras.setdefault(image.camera, Camera(f"images/{text(image.camera)}", image.width, image.height, reason))
    return list(cameras.values())
