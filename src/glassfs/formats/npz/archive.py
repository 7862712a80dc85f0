"""The ZIP archive: its central directory, and where the bytes of members are (docs/formats/npz.md, cited as §).

Any thread. What contradicts itself or the file raises Damaged: the directory as a whole when it is first needed, or one
member when it is located.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntFlag
from typing import NamedTuple

from glassfs.codec import CRC32, DEFLATE, NONE, Checksum
from glassfs.codec.compression import reach
from glassfs.content import Data, Decoded, Extent, Location
from glassfs.content.allowance import OBJECT
from glassfs.content.data import SizedData
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.registry import Opening
from glassfs.once import once

END, END64, LOCATOR64, CENTRAL, LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
END_RECORD = struct.Struct("<4s4H2LH")
END_RECORD64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_RECORD64 = struct.Struct("<4sLQL")
CENTRAL_HEADER = struct.Struct("<4s4BHHHHLLL5HLL")
LOCAL_HEADER = struct.Struct("<4sHHHHHLLLHH")
LONGEST_END = END_RECORD.size + 0xFFFF
IN_ZIP64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
CODECS = {0: NONE, 8: DEFLATE}
METHODS = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 98: "PPMd", 99: "AES"}


class Flag(IntFlag):
    """Flags of an entry."""

    ENCRYPTED = 1 << 0 | 1 << 6
    UTF8 = 1 << 11


class ZipEntry(NamedTuple):
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


class Archive:
    """The archive in a source. Raises Damaged."""

    def __init__(self, opening: Opening) -> None:
        self.source, self.cache = opening.source, opening.cache
        self._allowance = opening.allowance
        end, position = self._end_record()
        self._count, size, offset = end[4:7]
        """The number of members that the archive declares."""
        self.is_zip64 = False
        self.hidden = 0
        """Entries whose name a later one repeats, once all were read."""
        locator = position - LOCATOR_RECORD64.size
        if locator >= 0 and self.source.read(locator, len(LOCATOR64)) == LOCATOR64:
            position = locator - END_RECORD64.size
            record = END_RECORD64.unpack(self.source.read(position, END_RECORD64.size)) if position >= 0 else (b"",)
            if record[0] != END64:
                raise self.source.damage("the ZIP64 record of its end is not before its locator")
            self.is_zip64 = True
            self._count, size, offset = record[-3:]
        self._start, self._end = position - size, position
        # The directory lies directly before the end. If its offset says otherwise, something was put in front of the
        # archive, such as a program that unpacks it, and all offsets are too small by as much.
        self.in_front = self._start - offset
        """Bytes in front of the archive: offsets are relative to its first local header (§4)."""
        if self._start < 0 or self.in_front < 0:
            raise self.source.damage(
                f"its central directory of {size} bytes at {offset} is not in front of its end at {position}"
            )
        if self._count * CENTRAL_HEADER.size > size:
            raise self.source.damage(
                f"declares {self._count} members, which do not fit a central directory of {size} bytes"
            )

    def _end_record(self) -> tuple[tuple[int, ...], int]:
        """Return the fields of the end record and its offset (§4)."""
        size = self.source.size
        if size >= END_RECORD.size:
            found = self.source.read(size - END_RECORD.size, END_RECORD.size)
            if found.startswith(END) and found.endswith(b"\0\0"):
                return END_RECORD.unpack(found), size - END_RECORD.size
            # Otherwise a comment of up to 64 KiB follows the end record.
            tail = self.source.read(size - min(size, LONGEST_END), min(size, LONGEST_END))
            place = tail.rfind(END, 0, len(tail) - END_RECORD.size + len(END))
            if place >= 0:
                return END_RECORD.unpack_from(tail, place), size - len(tail) + place
        raise self.source.damage("has no end record: it is cut short, or its writer has not finished it")

    @property
    def directory_size(self) -> int:
        """Bytes of the central directory."""
        return self._end - self._start

    @once
    def entries(self) -> list[ZipEntry]:
        """All entries in order, those whose name a later one repeats at the end: that one keeps the name (§5).

        Finding them raises TooLarge beyond the container's allowance.
        """
        entries = list(self._read_entries())
        # Members may lie in any order. The bytes of each end where the next one begins, so that no two share bytes:
        # archives whose members overlap expand without limit.
        starts = sorted({entry.offset for entry in entries})
        last = {entry.name: number for number, entry in enumerate(entries)}
        kept: list[ZipEntry] = []
        repeated: list[ZipEntry] = []
        for number, entry in enumerate(entries):
            following = bisect_right(starts, entry.offset)
            limit = starts[following] if following < len(starts) else self._start
            (kept if last[entry.name] == number else repeated).append(entry._replace(limit=limit))
        self.hidden = len(repeated)
        return kept + repeated

    def _read_entries(self) -> Iterator[ZipEntry]:
        """Yield the entries of the directory, limited only by the directory."""
        self._allowance.take(self.directory_size, "the central directory")
        data = self.source.read(self._start, self.directory_size)
        count = place = 0
        while place < len(data):
            if len(data) - place < CENTRAL_HEADER.size:
                raise self._bad_entry(count)
            fields = CENTRAL_HEADER.unpack_from(data, place)
            flags, method, crc, stored, size = fields[5], fields[6], fields[9], fields[10], fields[11]
            name_start = place + CENTRAL_HEADER.size
            name_end = name_start + fields[12]
            extra_end = name_end + fields[13]
            place = extra_end + fields[14]
            if fields[0] != CENTRAL or place > len(data):
                raise self._bad_entry(count)
            name = _decoded(data[name_start:name_end], flags)
            offset = fields[18]
            if fields[13]:
                size, stored, offset = _in_zip64(data[name_end:extra_end], size, stored, offset)
            # A tuple of a name and seven numbers, and what sorting takes beside it.
            self._allowance.take(3 * OBJECT + len(name), "members")
            # An offset behind the directory is invalid, and may be of any size.
            yield ZipEntry(name, flags, method, crc, stored, size, min(offset + self.in_front, self._end), self._start)
            count += 1
        if count != self._count and (self.is_zip64 or count & 0xFFFF != self._count):
            raise self.source.damage(f"declares {self._count} members, but its central directory has {count}")

    def _bad_entry(self, count: int) -> Damaged:
        return self.source.damage(f"entry {count} of its central directory is damaged")

    def impossible(self, entry: ZipEntry) -> str | None:
        """Return why a member cannot be read, by its entry alone, or None."""
        if entry.flags & Flag.ENCRYPTED:
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
        if entry.size > min(reach(codec, entry.stored), 1 << 60):  # file sizes have 63 bits
            return f"{entry.stored} bytes of {codec} data cannot give the declared {entry.size} bytes"
        return None

    def locate(self, entry: ZipEntry, size: int = 0) -> tuple[int, bytes]:
        """Return where the stored bytes of a member begin, and the first of them: up to about ``size`` bytes.

        Raises Damaged if the member cannot be read, and NotInstalled if that is only due to its encryption or method.
        """
        reason = self.impossible(entry)
        if reason is not None:
            is_intact = entry.flags & Flag.ENCRYPTED or entry.method not in CODECS
            raise NotInstalled(reason, self.source.name, entry.label) if is_intact else self.damage(entry, reason)
        taken = min(LOCAL_HEADER.size + len(entry.name) + size, entry.limit - entry.offset)
        head = self.source.read(entry.offset, taken)
        fields = LOCAL_HEADER.unpack_from(head)
        if fields[0] != LOCAL:
            raise self.damage(entry, f"its local header at {entry.offset} is damaged")
        # A name in CP437 is no longer than the same in UTF-8, so all of it was read unless it differs.
        # Only the local header says how long its own fields are, which may differ from those of the directory: the
        # bytes of the member follow them. The name proves that the entry leads to its member.
        name, start = head[LOCAL_HEADER.size :][: fields[9]], LOCAL_HEADER.size + fields[9] + fields[10]
        if _decoded(name, fields[2]) != entry.name or len(name) < fields[9]:
            raise self.damage(entry, "its name in the local header differs from that in the central directory")
        if entry.offset + start + entry.stored > entry.limit:
            raise self.damage(entry, "its bytes overlap another member or the central directory")
        return entry.offset + start, head[start : start + entry.stored]

    def data(self, entry: ZipEntry, start: int) -> Decoded:
        """Return the uncompressed bytes of a member whose stored bytes begin at ``start``.

        The checksum of stored members is only checked when they are read as a whole, so that a part costs a part (§2).
        """
        return Decoded(
            self.cache, Extent(self.source, start, entry.stored), CODECS[entry.method], entry.size, entry.label,
            Checksum(CRC32, entry.crc), is_checked_at_end=True,
        )

    def damage(self, entry: ZipEntry, reason: str) -> Damaged:
        return self.source.damage(reason, entry.label)


class LazyMember(SizedData):
    """A member that is located when it is first read."""

    __slots__ = ("_archive", "_entry", "_found")

    def __init__(self, archive: Archive, entry: ZipEntry) -> None:
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

    def mapped(self) -> memoryview | None:
        return self._data().mapped()

    def location(self) -> Location | None:
        try:
            return self._data().location()
        except (Damaged, NotInstalled):
            return None


def _decoded(name: bytes, flags: int) -> bytes:
    """Return a name in UTF-8 (§5)."""
    return name if flags & Flag.UTF8 or name.isascii() else name.decode("cp437").encode()


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
