"""The ZIP archive: its central directory, and where the bytes of members are (docs/formats/npz.md, cited as §).

The central directory is read a stretch at a time and not kept: archives may have millions of entries. Any thread. What
contradicts itself or the file raises Damaged: the directory as a whole, or one member when it is located.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import lt, not_
from typing import NamedTuple

from glassfs.codec import CRC32, DEFLATE, NONE, Checksum
from glassfs.codec.compression import reach
from glassfs.content import Data, Decoded, Extent, Location
from glassfs.content.data import SizedData
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.registry import Opening
from glassfs.once import once

END, END64, LOCATOR64, CENTRAL, LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
END_RECORD = struct.Struct("<4s4H2LH")
END_RECORD64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_SIZE = 20
CENTRAL_HEADER = struct.Struct("<4s4BHHHHLLL5HLL")
LOCAL_HEADER = struct.Struct("<4sHHHHHLLLHH")
LONGEST_END = END_RECORD.size + 0xFFFF
STRETCH = 256 << 10
ENCRYPTED, UTF8 = 1 << 0 | 1 << 6, 1 << 11
IN_ZIP64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
CODECS = {0: NONE, 8: DEFLATE}
METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 98: "PPMd", 99: "AES"}
LARGEST = 1 << 60  # file sizes have 63 bits
FEW = 4096
MOST_MEMBERS = 100_000
"""Members of an archive that is shown: listing one takes about 750 bytes of memory for each."""


class Entry(NamedTuple):
    """An entry of the central directory. ``offset`` is that of the local header in the file.

    The member's bytes end at ``limit`` at the latest, where another member or the directory begins. ``stored`` and
    ``size`` are its bytes as stored and uncompressed.
    """

    name: bytes
    flags: int
    method: int
    crc: int
    stored: int
    size: int
    offset: int
    limit: int

    @property
    def label(self) -> str:
        return self.name.decode("utf-8", "backslashreplace")


class Survey(NamedTuple):
    """The results of one pass over the central directory.

    ``total`` is the number of entries, which archives without ZIP64 declare in 16 bits only.
    ``starts`` are the rising offsets of local headers, None if the entries have them in this order. ``hidden`` has one
    byte per entry, 1 if a later one has the same name; None if all names differ. ``known`` has the entries of the names
    that were asked for, of equal names the last. ``name_bytes`` is the size of all names.
    """

    total: int
    starts: Sequence[int] | None
    hidden: bytes | None
    known: dict[bytes, Entry]
    name_bytes: int


class Archive:
    """The archive in a source. ``wanted`` are names that the survey looks for. Raises Damaged."""

    def __init__(self, opening: Opening, wanted: frozenset[bytes] = frozenset()) -> None:
        self.source, self.cache = opening.source, opening.cache
        self._wanted = wanted
        end, position = self._end_record()
        self.count, size, offset = end[4:7]
        """The number of members that the archive declares."""
        self.is_zip64 = False
        locator = position - LOCATOR_SIZE
        if locator >= 0 and self.source.read(locator, len(LOCATOR64)) == LOCATOR64:
            position = locator - END_RECORD64.size
            record = END_RECORD64.unpack(self.source.read(position, END_RECORD64.size)) if position >= 0 else (b"",)
            if record[0] != END64:
                raise self.source.damage("the ZIP64 record of its end is not before its locator")
            self.is_zip64 = True
            self.count, size, offset = record[-3:]
        self._start, self._end = position - size, position
        self.in_front = self._start - offset
        """Bytes in front of the archive: offsets are relative to its first local header (§4)."""
        if self._start < 0 or self.in_front < 0:
            raise self.source.damage(
                f"its central directory of {size} bytes at {offset} is not in front of its end at {position}"
            )
        if self.count * CENTRAL_HEADER.size > size:
            raise self.source.damage(
                f"declares {self.count} members, which do not fit a central directory of {size} bytes"
            )
        if self.count > MOST_MEMBERS:
            raise self._too_many()

    def _end_record(self) -> tuple[tuple[int, ...], int]:
        """Return the fields of the end record and its offset (§4)."""
        size = self.source.size
        if size >= END_RECORD.size:
            found = self.source.read(size - END_RECORD.size, END_RECORD.size)
            if found.startswith(END) and found.endswith(b"\0\0"):
                return END_RECORD.unpack(found), size - END_RECORD.size
            tail = self.source.read(size - min(size, LONGEST_END), min(size, LONGEST_END))
            place = tail.rfind(END, 0, len(tail) - END_RECORD.size + len(END))
            if place >= 0:
                return END_RECORD.unpack_from(tail, place), size - len(tail) + place
        raise self.source.damage("has no end record: it is cut short, or its writer has not finished it")

    @property
    def directory_size(self) -> int:
        """Bytes of the central directory."""
        return self._end - self._start

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in order, those whose name a later one repeats at the end: that one keeps the name (§5)."""
        hidden = self.survey.hidden
        if hidden is None:
            yield from self._limited()
        else:
            yield from compress(self._limited(), map(not_, hidden))
            yield from compress(self._limited(), hidden)

    @once
    def survey(self) -> Survey:
        offsets, hashes = array("Q"), array("q")
        known: dict[bytes, Entry] = {}
        name_bytes = 0
        for entry in self._raw():
            if len(offsets) == MOST_MEMBERS:
                raise self._too_many()
            offsets.append(entry.offset)
            hashes.append(hash(entry.name))
            name_bytes += len(entry.name)
            if entry.name in self._wanted:
                known[entry.name] = entry
        is_rising = all(map(lt, offsets, offsets[1:]))
        starts = None if is_rising else _distinct(offsets)
        for name, entry in known.items():
            known[name] = entry._replace(limit=self._limit(offsets if starts is None else starts, entry))
        return Survey(len(offsets), starts, _repeated(hashes), known, name_bytes)

    def _limit(self, starts: Sequence[int], entry: Entry) -> int:
        place = bisect_right(starts, entry.offset)
        return starts[place] if place < len(starts) else self._start

    def _limited(self) -> Iterator[Entry]:
        starts = self.survey.starts
        if starts is not None:
            for entry in self._raw():
                yield entry._replace(limit=self._limit(starts, entry))
            return
        before = None
        for entry in self._raw():
            if before is not None:
                yield before._replace(limit=entry.offset)
            before = entry
        if before is not None:
            yield before

    def _raw(self) -> Iterator[Entry]:
        """Yield the entries of the directory, limited only by the directory. Raises Damaged, after the sound ones."""
        count, place, data = 0, self._start, b""
        data_start = place
        while place < self._end:
            inside = place - data_start
            if len(data) - inside < CENTRAL_HEADER.size + 3 * 0xFFFF and data_start + len(data) < self._end:
                data = self.source.read(place, min(STRETCH, self._end - place))
                data_start, inside = place, 0
            if len(data) - inside < CENTRAL_HEADER.size:
                raise self._bad_entry(count)
            fields = CENTRAL_HEADER.unpack_from(data, inside)
            flags, method, crc, stored, size = fields[5], fields[6], fields[9], fields[10], fields[11]
            name_end = inside + CENTRAL_HEADER.size + fields[12]
            extra_end = name_end + fields[13]
            place = data_start + extra_end + fields[14]
            if fields[0] != CENTRAL or place > self._end:
                raise self._bad_entry(count)
            name = _decoded(data[inside + CENTRAL_HEADER.size : name_end], flags)
            offset = fields[18]
            if fields[13]:
                size, stored, offset = _in_zip64(data[name_end:extra_end], size, stored, offset)
            # An offset behind the directory is invalid, and may be of any size.
            yield Entry(name, flags, method, crc, stored, size, min(offset + self.in_front, self._end), self._start)
            count += 1
        if count != self.count and (self.is_zip64 or count & 0xFFFF != self.count):
            raise self.source.damage(f"declares {self.count} members, but its central directory has {count}")

    def _too_many(self) -> Damaged:
        return self.source.damage(f"has more than {MOST_MEMBERS:,} members, and glassfs lists no more")

    def _bad_entry(self, count: int) -> Damaged:
        return self.source.damage(f"entry {count} of its central directory is damaged")

    def impossible(self, entry: Entry) -> str | None:
        """Return why a member cannot be read, by its entry alone, or None."""
        if entry.flags & ENCRYPTED:
            return "is encrypted, and glassfs reads no encrypted members"
        codec = CODECS.get(entry.method)
        if codec is None:
            method = METHODS.get(entry.method, f"method {entry.method}")
            return f"is compressed with {method}: write it with numpy.savez or numpy.savez_compressed"
        if entry.offset + LOCAL_HEADER.size + entry.stored > entry.limit:
            return "its bytes overlap another member or the central directory"
        if codec == NONE and entry.stored != entry.size:
            return f"has {entry.stored} stored bytes, but {entry.size} are declared"
        if not entry.size and entry.crc != CRC32.start:
            return f"declares 0 bytes, but has a checksum of others ({entry.crc:08x})"
        if entry.size > min(reach(codec, entry.stored), LARGEST):
            return f"{entry.stored} bytes of {codec} data cannot give the declared {entry.size} bytes"
        return None

    def locate(self, entry: Entry, size: int = 0) -> tuple[int, bytes]:
        """Return where the stored bytes of a member begin, and the first of them: up to about ``size`` bytes.

        Raises Damaged if the member cannot be read, and NotInstalled if that is only due to its encryption or method.
        """
        reason = self.impossible(entry)
        if reason is not None:
            is_intact = entry.flags & ENCRYPTED or entry.method not in CODECS
            raise NotInstalled(reason, self.source.name, entry.label) if is_intact else self.damage(entry, reason)
        taken = min(LOCAL_HEADER.size + len(entry.name) + size, entry.limit - entry.offset)
        head = self.source.read(entry.offset, taken)
        fields = LOCAL_HEADER.unpack_from(head)
        if fields[0] != LOCAL:
            raise self.damage(entry, f"its local header at {entry.offset} is damaged")
        # A name in CP437 is no longer than the same in UTF-8, so all of it was read unless it differs.
        name, start = head[LOCAL_HEADER.size :][: fields[9]], LOCAL_HEADER.size + fields[9] + fields[10]
        if _decoded(name, fields[2]) != entry.name or len(name) < fields[9]:
            raise self.damage(entry, "its name in the local header differs from that in the central directory")
        if entry.offset + start + entry.stored > entry.limit:
            raise self.damage(entry, "its bytes overlap another member or the central directory")
        return entry.offset + start, head[start : start + entry.stored]

    def data(self, entry: Entry, start: int) -> Decoded:
        """Return the uncompressed bytes of a member whose stored bytes begin at ``start``.

        The checksum of stored members is only checked when they are read as a whole, so that a part costs a part (§2).
        """
        return Decoded(
            self.cache, Extent(self.source, start, entry.stored), CODECS[entry.method], entry.size, entry.label,
            Checksum(CRC32, entry.crc), is_checked_at_end=True,
        )

    def damage(self, entry: Entry, reason: str) -> Damaged:
        return self.source.damage(reason, entry.label)


