"""NPZ: arrays in a ZIP archive, as NumPy and SciPy write them (docs/formats/npz.md, cited as §). Any thread.

``zipfile`` reads the central directory, and nothing else. What contradicts itself or the file raises Damaged: the
directory as a whole when the archive is opened, or one member when it is located. Contents are arrays, and files
unchanged (§7).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from glassfs.codec.checksum import CRC32, Checksum
from glassfs.codec.compression import DEFLATE, NONE, decompress_prefix, reach
from glassfs.content import Container, Data, Decoded, Extent, Group, Location, Member, Nested, Part, npy
from glassfs.content.data import SizedData
from glassfs.errors import Damaged, GlassfsError, NotInstalled
from glassfs.formats.registry import BUILT_IN, Format, Head, Opening
from glassfs.once import once
from glassfs.source import SourceFile

LOCAL = b"PK\3\4"
LOCAL_HEADER = struct.Struct("<4sHHHHHLLLHH")
CODECS = {0: NONE, 8: DEFLATE}
ENCRYPTED, UTF8 = 0x41, 0x800
"""Flags of an entry."""
ENTRY_COST = 12
"""Bytes of memory for a byte of the directory: an entry has 46 or more, its objects take 550."""
END, LONGEST_END = b"PK\5\6", 22 + 0xFFFF
SUFFIX = b".npy"
MOST_DESCRIBED = 1 << 14
"""Members of an archive whose headers are read, one by one; in larger ones all members are files only."""


class _DirectoryFile(SourceFile):
    """The file for zipfile, which reads a directory of whatever size the archive declares in one call."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening.source)
        self._allowance = opening.allowance

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return super().seek(offset if whence == 0 else max(0, self.size + offset))

    def read(self, size: int = -1, /) -> bytes:
        size = min(size, self.size)
        if size > 0:
            self._allowance.take(ENTRY_COST * size, "the central directory")
        return super().read(size) or b""


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
    """The archive in a source. Raises Damaged, and TooLarge beyond the container's allowance.

    ``entries`` are all entries in order, those whose name a later one repeats at the end: that one keeps the name (§5).
    ``hidden`` counts the others. ``in_front`` are the bytes before the first member (§4).
    """

    def __init__(self, opening: Opening) -> None:
        import zipfile  # every file is compared with the formats, most are no archives

        self.source, self.cache = opening.source, opening.cache
        try:
            with zipfile.ZipFile(_DirectoryFile(opening)) as archive:
                infos, end = archive.infolist(), archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
            if isinstance(error.__context__, GlassfsError):  # zipfile replaces errors of the file
                raise error.__context__ from None
            raise self.source.damage(f"is cut short, damaged, or not finished: {error}") from error
        # Members may lie in any order. The bytes of each end where the next one begins, so that no two share bytes:
        # archives whose members overlap expand without limit.
        starts = sorted({end, *(info.header_offset for info in infos)})
        self.in_front = starts[0] if infos else 0
        if self.in_front < 0:
            raise self.source.damage("its central directory has offsets before the beginning of the file")
        limits = [*starts, end]
        entries = [
            ZipEntry(
                info.orig_filename.encode(), info.flag_bits, info.compress_type, info.CRC, info.compress_size,
                info.file_size, info.header_offset, limits[bisect_right(starts, info.header_offset)],
            )
            for info in infos
        ]
        named = {entry.name: entry for entry in entries}
        repeated = [entry for entry in entries if named[entry.name] is not entry]
        self.entries = [entry for entry in entries if named[entry.name] is entry] + repeated
        self.hidden = len(repeated)
        self._is_described = len(entries) <= MOST_DESCRIBED
        self._headers: dict[ZipEntry, npy.ArrayHeader | None] = {}

    def impossible(self, entry: ZipEntry) -> str | None:
        """Return why a member cannot be read, by its entry alone, or None."""
        if entry.flags & ENCRYPTED:
            return "is encrypted, and glassfs reads no encrypted members"
        codec = CODECS.get(entry.method)
        if codec is None:
            return f"is compressed with method {entry.method}: write it with numpy.savez or numpy.savez_compressed"
        if entry.offset + LOCAL_HEADER.size + entry.stored > entry.limit:
            return "its bytes overlap another member or the central directory"
        if codec == NONE and entry.stored != entry.size:
            return f"has {entry.stored} stored bytes, but {entry.size} are declared"
        if not entry.size and entry.crc:
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
            is_intact = entry.flags & ENCRYPTED or entry.method not in CODECS
            raise (NotInstalled if is_intact else Damaged)(reason, self.source.name, entry.label)
        taken = min(LOCAL_HEADER.size + len(entry.name) + size, entry.limit - entry.offset)
        head = self.source.read(entry.offset, taken)
        fields = LOCAL_HEADER.unpack_from(head)
        if fields[0] != LOCAL:
            raise self.source.damage(f"its local header at {entry.offset} is damaged", entry.label)
        # A name in CP437 is no longer than the same in UTF-8, so all of it was read unless it differs.
        # Only the local header says how long its own fields are, which may differ from those of the directory: the
        # bytes of the member follow them. The name proves that the entry leads to its member.
        name, start = head[LOCAL_HEADER.size :][: fields[9]], LOCAL_HEADER.size + fields[9] + fields[10]
        found = name.decode("utf-8" if fields[2] & UTF8 else "cp437", "replace")
        if found.encode() != entry.name or len(name) < fields[9]:
            raise self.source.damage("its name differs from that in the central directory", entry.label)
        if entry.offset + start + entry.stored > entry.limit:
            raise self.source.damage("its bytes overlap another member or the central directory", entry.label)
        return entry.offset + start, head[start : start + entry.stored]

    def member(self, entry: ZipEntry) -> Member:
        """Return an array, or the file if it is none, or cannot be read."""
        name = entry.name
        if name.endswith(b"/") and not (entry.size or entry.crc):
            return Member(_path(name[:-1]), Group(name, tuple))
        described = self._header(entry) if self._is_described and name.endswith(SUFFIX) else None
        if described is None:
            return Member(_path(name), self._file(entry))
        key, file = name.removesuffix(SUFFIX), LazyMember(self, entry)
        array = described.array(self.cache, (self.source.version, entry.offset), key, file)
        array.file = file
        return Member(_path(key), array)

    def _file(self, entry: ZipEntry) -> Part:
        data = LazyMember(self, entry)
        if not self._is_described:
            return Part(entry.name, data)
        # Entries may contradict one another about the same bytes.
        ident = f"{entry.offset}:{entry.stored}:{entry.size}:{entry.method}:{entry.crc}"
        return Nested(entry.name, data, self.source, ident, entry.stored, partial(self._first_bytes, entry))

    def _first_bytes(self, entry: ZipEntry, size: int) -> bytes:
        """Return the first bytes of a member, about ``size`` of them at most. Raises Damaged."""
        _, head = self.locate(entry, size)
        return bytes(head if CODECS[entry.method] == NONE else decompress_prefix(head, size))

    def _header(self, entry: ZipEntry) -> npy.ArrayHeader | None:
        """Return the header of an array, or None if the member is no array."""
        if entry not in self._headers:
            self._headers[entry] = None
            with suppress(Damaged, NotInstalled):
                self._headers[entry] = self._read_header(entry)
        return self._headers[entry]

    def _read_header(self, entry: ZipEntry) -> npy.ArrayHeader | None:
        # The header of an array is in the first bytes of nearly every member: one read finds the local header and the
        # header of the array.
        given = self._first_bytes(entry, npy.LOOKED_AT)
        length = npy.length_of(given)
        if length is None or length > entry.size:
            return None
        if len(given) < length:
            given = self._first_bytes(entry, 2 * length)
        return npy.parsed(given[:length], entry.size) if len(given) >= length else None


