"""Header, index and names of a Shard container, as used by WShard (docs/formats/wshard.md §2, §3, §5).

An index is immutable; any thread may use it. Opening raises Damaged or Refused if the whole index cannot be trusted;
``Index.impossible`` reports errors of single blocks.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from glassfs.codec.compression import LZ4, NONE, ZSTD, reach
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.errors import Refused
from glassfs.source import Source
from glassfs.terminal import printable

MAGIC = b"SHRD"
VERSION = 2
UNNAMED = b"unnamed"
CODECS = {1: ZSTD, 2: LZ4}


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


class BlockFlag:
    """Flags of an index entry (§3). Plain numbers, as they are tested for each entry in each pass over an index."""

    COMPRESSED, ZSTD, LZ4 = 0x1, 0x2, 0x4


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

    ``name`` is None if it lies outside the names, ``codec`` if unknown. ``original`` is the declared raw size, which is
    ignored for blocks stored raw. ``crc`` 0 means none.
    """

    number: int
    name: bytes | None
    offset: int
    stored: int
    original: int
    crc: int
    codec: str | None

    @property
    def size(self) -> int:
        return self.stored if self.codec == NONE else self.original

    @property
    def end(self) -> int:
        return self.offset + self.stored

    @property
    def is_metadata(self) -> bool:
        return self.name is not None and self.name.startswith(b"meta/")

    @property
    def path(self) -> tuple[bytes, ...]:
        """The components of its name. A tree is at most 256 directories deep: the rest of a name is one component."""
        return (UNNAMED, b"%d" % self.number) if self.name is None else tuple(self.name.split(b"/", 255))

    @property
    def label(self) -> str:
        return label(self.name) if self.name else f"block {self.number}"


class Index:
    """Header and index of ``source``, within an allowance. ``named`` has the first entry of each name."""

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
        # An entry takes a tuple of seven, with numbers that are objects, and a place in a list and a dictionary.
        allowance.take(6 * OBJECT * header.entry_count, "the index")
        packed = list(_ENTRY.iter_unpack(source.read(_HEADER.size, self.end - _HEADER.size)))
        # The header says where names lie, and data follow after any padding: only what entries refer to is read.
        table_size = header.data_offset - header.names_offset
        ends = (start + length for _, start, length, *_ in packed)
        used = max((end for end in ends if end <= table_size), default=0)
        allowance.take(used, "names")
        names = source.read(header.names_offset, used)
        self.entries: list[BlockEntry] = []
        self.named: dict[bytes, BlockEntry] = {}
        for number, (_, start, length, flags, offset, stored, original, crc, _) in enumerate(packed):
            codec, name = self._codec(flags, stored, original), None
            if start + length <= used:
                # Entries may share bytes of names, and each component becomes a directory.
                name = names[start : start + length]
                allowance.take(length + OBJECT * name.count(b"/"), "names")
            entry = BlockEntry(number, name, offset, stored, original, crc, codec)
            self.entries.append(entry)
            if name is not None:
                self.named.setdefault(name, entry)

    def _codec(self, flags: int, stored: int, original: int) -> str | None:
        if not flags & BlockFlag.COMPRESSED or stored == original:
            return NONE
        if flags & BlockFlag.LZ4:
            return LZ4
        if flags & BlockFlag.ZSTD:
            return ZSTD
        return CODECS.get(self.header.compression)

    def impossible(self, entry: BlockEntry) -> str | None:
        """Return why a block cannot be what its entry says, or None."""
        if entry.stored and entry.end > self.source.size:
            return f"bytes {entry.offset} to {entry.end} lie outside the file of {self.source.size} bytes"
        if entry.stored and entry.offset < self.end:
            return f"its bytes at {entry.offset} lie in the header or the index"
        if entry.codec == NONE:
            return None
        if entry.size > reach(entry.codec or ZSTD, entry.stored):
            return f"{entry.stored} stored bytes cannot give the declared {entry.size} bytes"
        # No compressor needs more; an empty frame of zstd has 9 to 22 bytes.
        if entry.stored > (2 * entry.size + (1 << 16) if entry.size else 32):
            return f"{entry.stored} stored bytes are too many for the declared {entry.size} bytes"
        return None


def label(name: bytes) -> str:
    """Return a name for messages: short, and on one line."""
    return printable(name)[:200]
