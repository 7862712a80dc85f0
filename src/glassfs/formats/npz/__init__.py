"""NPZ: arrays in a ZIP archive, as NumPy and SciPy write them (docs/formats/npz.md, cited as §).

This module opens archives and makes contents of members: arrays, and files unchanged (§7). ``archive`` reads the ZIP
archive. Opening raises Damaged; any thread may use opened archives.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from glassfs.codec.compression import NONE, decompress_prefix
from glassfs.content import Container, Group, Member, Nested, Part, npy
from glassfs.errors import Damaged, NotInstalled
from glassfs.formats.npz.archive import CODECS, LOCAL, LOCAL_HEADER, Archive, LazyMember, ZipEntry
from glassfs.formats.registry import BUILT_IN, Format, Head, Opening

END, LONGEST_END = b"PK\5\6", 22 + 0xFFFF
SUFFIX = b".npy"
MOST_DESCRIBED = 1 << 14
"""Members of an archive whose headers are read, one by one; in larger ones all members are files only."""


def open_npz(opening: Opening) -> Container:
    """Open an archive. Raises Damaged if its end or its central directory contradicts itself or the file."""
    contents = ArchiveContents(opening)
    archive = contents.archive
    facts = {"members": len(archive.entries)}
    if archive.in_front:
        facts["bytes_in_front"] = archive.in_front
    if archive.hidden:
        opening.warn(f"{archive.hidden} members share their name with a later one, which keeps it")
    root = Group(b"", lambda: map(contents.member, archive.entries))
    return Container("npz", "ZIP", root, [opening.source], facts, arrays=lambda: root, is_generic=True)


def recognises(head: Head) -> bool:
    """Return whether the first member is an NPY file, or whether a ZIP archive is called NPZ (§1)."""
    if head.startswith(LOCAL) and len(head) >= LOCAL_HEADER.size:
        length = LOCAL_HEADER.unpack_from(head)[9]
        if head[LOCAL_HEADER.size : LOCAL_HEADER.size + length].endswith(SUFFIX):
            return True
    return head.name.lower().endswith(BUILT_IN["npz"]) and END in head.tail(LONGEST_END)


class ArchiveContents:
    """The contents of the archive in ``opening``. Raises Damaged."""

    def __init__(self, opening: Opening) -> None:
        self.archive = Archive(opening)
        self._is_described = len(self.archive.entries) <= MOST_DESCRIBED
        self._headers: dict[ZipEntry, npy.ArrayHeader | None] = {}

    def member(self, entry: ZipEntry) -> Member:
        """Return an array, or the file if it is none, or cannot be read."""
        name = entry.name
        if name.endswith(b"/") and not (entry.size or entry.crc):
            return Member(_path(name[:-1]), Group(name, tuple))
        described = self._header(entry) if self._is_described and name.endswith(SUFFIX) else None
        if described is None:
            return Member(_path(name), self._file(entry))
        key, file = name.removesuffix(SUFFIX), LazyMember(self.archive, entry)
        array = described.array(self.archive.cache, (self.archive.source.version, entry.offset), key, file)
        array.file = file
        return Member(_path(key), array)

    def _file(self, entry: ZipEntry) -> Part:
        data = LazyMember(self.archive, entry)
        if not self._is_described:
            return Part(entry.name, data)
        # Entries may contradict one another about the same bytes.
        ident = f"{entry.offset}:{entry.stored}:{entry.size}:{entry.method}:{entry.crc}"
        return Nested(entry.name, data, self.archive.source, ident, entry.stored, partial(self._first_bytes, entry))

    def _first_bytes(self, entry: ZipEntry, size: int) -> bytes:
        """Return the first bytes of a member, about ``size`` of them at most. Raises Damaged."""
        _, head = self.archive.locate(entry, size)
        codec = CODECS[entry.method]
        return bytes(head if codec == NONE else decompress_prefix(head, size))

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


def _path(name: bytes) -> tuple[bytes, ...]:
    """Return the components of a name: keys of NumPy with slashes are paths (§5)."""
    return tuple(name.split(b"/", 255))  # the rest is one component: no path is longer


FORMAT = Format("npz", recognises, open_npz)
