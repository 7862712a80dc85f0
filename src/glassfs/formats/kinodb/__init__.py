"""KinoDB (``.kdb``): robot episodes, each with metadata, state/action records and camera images. Any thread.

This module opens a container: header, packed index, and checks of the layout. ``episode`` makes an episode from its
64-byte index entry on demand, and the table of all episodes; ``scan`` locates its images when they are listed, and
``images`` makes contents of them. Pixels are read only on demand, or where nothing else shows what is stored.

A file with a wrong header or index is refused. A bad section costs only its own contents: they keep the sizes that the
index gives and raise Damaged when read. An image section that is cut off shows the frames before the cut, with a reason
in an ``Omitted`` member. Facts: docs/formats/kinodb.md; § in this package cites its sections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from glassfs.content import (
    Container,
    Content,
    Document,
    Extent,
    Fault,
    Fields,
    Member,
    Outline,
    Series,
    Table,
    layout_faults,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.episodes import EPISODES_KEY
from glassfs.errors import Refused
from glassfs.formats.kinodb.episode import ENTRY, EpisodeEntry, KinoEpisode, episode_table
from glassfs.formats.registry import Format, Opening

MAGIC = b"KINO"
STRETCH = 64  # entries of the index that are read at once
_CONTENTS = Outline(collections=(b"meta", EPISODES_KEY))
_META = Outline(others=(b"file",))
_HEADER = struct.Struct("<4sHHQQQQQ16s")  # 64 bytes


class KinoHeader(NamedTuple):
    """The file header (§2). ``created`` is in seconds since 1970; the two counts are only reported."""

    magic: bytes
    major: int
    minor: int
    num_episodes: int
    num_frames: int
    index_offset: int
    index_length: int
    created: int
    reserved: bytes


def open_kinodb(opening: Opening) -> Container:
    """Read the header. Raises Refused if it is wrong, and Damaged or Changed from the source."""
    source = opening.source
    size = source.entry.size
    if size < _HEADER.size:
        raise Refused(f"is cut short: it has {size} bytes, but a KinoDB header has {_HEADER.size}", source.name)
    header = KinoHeader(*_HEADER.unpack(source.read(0, _HEADER.size)))
    version = f"{header.major}.{header.minor}"
    if header.major > 0:
        raise Refused(f"has KinoDB version {version}, but glassfs reads up to 0.x", source.name)
    if header.index_offset + header.index_length > size:
        raise Refused("the index lies outside the file: the file is cut short, or its header is damaged", source.name)
    if header.index_length % ENTRY.size:
        raise Refused(
            f"the index has {header.index_length} bytes, which is not a multiple of {ENTRY.size}", source.name,
        )
    opened = _File(opening, header)
    if opened.count != header.num_episodes:
        opening.warn(f"its header counts {header.num_episodes} episodes, but its index has {opened.count}")
    facts = {"num_episodes": opened.count, "num_frames": header.num_frames, "created": _date(header.created)}
    root = Fields(b"", _CONTENTS, opened.content, lambda: [Member((EPISODES_KEY,), opened.episodes())])
    return Container(
        "kinodb", version, root, [source], facts, opened.check, opened.episodes, held=lambda: STRETCH * ENTRY.size,
    )


class _File:
    def __init__(self, opening: Opening, header: KinoHeader) -> None:
        self.source = opening.source
        self.header = header
        self.count = header.index_length // ENTRY.size
        self.opening = opening
        self._stretch = (-1, b"")
        """Number and bytes of the stretch of the index read last, replaced atomically by any thread."""

    def episodes(self) -> Table:
        return episode_table(self.opening, self.count, self.episode)

    def check(self) -> Iterator[Fault]:
        header = self.header
        if header.num_episodes != self.count:
            yield Fault("header", f"counts {header.num_episodes} episodes, but the index has {self.count}")
        frames = sum(entry.num_frames for entry in self.entries())
        if header.num_frames != frames:
            yield Fault("header", f"counts {header.num_frames} frames, but the index has {frames}")
        if any(header.reserved):
            yield Fault("header", "reserved bytes are not zero")
        highest = -1
        for position, entry in enumerate(self.entries()):
            if entry.episode_id <= highest:
                yield Fault(f"episodes/{position}", f"its id {entry.episode_id} comes after {highest}, but ids rise")
            highest = max(highest, entry.episode_id)
        yield from layout_faults(_layout(self), self.source.size, self.opening.allowance.part())
        for position in range(self.count):
            yield from self.episode(position).check()

    def episode(self, position: int) -> KinoEpisode:
        number, inside = divmod(position, STRETCH)
        # Threads may replace the stretch at any time: number and bytes are one tuple, which is read once.
        known, packed = self._stretch
        if known != number:
            start, size = number * STRETCH * ENTRY.size, STRETCH * ENTRY.size
            packed = self.source.read(self.header.index_offset + start, min(size, self.header.index_length - start))
            self._stretch = number, packed
        entry = tuple.__new__(EpisodeEntry, ENTRY.unpack_from(packed, inside * ENTRY.size))
        return KinoEpisode(self.opening, position, entry)

    def entries(self) -> Iterator[EpisodeEntry]:
        index = Extent(self.source, self.header.index_offset, self.header.index_length)
        for piece in index.pieces():  # pieces end between entries
            yield from map(EpisodeEntry._make, ENTRY.iter_unpack(piece))

    def content(self, name: bytes) -> Content:
        if name == b"meta":
            return Fields(name, _META, lambda name: Document(name, self._facts, cost=64 * OBJECT))
        return Series(name, range(self.count), lambda position: self.episode(position).contents(), has_groups=True)

    def _facts(self) -> dict[str, Any]:
        header = self.header
        return {
            "format": "kinodb", "version": f"{header.major}.{header.minor}", "num_episodes": header.num_episodes,
            "num_frames": header.num_frames, "created": header.created,
        }


def _layout(opened: _File) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of all parts. KinoDB accepts gaps and overlaps (§1)."""
    header = opened.header
    yield 0, _HEADER.size, "the header"
    for position, entry in enumerate(opened.entries()):
        for section, offset, length in entry.sections():
            yield offset, offset + length, f"the {section} of episode {position}"
    yield header.index_offset, header.index_offset + header.index_length, "the index"


def _date(seconds: int) -> str | None:
    """Return a readable date, or None for 0 (unknown). Any 64-bit number is possible."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat() if seconds else None
    except (OverflowError, ValueError, OSError):
        return f"{seconds} seconds after 1970"


FORMAT = Format("kinodb", lambda head: head.startswith(MAGIC), open_kinodb)
