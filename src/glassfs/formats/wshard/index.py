"""Header, index and names of a Shard container, as used by WShard (docs/formats/wshard.md §2, §3, §5).

The index stays packed; ``BlockEntry`` objects are made on demand. An index is immutable; any thread may use it. Opening
raises Damaged or Refused if the whole index cannot be trusted; ``Index.impossible`` reports errors of single blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

from glassfs.codec import compression
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.errors import Refused
from glassfs.source import Source

MAGIC = b"SHRD"
VERSION = 2
DEEPEST = 256  # components of a name: blocks with more have none
CODECS = {1: compression.ZSTD, 2: compression.LZ4}


class Role(IntEnum):
    """Kinds of Shard containers (§2), by the names that they have there."""

    unknown = 0
    MoSH = 1
    Sample = 2
    GemmPanel = 3
    manifest = 4
    WShard = 5
    UMSH = 6
    ColumnShard = 8


class BlockFlag(IntFlag):
    """Flags of an index entry (§3)."""

    COMPRESSED = 0x1
    ZSTD = 0x2
    LZ4 = 0x4
    CHUNKED = 0x8


_HEADER = struct.Struct("<4sBBHBBHIQQQQ16x")
_ENTRY = struct.Struct("<QIHHQQQII")


class ShardHeader(NamedTuple):
    """The first 64 bytes."""

    magic: bytes
    version: int
    role: int
    flags: int
    alignment: int
    compression: int
    entry_size: int
    entry_count: int
    names_offset: int
    data_offset: int
    schema_offset: int
    total_size: int

    @property
    def role_name(self) -> str:
        name = Role(self.role).name if self.role in list(Role) else Role.unknown.name
        return f"role {self.role} ({name})"


class BlockEntry(NamedTuple):
    """One block: ``stored`` bytes at ``offset`` that decode to ``size`` raw bytes.

    ``name`` is None if unusable, ``codec`` if unknown. ``original`` is the declared raw size, which is ignored for
    blocks stored raw. ``crc`` 0 means none.
    """

    number: int
    name: bytes | None
    name_hash: int
    flags: int
    offset: int
    stored: int
    original: int
    crc: int
    codec: str | None

    @property
    def size(self) -> int:
        return self.stored if self.codec == compression.NONE else self.original

    @property
    def end(self) -> int:
        return self.offset + self.stored

    @property
    def is_metadata(self) -> bool:
        return self.name is not None and self.name.startswith(b"meta/")

    @property
    def label(self) -> str:
        return label(self.name) if self.name else f"block {self.number}"


class Index:
    """Header and index of ``source``, within an allowance. ``names`` are the bytes of all names."""

    def __init__(self, source: Source, allowance: Allowance) -> None:
        self.source = source
        if source.size < _HEADER.size:
            raise source.damage("is shorter than its header")
        self.header = header = ShardHeader(*_HEADER.unpack(source.read(0, _HEADER.size)))
        if header.magic != MAGIC:
            raise Refused("is not a Shard container", source.name)
        if header.version != VERSION:
            raise Refused(f"has Shard version {header.version}, but only {VERSION} can be read", source.name)
        if header.entry_size != _ENTRY.size:
            raise Refused(
                f"has index entries of {header.entry_size} bytes, but {_ENTRY.size} are expected", source.name,
            )
        self.end = _HEADER.size + header.entry_count * _ENTRY.size
        if self.end > source.size:
            raise source.damage(f"an index of {header.entry_count} blocks does not fit the file")
        if not self.end <= header.names_offset <= header.data_offset <= source.size:
            raise source.damage(
                f"names at {header.names_offset} to {header.data_offset} do not lie between the end of "
                f"the index at {self.end} and that of the file at {source.size}"
            )
        allowance.take(self.end - _HEADER.size, "the index")
        self._packed = source.read(_HEADER.size, self.end - _HEADER.size)
        self.names = self._read_names(allowance)

    def _read_names(self, allowance: Allowance) -> bytes:
        table_size = self.header.data_offset - self.header.names_offset
        used = total = 0
        for _, start, length, *_ in _ENTRY.iter_unpack(self._packed):
            if start + length <= table_size:
                used = max(used, start + length)
                total += length
        # Entries may share bytes of names, so that all names can be longer than what is stored of them.
        allowance.take(max(used, total), "names")
        names = self.source.read(self.header.names_offset, used)
        for _, start, length, *_ in _ENTRY.iter_unpack(self._packed):
            if start + length <= used:
                allowance.take(OBJECT * (1 + names.count(b"/", start, start + length)), "components of names")
        return names

    def __len__(self) -> int:
        return self.header.entry_count

    def __getitem__(self, number: int) -> BlockEntry:
        return self._entry(number, _ENTRY.unpack_from(self._packed, number * _ENTRY.size))

    def __iter__(self) -> Iterator[BlockEntry]:
        for number, fields in enumerate(_ENTRY.iter_unpack(self._packed)):
            yield self._entry(number, fields)

    def _entry(self, number: int, fields: tuple[int, ...]) -> BlockEntry:
        name_hash, start, length, flags, offset, stored, original, crc, _ = fields
        name: bytes | None = None
        if start + length <= len(self.names):
            name = self.names[start : start + length]
            if name.count(b"/") >= DEEPEST:
                name = None
        return BlockEntry(
            number, name, name_hash, flags, offset, stored, original, crc, self._codec(flags, stored, original)
        )

    def _codec(self, flags: int, stored: int, original: int) -> str | None:
        if not flags & BlockFlag.COMPRESSED or stored == original:
            return compression.NONE
        if flags & BlockFlag.LZ4:
            return compression.LZ4
        if flags & BlockFlag.ZSTD:
            return compression.ZSTD
        return CODECS.get(self.header.compression)

    def find(self, *names: bytes) -> dict[bytes, BlockEntry]:
        """Return the first entry with each of these names."""
        firsts: dict[bytes, BlockEntry] = {}
        for entry in self:
            if entry.name in names:
                firsts.setdefault(entry.name, entry)
        return firsts

    def impossible(self, entry: BlockEntry) -> str | None:
        """Return why a block cannot be what its entry says, or None."""
        if entry.stored and entry.end > self.source.size:
            return f"bytes {entry.offset} to {entry.end} lie outside the file of {self.source.size} bytes"
        if entry.stored and entry.offset < self.end:
            return f"its bytes at {entry.offset} lie in the header or the index"
        if entry.codec == compression.NONE:
            return None
        if entry.size > compression.reach(entry.codec or compression.ZSTD, entry.stored):
            return f"{entry.stored} stored bytes cannot give the declared {entry.size} bytes"
        # No compressor needs more; an empty frame of zstd has 9 to 22 bytes.
        if entry.stored > (2 * entry.size + (1 << 16) if entry.size else 32):
            return f"{entry.stored} stored bytes are too many for the declared {entry.size} bytes"
        return None


def label(name: bytes) -> str:
    """Return a name for messages: short, and on one line."""
    text = name.decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text))[:200]
