"""A KinoDB file: its header and index, and what is wrong with how it is laid out.

Opening reads and checks these two (Refused, or Damaged and Changed from the source); of the episodes only the packed
index is kept.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Container, Data, Document, Extent, Fault, Group, Member, Memory, Series
from glassfs.errors import Refused
from glassfs.formats.kinodb.episode import Entry, Episode
from glassfs.source import Source

MAGIC = b"KINO"
HEADER_SIZE = 64
NEWEST_MAJOR = 0
KEPT_INDEX = 64 << 20  # a longer index, of over a million episodes, is read entry by entry
MOST_RUNS = 500_000  # of sections that do not follow one another, to be held while looking for overlaps
_HEADER = struct.Struct("<4sHHQQQQQ16s")
_ENTRY = struct.Struct("<QIHHQQQQQQ")

log = logging.getLogger(__name__)


class Header(NamedTuple):
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


def open_kinodb(source: Source, cache: BlockCache) -> Container:
    """Reads header and index. Raises Refused where they are wrong, and Damaged or Changed like ``source``."""
    if source.size < HEADER_SIZE:
        raise Refused(source.name, f"is cut: {source.size} bytes, a KinoDB header has {HEADER_SIZE}")
    header = Header(*_HEADER.unpack(source.read(0, HEADER_SIZE)))
    version = f"{header.major}.{header.minor}"
    if header.major > NEWEST_MAJOR:
        raise Refused(source.name, f"is of KinoDB version {version}; versions up to {NEWEST_MAJOR}.x can be read")
    if header.index_offset + header.index_length > source.size:
        raise Refused(source.name, "the index lies outside the file: it was cut, or its header is damaged")
    if header.index_length % _ENTRY.size:
        raise Refused(source.name, f"the index has {header.index_length} bytes, which is no multiple of {_ENTRY.size}")
    opened = _File(source, header)
    if opened.count != header.num_episodes:
        log.warning("%s: its header counts %d episodes, its index %d", source.name, header.num_episodes, opened.count)
    facts = {"num_episodes": opened.count, "num_frames": header.num_frames, "created": _date(header.created)}
    return Container("kinodb", version, Group(b"", opened.members, subgroups=2), [source], facts, opened.check)


class _File:
    """An opened file. Of the episodes it keeps the packed index."""

    def __init__(self, source: Source, header: Header) -> None:
        self.source = source
        self.header = header
        self.count = header.index_length // _ENTRY.size
        stored = Extent(source, header.index_offset, header.index_length)
        self._index: Data = stored if stored.size > KEPT_INDEX else Memory(stored.whole())

    def members(self) -> Iterator[Member]:
        yield Member((b"meta", b"file"), Document(b"file", self._facts, (self.source.identity, "kinodb", "file")))
        yield Member((b"episodes",), Series(b"episodes", self.count, self._group, has_groups=True))

    def check(self) -> Iterator[Fault]:
        yield from _header_faults(self)
        yield from _layout_faults(self)
        for position in range(self.count):
            yield from self.episode(position).check()

    def episode(self, position: int) -> Episode:
        packed = self._index.read(position * _ENTRY.size, _ENTRY.size)
        return Episode(self.source, position, Entry(*_ENTRY.unpack(packed)))

    def entries(self) -> Iterator[Entry]:
        for piece in self._index.pieces():  # pieces end between entries
            yield from map(Entry._make, _ENTRY.iter_unpack(piece))

    def _group(self, position: int) -> Group:
        return self.episode(position).group()

    def _facts(self) -> dict[str, Any]:
        header = self.header
        return {
            "format": "kinodb", "version": f"{header.major}.{header.minor}", "num_episodes": header.num_episodes,
            "num_frames": header.num_frames, "created": header.created,
        }


def _header_faults(opened: _File) -> Iterator[Fault]:
    header = opened.header
    if header.num_episodes != opened.count:
        yield Fault("header", f"counts {header.num_episodes} episodes, the index has {opened.count}")
    frames = sum(entry.num_frames for entry in opened.entries())
    if header.num_frames != frames:
        yield Fault("header", f"counts {header.num_frames} frames, the index has {frames}")
    if any(header.reserved):
        yield Fault("header", "reserved bytes are not zero")
    highest = -1
    for position, entry in enumerate(opened.entries()):
        if entry.episode_id <= highest:
            yield Fault(f"episodes/{position}", f"its id {entry.episode_id} comes after {highest}: ids rise")
        highest = max(highest, entry.episode_id)


def _layout_faults(opened: _File) -> Iterator[Fault]:
    """Overlaps, and bytes that belong to nothing. Neither is an error to KinoDB (§1)."""
    source, header = opened.source, opened.header
    runs = [(0, HEADER_SIZE, "the header")]
    index = (header.index_offset, header.index_offset + header.index_length, "the index")
    sections = (
        (offset, offset + length, f"the {section} of episode {position}")
        for position, entry in enumerate(opened.entries())
        for section, offset, length in entry.sections()
    )
    for start, end, what in chain(sections, (index,)):
        if not start < end <= source.size:
            continue
        if start == runs[-1][1]:  # as the writer does it: one run, however many episodes
            runs[-1] = (runs[-1][0], end, what)
        else:
            runs.append((start, end, what))
        if len(runs) > MOST_RUNS:
            yield Fault("file", "its sections are too scattered to look for holes and overlaps")
            return
    reached, before = 0, "the start of the file"
    for start, end, what in (*sorted(runs), (source.size, source.size, "the end of the file")):
        if start > reached:
            yield Fault("file", f"{start - reached} bytes at {reached}, behind {before}, belong to nothing")
        elif start < reached and start < source.size:
            twice = f"{start} to {min(end, reached)}"
            yield Fault("file", f"bytes {twice} are used twice: before the end of {before}, and of {what}")
        if end > reached:
            reached, before = end, what


def _date(seconds: int) -> str | None:
    """A time stamp for people; 0 stands for unknown, and any 64-bit number is possible."""
    from datetime import datetime, timezone

    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat() if seconds else None
    except (OverflowError, ValueError, OSError):
        return f"{seconds} seconds after 1970"