class LazyMember(SizedData):
    """The uncompressed bytes of a member, which is located when it is first read.

    The checksum of stored members is only checked when they are read as a whole, so that a part costs a part (§2).
    """

    def __init__(self, archive: Archive, entry: ZipEntry) -> None:
        # Nothing confirms the size of what cannot be read. An empty file would be read without an error.
        is_impossible = archive.impossible(entry) is not None
        super().__init__(max(1, min(entry.stored, archive.source.size)) if is_impossible else entry.size)
        self._archive, self._entry = archive, entry

    @once
    def _data(self) -> Data:
        archive, entry = self._archive, self._entry
        extent = Extent(archive.source, archive.locate(entry)[0], entry.stored)
        return Decoded(
            archive.cache, extent, CODECS[entry.method], entry.size, entry.label, Checksum(CRC32, entry.crc),
            is_checked_at_end=True,
        )

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._data.read_into(buffer, offset)

    def mapped(self) -> memoryview | None:
        return self._data.mapped()

    def location(self) -> Location | None:
        try:
            return self._data.location()
        except (Damaged, NotInstalled):
            return None


def open_npz(opening: Opening) -> Container:
    """Open an archive. Raises Damaged if its end or its central directory contradicts itself or the file."""
    archive = Archive(opening)
    facts = {"members": len(archive.entries)}
    if archive.in_front:
        facts["bytes_in_front"] = archive.in_front
    if archive.hidden:
        opening.warn(f"{archive.hidden} members share their name with a later one, which keeps it")
    root = Group(b"", lambda: map(archive.member, archive.entries))
    return Container("npz", "ZIP", root, [opening.source], facts, arrays=lambda: root, is_generic=True)


def recognises(head: Head) -> bool:
    """Return whether the first member is an NPY file, or whether a ZIP archive is called NPZ (§1)."""
    if head.startswith(LOCAL) and len(head) >= LOCAL_HEADER.size:
        length = LOCAL_HEADER.unpack_from(head)[9]
        if head[LOCAL_HEADER.size : LOCAL_HEADER.size + length].endswith(SUFFIX):
            return True
    return head.name.lower().endswith(BUILT_IN["npz"]) and END in head.tail(LONGEST_END)


def _path(name: bytes) -> tuple[bytes, ...]:
    """Return the components of a name: keys of NumPy with slashes are paths (§5)."""
    return tuple(name.split(b"/", 255))  # the rest is one component: no path is longer


FORMAT = Format("npz", recognises, open_npz)
