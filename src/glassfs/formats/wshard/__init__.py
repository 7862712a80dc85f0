"""WShard: episodes of robot learning, one block per channel (docs/formats/wshard.md).

``index`` reads the container, ``metadata`` the descriptions of blocks; ``episode`` makes contents of blocks, repairs a
fault of the streaming writers, and finds errors that reading does not reveal. Opening raises Damaged or Refused; any
thread may use opened episodes.

This module makes the record of the episode as a whole, the tables of it and of its steps, and its videos: each use
reads the metadata again, and values of unreadable ones are unknown.

It also joins episodes in several files: a manifest (role 4) and its parts (§14). The parts must exist, be continuous,
and have the lengths that the manifest gives, else opening is refused. Small parts are checked by SHA-256 on opening,
large ones before their first read. A part that fails is Damaged from then on, and so are joined blocks where they cross
it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from glassfs.content import (
    Array,
    Blob,
    Concatenated,
    Container,
    Content,
    Fault,
    Group,
    Member,
    Omitted,
    Table,
    episodes_table,
    with_recording,
)
from glassfs.content.allowance import OBJECT
from glassfs.content.episodes import EPISODE_COLUMNS, features_of, is_camera, record_cost, recording_in
from glassfs.errors import GlassfsError, Passing, Refused
from glassfs.formats.registry import Format, Opening
from glassfs.formats.wshard.episode import EPISODE, WSHARD, WShardEpisode
from glassfs.formats.wshard.index import MAGIC, Index, Role
from glassfs.formats.wshard.metadata import text
from glassfs.names import raw
from glassfs.source.sealed import SealedSource

MANIFEST = b"meta/manifest"
OF_A_PART = ("chunk_index", "timestep_range")
HASHED_AT_OPENING = 32 << 20
NOT_JOINED = "is not joined: its type or shape differs between parts"


def open_wshard(opening: Opening) -> Container:
    """Open an episode (role 5) or the manifest of one in several files (role 4).

    Raises Damaged or Refused for a bad header or index, for other roles, and if the parts listed by a manifest are not
    the whole episode.
    """
    source = opening.source
    index = Index(source, opening.allowance)
    header = index.header
    if header.role not in (Role.WShard, Role.manifest):
        raise Refused(f"is a Shard container of {header.role_name}, not of WShard", source.name)
    if header.total_size != source.size:
        opening.warn(f"has {source.size} bytes, but its header says {header.total_size}")
    if header.role == Role.manifest:
        return open_manifest(opening, index)
    episode = WShardEpisode(index, opening)
    for name, reason in episode.damaged_metadata.items():
        opening.warn(reason, name.decode())
    root = Group(b"", record_of(episode).members)
    return Container(
        "wshard", str(header.version), root, [source], episode.facts(), episode.faults,
        lambda: record_of(episode).table(),
    )


class PartRecord(NamedTuple):
    """The manifest's description of a part. ``first`` and ``last`` are timesteps of the whole episode."""

    number: int
    uri: str
    sha256: str | None
    first: int
    last: int
    length: int

    def __str__(self) -> str:
        return f"part {self.number}, {self.uri!r}"


class EpisodePart(NamedTuple):
    record: PartRecord
    source: SealedSource
    episode: WShardEpisode


def open_manifest(opening: Opening, index: Index) -> Container:
    """Open the manifest and all its parts. Raises Refused, or Passing if it cannot be determined now."""
    own = WShardEpisode(index, opening)
    records, facts_of_manifest = _records(own)
    parts: list[EpisodePart] = []
    with ExitStack() as stack:
        for record in records:
            parts.append(_open_part(opening, record))
            stack.callback(parts[-1].source.close)
        # A part that was replaced by another episode of the same length is found only by its hash. Hashing gigabytes
        # would delay every command, so it is done for small parts here, and for others when they are first read.
        if sum(part.source.size for part in parts) <= HASHED_AT_OPENING:
            for part in parts:
                with _blamed_on(part.record, index.source.name):
                    part.source.verify()
                part.source.park()
                part.source.keep()
        for part in parts:
            part.source.seal()
        whole = _Whole(own, parts)
        stack.pop_all()
    root = Group(b"", whole.members)
    sources = [index.source, *(part.source.file for part in parts)]
    found = own.facts() | facts_of_manifest
    if any(part.episode.overlaps.repaired for part in parts):
        found["repaired"] = True
    return Container(
        "wshard", str(index.header.version), root, sources, found, whole.faults, lambda: whole.record().table(),
    )