class LazyMember(SizedData):
    """A member that is located when it is first read."""

    __slots__ = ("_archive", "_entry", "_found")

    def __init__(self, archive: Archive, entry: Entry) -> None:
        # Nothing confirms the size of what cannot be read. An empty file would be read without an error.
        is_impossible = archive.impossible(entry) is not None
        super().__init__(max(1, min(entry.stored, archive.source.size)) if is_impossible else entry.size)
        self._archive, self._entry = archive, entry
        self._found: Data | None = None

    def _data(self) -> Data:
        if self._found is None:
            self._found = self._archive.data(self._entry, self._archive.locate(self._entry)[0])
        return self._found

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._data().read_into(buffer, offset)

    def scatter_into(self, buffers: Sequence[memoryview], offset: int) -> None:
        self._data().scatter_into(buffers, offset)

    def mapped(self) -> memoryview | None:
        return self._data().mapped()

    def location(self) -> Location | None:
        try:
            return self._data().location()
        except (Damaged, NotInstalled):
            return None


def _decoded(name: bytes, flags: int) -> bytes:
    """Return a name in UTF-8 (§5)."""
    return name if flags & UTF8 or name.isascii() else name.decode("cp437").encode()


def _in_zip64(extra: bytes, size: int, stored: int, offset: int) -> tuple[int, int, int]:
    """Return the numbers of an entry, replaced by those of its ZIP64 field where they do not fit (§3)."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, place)
        if kind == 1:
            field = extra[place + 4 : place + 4 + length]
            numbers = list(struct.unpack_from(f"<{len(field) // 8}Q", field))
            found = []
            for number, limits in ((size, IN_ZIP64), (stored, IN_ZIP64[:1]), (offset, IN_ZIP64[:1])):
                found.append(numbers.pop(0) if number in limits and numbers else number)
            return found[0], found[1], found[2]
        place += 4 + length
    return size, stored, offset


def _distinct(offsets: array[int]) -> array[int]:
    """Return rising numbers."""
    if len(offsets) <= FEW:
        return array("Q", sorted(set(offsets)))
    import numpy as np

    return array("Q", np.unique(np.frombuffer(offsets, np.uint64)).tobytes())


def _repeated(hashes: array[int]) -> bytes | None:
    """Return one byte per entry, 1 if a later one has the same hash; None if all differ.

    The names themselves would take too much memory. If two names share a hash, the earlier one is listed late, with no
    other effect.
    """
    if len(hashes) <= FEW:
        last = {value: place for place, value in enumerate(hashes)}
        if len(last) == len(hashes):
            return None
        return bytes(last[value] != place for place, value in enumerate(hashes))
    import numpy as np

    values = np.frombuffer(hashes, np.int64)
    order = np.argsort(values, kind="stable")
    values = values[order]
    is_repeated = np.zeros(len(values), np.bool_)
    is_repeated[order[:-1][values[:-1] == values[1:]]] = True
    return is_repeated.tobytes() if is_repeated.any() else None
