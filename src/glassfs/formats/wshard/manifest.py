"""An episode in several files: a manifest (role 4) and its parts (formats/wshard.md §14).

The parts must be there, continuous, and as long as the manifest says; otherwise opening is refused with a reason that
names the part. Their SHA-256 is checked at opening where they are small together, else before a part's first byte is
given afterwards; a part that fails is Damaged from then on, and so are the joined blocks where they run through it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Blob, Concatenated, Container, Content, Fault, Group, Member
from glassfs.errors import Damaged, GlassfsError, Refused
from glassfs.formats.wshard.episode import Episode
from glassfs.formats.wshard.index import MOST_ENTRIES, WSHARD_ROLE, Index, label
from glassfs.formats.wshard.verification import facts, faults, text
from glassfs.source import Source

MANIFEST = b"meta/manifest"
MOST_PARTS = 4096
HASHED_AT_OPENING = 32 << 20
_PIECE = 1 << 20


class PartRecord(NamedTuple):
    """What the manifest says of a part. ``first`` and ``last`` are timesteps of the whole episode."""

    number: int
    uri: str
    sha256: str | None
    first: int
    last: int
    length: int

    def __str__(self) -> str:
        return f"part {self.number}, {self.uri!r},"


class SealedSource(Source):
    """The file of a part, whose bytes are given only if its SHA-256 is right, from the first call of ``seal`` on."""

    def __init__(self, file: Source, sha256: str | None, what: str) -> None:
        self.file = file
        self.name, self.size, self.identity = file.name, file.size, file.identity
        self.mode, self.uid, self.gid = file.mode, file.uid, file.gid
        self._sha256 = sha256
        self._what = what
        self._is_open = True
        self._is_right: bool | None = None
        self._lock = threading.Lock()

    def seal(self) -> None:
        self._is_open = self._sha256 is None

    def verify(self) -> None:
        """Reads the whole file, once. Raises Damaged if it is not the one that the manifest means."""
        with self._lock:
            if self._is_right is None:
                self._is_right = self._sha256 is None or self._digest() == self._sha256
            if not self._is_right:
                raise Damaged(f"{self._what} was changed: its SHA-256 is not the one in the manifest")
            self._is_open = True

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if not self._is_open:
            self.verify()
        self.file.read_into(buffer, offset)

    def sibling(self, name: str) -> Source:
        return self.file.sibling(name)

    def park(self) -> None:
        self.file.park()

    def close(self) -> None:
        self.file.close()

    def _digest(self) -> str:
        digest = hashlib.sha256()
        piece = memoryview(bytearray(min(_PIECE, self.size)))
        for offset in range(0, self.size, _PIECE):
            read = piece[: min(_PIECE, self.size - offset)]
            self.file.read_into(read, offset)
            digest.update(read)
        return digest.hexdigest()


class Part(NamedTuple):
    record: PartRecord
    source: SealedSource
    episode: Episode


def open_manifest(index: Index, cache: BlockCache) -> Container:
    """Opens the manifest and all its parts. Raises Refused."""
    own = Episode(index, cache)
    records, facts_of_manifest = _records(own)
    parts: list[Part] = []
    try:
        for record in records:
            left = MOST_ENTRIES - sum(len(part.episode.index) for part in parts)
            parts.append(_open_part(index.source, record, cache, left))
        if sum(part.source.size for part in parts) <= HASHED_AT_OPENING:
            for part in parts:
                part.source.verify()
        for part in parts:
            part.source.seal()
        whole = _Whole(own, parts)
    except BaseException:
        for part in parts:
            part.source.close()
        raise
    root = Group(b"", whole.members, error=whole.error)
    sources = [index.source, *(part.source.file for part in parts)]
    return Container(
        "wshard", str(index.header.version), root, sources, facts(own) | facts_of_manifest, whole.faults,
    )


def _records(own: Episode) -> tuple[list[PartRecord], dict[str, Any]]:
    """The parts in order, checked for continuity, and what there is to tell."""
    name = own.index.source.name
    manifest = own.json(MANIFEST)
    if not isinstance(manifest, dict):
        reason = own.damaged_metadata.get(MANIFEST, "is missing or no JSON object")
        raise Refused(name, f"is a manifest, but {MANIFEST.decode()} cannot be used: {reason}")
    listed = manifest.get("chunks") or []
    if not isinstance(listed, list) or len(listed) > MOST_PARTS:
        raise Refused(name, f"chunks in the manifest is not a list of at most {MOST_PARTS} parts")
    records = [_record(name, position, entry) for position, entry in enumerate(listed)]
    records.sort(key=lambda record: record.number)
    gap = _discontinuity(records, manifest.get("total_chunks"), manifest.get("total_timesteps"))
    if gap is not None:
        raise Refused(name, gap)
    told: dict[str, Any] = {
        key: text(manifest[key]) for key in ("episode_id", "env_id") if isinstance(manifest.get(key), str)
    }
    told["steps"] = sum(record.length for record in records)
    told["parts"] = [text(record.uri) for record in records]
    return records, told


def _record(name: str, position: int, entry: Any) -> PartRecord:
    if isinstance(entry, dict):
        uri, sha256, steps = (entry.get(key) for key in ("uri", "sha256", "timestep_range"))
        numbers = [entry.get("chunk_index"), *(steps if isinstance(steps, list) else ()), entry.get("length_T")]
        if (
            isinstance(uri, str) and (sha256 is None or isinstance(sha256, str)) and len(numbers) == 4
            and all(type(number) is int and -1 <= number < 1 << 63 for number in numbers)
        ):
            number, first, last, length = numbers
            if min(number, first, length) >= 0:
                return PartRecord(number, uri, sha256.lower() if sha256 else None, first, last, length)
    raise Refused(name, f"entry {position} of the manifest does not describe a part")


def _discontinuity(records: Sequence[PartRecord], count: Any, steps: Any) -> str | None:
    """What is wrong with the sequence of the parts, or None."""
    for position, record in enumerate(records):
        before = records[position - 1] if position else None
        if before is not None and record.number == before.number:
            return f"two parts have the number {record.number}: {before.uri!r} and {record.uri!r}"
        if record.number != position:
            return f"part {position} is missing in the manifest"
        if record.last - record.first + 1 != record.length:
            return f"{record} has timesteps {record.first} to {record.last}, but a length of {record.length}"
        if before is not None and record.first != before.last + 1:
            return f"{record} begins at timestep {record.first}, but {before.uri!r} ends at {before.last}"
    uris: set[str] = set()
    for record in records:
        if record.uri in uris:
            return f"{record.uri!r} is named for two parts"
        uris.add(record.uri)
    if count is not None and count != len(records):
        return f"the manifest lists {len(records)} parts, but says that there are {count!r:.40}"
    total = sum(record.length for record in records)
    if steps is not None and steps != total:
        return f"the parts have {total} timesteps together, but the manifest says {steps!r:.40}"
    return None


def _open_part(manifest: Source, record: PartRecord, cache: BlockCache, most_entries: int) -> Part:
    try:
        # ValueError: a name that no file can have.
        file = manifest.sibling(record.uri)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Refused(manifest.name, f"{record} cannot be opened: {reason}") from error
    try:
        source = SealedSource(file, record.sha256, f"{manifest.name}: {record}")
        index = Index(source)
        if index.header.role != WSHARD_ROLE:
            raise Refused(file.name, f"is a Shard container of {index.header.role_name}, not an episode")
        if len(index) > most_entries:
            raise Refused(file.name, f"the parts have more than {MOST_ENTRIES} blocks together")
        episode = Episode(index, cache)
        if episode.metadata.length not in (None, record.length):
            raise Refused(
                file.name, f"has {episode.metadata.length} timesteps, the manifest says {record.length}",
            )
    except GlassfsError as error:
        file.close()
        reason = str(error).removeprefix(f"{file.name}: ")
        raise Refused(manifest.name, f"{record} cannot be used: {reason}") from error
    return Part(record, source, episode)


class _Whole:
    """The blocks of all parts joined along T, and the parts themselves."""

    def __init__(self, own: Episode, parts: Sequence[Part]) -> None:
        self._own = own
        self._parts = parts
        self._joined: list[Content] = []
        self._unjoined: dict[bytes, str] = {}
        self._join()

    @property
    def error(self) -> str | None:
        if not self._unjoined:
            return self._own.error
        shown = ", ".join(label(name) for name in list(self._unjoined)[:5])
        return f"{len(self._unjoined)} blocks cannot be joined: {shown}"

    def members(self) -> Iterator[Member]:
        yield from self._own.members()
        for content in self._joined:
            yield Member(tuple(content.key.split(b"/")), content)
        for part in self._parts:
            uri = part.record.uri.encode("utf-8", "surrogateescape")
            group = Group(uri, part.episode.members, error=part.episode.error)
            yield Member((b"chunks", b"%04d" % part.record.number), group)

    def faults(self) -> Iterator[Fault]:
        yield from faults(self._own)
        for name, reason in self._unjoined.items():
            yield Fault(label(name), reason)
        for part in self._parts:
            place = f"chunks/{part.record.number:04d}"
            try:
                part.source.verify()
            except GlassfsError as error:
                yield Fault(place, str(error))
                continue
            if part.record.sha256 is None:
                yield Fault(place, "the manifest has no SHA-256 of it")
            number = part.episode.metadata.episode.get("chunk_index")
            if number not in (None, part.record.number):
                yield Fault(place, f"calls itself part {number!r:.40}")
            for fault in faults(part.episode):
                yield Fault(f"{place}/{fault.place}", fault.reason)

    def _join(self) -> None:
        blocks: dict[bytes, dict[int, Content]] = {}
        for part in self._parts:
            for entry in part.episode.index:
                if entry.name is None or entry.is_metadata:
                    continue
                found = blocks.setdefault(entry.name, {})
                if part.record.number not in found:  # of two blocks with one name the first counts
                    found[part.record.number] = part.episode.content(entry)
        for name, contents in blocks.items():
            joined = _joined(list(contents.values())) if len(contents) == len(self._parts) else None
            if joined is None:
                self._unjoined[name] = "is not the same kind of block in all parts, so it is not joined"
            else:
                self._joined.append(joined)


def _joined(contents: Sequence[Content]) -> Content | None:
    """One content, or None if these are of different kinds."""
    first = contents[0]
    data = Concatenated([content.data for content in contents if isinstance(content, (Array, Blob))])
    if all(isinstance(content, Blob) for content in contents):
        return Blob(first.key, data)
    kinds, steps = set(), 0
    for content in contents:
        if not isinstance(content, Array) or not isinstance(content.shape, tuple):
            return None
        steps += content.shape[0]
        kinds.add((content.dtype, content.shape[1:], content.type_name))
    if len(kinds) != 1 or not isinstance(first, Array):
        return None
    dtype, shape, type_name = kinds.pop()
    return Array(first.key, data, dtype, (steps, *shape), type_name, first.modality)