def _records(own: WShardEpisode) -> tuple[list[PartRecord], dict[str, Any]]:
    """Return the parts in order, checked for continuity, and facts of the manifest."""
    refused = partial(Refused, source=own.index.source.name)
    with own.json(MANIFEST) as manifest:
        if not isinstance(manifest, dict):
            reason = own.damaged_metadata.get(MANIFEST, "is missing, or is not a JSON object")
            raise refused(f"is a manifest, but {MANIFEST.decode()} cannot be used: {reason}")
        listed = manifest.get("chunks") or []
        if not isinstance(listed, list):
            raise refused("the manifest's chunks are not a list of parts")
        described = [_record(entry) for entry in listed]
        if None in described:
            raise refused(f"entry {described.index(None)} of the manifest does not describe a part")
        records = sorted(filter(None, described), key=lambda record: record.number)
        gap = _discontinuity(records, manifest.get("total_chunks"), manifest.get("total_timesteps"))
        if gap is not None:
            raise refused(gap)
        found: dict[str, Any] = {
            key: text(manifest[key]) for key in ("episode_id", "env_id") if isinstance(manifest.get(key), str)
        }
    found["steps"] = sum(record.length for record in records)
    found["parts"] = [text(record.uri) for record in records]
    return records, found


def _record(entry: Any) -> PartRecord | None:
    match entry:
        case {"uri": str(uri), "chunk_index": number, "timestep_range": [first, last], "length_T": length}:
            sha256, numbers = entry.get("sha256"), (number, first, last, length)
            is_valid = isinstance(sha256, (str, type(None))) and all(
                type(value) is int and -1 <= value < 1 << 63 for value in numbers
            )
            if is_valid and min(number, first, length) >= 0:
                return PartRecord(number, uri, sha256.lower() if sha256 else None, first, last, length)
    return None


def _discontinuity(records: Sequence[PartRecord], count: Any, steps: Any) -> str | None:
    """Return what is wrong with the sequence of the parts, or None."""
    for position, record in enumerate(records):
        before = records[position - 1] if position else None
        if before is not None and record.number == before.number:
            return f"two parts have the number {record.number}: {before.uri!r} and {record.uri!r}"
        if record.number != position:
            return f"part {position} is missing from the manifest"
        if record.last - record.first + 1 != record.length:
            return f"{record}, has timesteps {record.first} to {record.last}, but a length of {record.length}"
        if before is not None and record.first != before.last + 1:
            return f"{record}, begins at timestep {record.first}, but {before.uri!r} ends at {before.last}"
    uri, named = next(iter(Counter(record.uri for record in records).most_common(1)), ("", 0))
    if named > 1:
        return f"{uri!r} is named for two parts"
    if count is not None and count != len(records):
        return f"the manifest lists {len(records)} parts, but declares {count!r:.40}"
    total = sum(record.length for record in records)
    if steps is not None and steps != total:
        return f"the parts have {total} timesteps, but the manifest declares {steps!r:.40}"
    return None


def _open_part(opening: Opening, record: PartRecord) -> EpisodePart:
    """Open a part. All parts together have the allowance of the manifest."""
    with _blamed_on(record, opening.source.name, "cannot be opened"):
        file = opening.sibling(record.uri)
    try:
        with _blamed_on(record, opening.source.name):
            source = SealedSource(file, record.sha256)
            opening.allowance.take(32 * OBJECT, "parts")
            index = Index(source, opening.allowance)
            if index.header.role != Role.WShard:
                raise Refused(f"is a Shard container of {index.header.role_name}, not an episode")
            episode = WShardEpisode(index, opening)
            if episode.metadata.length not in (None, record.length):
                raise Refused(f"has {episode.metadata.length} timesteps, but the manifest declares {record.length}")
    except BaseException:
        file.close()
        raise
    # There may be more parts than descriptors: close each now and reopen it when it is read.
    file.park()
    file.keep()
    return EpisodePart(record, source, episode)


@contextmanager
def _blamed_on(record: PartRecord, manifest: str, what: str = "cannot be used") -> Iterator[None]:
    """Convert an error of a part to the reason why the manifest cannot be opened, permanently or now."""
    try:
        yield
    except Passing as error:
        raise type(error)(error.reason, manifest, str(record)) from error
    except GlassfsError as error:
        part = ": ".join(filter(None, (str(record), error.part)))
        raise Refused(f"{what}: {error.reason}", manifest, part) from error
    except ValueError as error:
        raise Refused(f"{what}: its name is not a valid file name", manifest, str(record)) from error


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


@dataclass
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
            return next(filter(is_valid, (item[key] for item in objects for key in keys if key in item)), None)

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


class _Whole:
    """The blocks of all parts joined along T, and the parts themselves."""

    def __init__(self, own: WShardEpisode, parts: Sequence[EpisodePart]) -> None:
        self._own = own
        self._parts = parts
        self._joined: list[Member] = []
        self._unjoined: list[bytes] = []
        blocks: dict[bytes, dict[int, Content]] = {}
        for part in parts:
            for entry in part.episode.index.entries:
                if entry.name is not None and not entry.is_metadata:
                    # Of blocks with equal names the first counts.
                    blocks.setdefault(entry.name, {}).setdefault(part.record.number, part.episode.content(entry))
        for name, contents in blocks.items():
            joined = _joined(list(contents.values())) if len(contents) == len(parts) else None
            if joined is None:
                self._unjoined.append(name)
            else:
                self._joined.append(Member(tuple(name.split(b"/", 255)), joined))

    def members(self) -> Iterator[Member]:
        yield from self._own.blocks()
        yield from self.record().members()
        for name in self._unjoined:
            yield Member(tuple(name.split(b"/", 255)), Omitted(name, NOT_JOINED, is_damage=True))
        for part in self._parts:
            group = Group(raw(part.record.uri), record_of(part.episode).members)
            yield Member((b"chunks", b"%04d" % part.record.number), group)

    def record(self) -> EpisodeRecord:
        """Return the record from the manifest, completed from the first part."""
        first = [part.episode for part in self._parts[:1]]
        blocks = [(self._own, MANIFEST), *((episode, block) for episode in first for block in (EPISODE, WSHARD))]
        steps = sum(part.record.length for part in self._parts)
        return EpisodeRecord(blocks, steps, lambda: first[0].rate if first else 0.0, lambda: self._joined, OF_A_PART)

    def faults(self) -> Iterator[Fault]:
        yield from self._own.faults()
        for part in self._parts:
            place = f"chunks/{part.record.number:04d}"
            try:
                part.source.verify()
            except Passing:
                raise
            except GlassfsError as error:
                yield Fault(place, error.without_source)
                continue
            if part.record.sha256 is None:
                yield Fault(place, "has no SHA-256 in the manifest")
            number = part.episode.metadata.chunk_index
            if number not in (None, part.record.number):
                yield Fault(place, f"calls itself part {number}")
            for fault in part.episode.faults():
                yield Fault(f"{place}/{fault.place}", fault.reason)


def _joined(contents: Sequence[Content]) -> Content | None:
    """Return one content, or None if these are of different kinds."""
    data = Concatenated([content.data for content in contents if isinstance(content, (Array, Blob))])
    if all(isinstance(content, Blob) for content in contents):
        return Blob(contents[0].key, data)
    arrays = [(array, array.known_shape) for array in contents if isinstance(array, Array) and array.known_shape]
    kinds = {(array.dtype, shape[1:], array.type_name) for array, shape in arrays}
    if len(arrays) < len(contents) or len(kinds) > 1:
        return None
    first, shape = arrays[0]
    return replace(first, data=data, shape=(sum(shape[0] for _, shape in arrays), *shape[1:]))


FORMAT = Format("wshard", lambda head: head.startswith(MAGIC), open_wshard)
