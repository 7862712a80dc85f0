"""Header, table of contents and metadata tables (docs/formats/idv.md §2, §3, §6).

The table of contents is not kept in memory but read again for each listing. Opened files are immutable except for
caches; any thread may use them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from glassfs.codec import compression
from glassfs.errors import Damaged, Refused
from glassfs.formats.idv.blocks import ENTRY_SIZE, FIRST_OFFSET, BlockLocation, Blocks, BlockSource, located
from glassfs.formats.idv.runs import Codec, Item, describe, shown, stored_codec, string, varint
from glassfs.source import Reader, Source
from glassfs.source.reader import WINDOW

SIGNATURE = b"CML\0DVB\0"
TAIL = SIGNATURE[::-1]
OLDEST_VERSION = 0x0001_0001_0001_0002
OLDEST_COMPATIBLE = 0x0001_0001_0001_0004
NEWEST_COMPATIBLE = 0x0001_0001_0001_0006
COMPRESSIONS = {0: compression.NONE, 1: compression.DEFLATE_PREFIX}
LONGEST_TABLE = 32 << 20
"""Bytes of a table that are read."""
UNKNOWN = Codec(Item("", "", 0))
_HEADER = struct.Struct("<8sQQqqqi")


class FileHeader(NamedTuple):
    """The header; offsets count from its first byte."""

    signature: bytes
    version: int
    compatible_version: int
    toc: int
    tail: int
    rows: int
    columns: int


def is_damage(fault: str) -> bool:
    """Return whether what is wrong with a codec is damage, not something that glassfs does not know or is too large."""
    return not fault.startswith(("unknown ", "too large: "))


class ColumnEntry(NamedTuple):
    """An entry of the table of contents, which ends at offset ``end``. ``compression`` is the stored code.

    ``fault`` is why the column has no file, or None. The codec is UNKNOWN if its name or parameters are wrong.
    """

    number: int
    name: bytes
    codec_name: bytes
    codec: Codec
    fault: str | None
    compression: int
    rows_per_block: int
    lookup: int
    metadata: int
    end: int


class MetadataEntry(NamedTuple):
    """An entry of a metadata table, with the same meaning."""

    number: int
    kind: bytes
    codec: Codec
    fault: str | None
    compression: int
    offset: int
    length: int
    end: int


def version_text(version: int) -> str:
    """0x0001000100010006 → 1.1.1.6"""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))


def read_header(source: Source) -> FileHeader:
    """Return the header. Raises Refused if it is wrong."""
    if source.size < FIRST_OFFSET:
        raise Refused(f"is cut short: it has {source.size} bytes, but an IDV header has {FIRST_OFFSET}", source.name)
    header = FileHeader(*_HEADER.unpack(source.read(0, _HEADER.size)))
    reason = _header_fault(header, source)
    if reason:
        raise Refused(reason, source.name)
    return header


def _header_fault(header: FileHeader, source: Source) -> str | None:
    version, compatible = version_text(header.version), version_text(header.compatible_version)
    if header.compatible_version > header.version:
        return f"declares version {version}, but needs a reader of version {compatible}"
    if header.version < OLDEST_VERSION or header.compatible_version < OLDEST_COMPATIBLE:
        return f"has version {compatible}, but 1.1.1.4 is the oldest released version"
    if header.compatible_version > NEWEST_COMPATIBLE:
        return f"needs a reader of version {compatible}, but glassfs reads up to 1.1.1.6"
    if header.rows < 0 or header.columns < 0:
        return f"declares {header.rows} rows and {header.columns} columns"
    if not FIRST_OFFSET <= header.tail <= source.size - len(TAIL):
        return f"has its tail outside the file (at {header.tail} of {source.size} bytes): it is cut short or damaged"
    if source.read(header.tail, len(TAIL)) != TAIL:
        return f"has no tail signature at {header.tail}"
    if header.columns and not FIRST_OFFSET <= header.toc <= header.tail:
        return f"has its table of contents outside the file (at {header.toc} of {source.size} bytes)"
    if header.columns > source.size:
        return f"declares {header.columns} columns, which are too many to show"
    return None


@dataclass
class IdvFile(BlockSource):
    """An opened file and its caches."""

    header: FileHeader

    def columns(self) -> Iterator[ColumnEntry]:
        """Yield the entries of the table of contents. Raises Damaged."""
        if not self.header.columns:
            return
        reader = self._reader(self.header.toc, "the table of contents", 64 << 10)
        for number in range(self.header.columns):
            yield self._column(reader, number)

    def _column(self, reader: Reader, number: int) -> ColumnEntry:
        try:
            name = string(reader.take)
            codec_name, parameters = stored_codec(reader.take)
            packing = reader.u8()
            rows_per_block = varint(reader.take) & 0xFFFF_FFFF
        except Damaged as error:
            raise error.at(self.source.name, reader.what) from error
        lookup, metadata = reader.unpack("<qq")
        codec, fault = self._codec(codec_name, parameters, packing)
        if fault is None and self.header.rows * codec.size * max(codec.item.width, 1) > 1 << 62:
            fault = "too large: it has more bytes than the largest file"
        return ColumnEntry(
            number, name, codec_name, codec, fault, packing, rows_per_block, lookup, metadata, reader.position,
        )

    def _codec(self, name: bytes, parameters: bytes, packing: int) -> tuple[Codec, str | None]:
        """Return a codec, and why values with it and this compression cannot be read, or None."""
        try:
            codec = describe(name, parameters)
        except Damaged as error:
            return UNKNOWN, error.reason
        return codec, None if packing in COMPRESSIONS else f"unknown compression: {packing}"

    def _reader(self, start: int, what: str, window: int) -> Reader:
        """Return a reader of a table, of which at most LONGEST_TABLE bytes are read."""
        return Reader(self.source, start, min(self.header.tail, max(start, 0) + LONGEST_TABLE), what, window)

    def layout_fault(self, column: ColumnEntry) -> str | None:
        """Return what is wrong with the rows per block or the offset of the lookup table, or None."""
        rows = self.header.rows
        if not rows:
            return None
        if not 0 < column.rows_per_block < 1 << 31:
            return f"column {shown(column.name)} has {column.rows_per_block} rows per block"
        blocks = -(-rows // column.rows_per_block)
        if not FIRST_OFFSET <= column.lookup <= self.header.tail - ENTRY_SIZE * blocks:
            return f"the lookup table of column {shown(column.name)} lies outside the file"
        return None

    def shown(self) -> list[tuple[ColumnEntry, bytes]]:
        """Return the readable columns and their file names: those that ML.NET shows, then those hidden by a later one
        with the same name, whose file names end in a number.
        """
        columns = [column for column in self.columns() if column.fault is None]
        # Of several columns of one name ML.NET shows the last; the others get numbers.
        last = {column.name: column.number for column in columns}
        visible, hidden, numbers = [], [], dict.fromkeys(last, 2)
        for column in columns:
            if last[column.name] == column.number:
                visible.append((column, column.name))
            else:
                hidden.append((column, b"%s~%d" % (column.name, numbers[column.name])))
                numbers[column.name] += 1
        return visible + hidden

    def blocks(self, column: ColumnEntry) -> Blocks:
        rows, rows_per_block = self.header.rows, max(1, column.rows_per_block)
        lookup = partial(located, self.source, column.lookup)
        return Blocks(
            self, column.codec, COMPRESSIONS[column.compression], rows, rows_per_block, lookup,
            f"column {shown(column.name)}", (column.number,),
        )

    def metadata(self, column: ColumnEntry) -> Iterator[MetadataEntry]:
        """Yield the metadata table of a column. Raises Damaged where the table cannot be read further."""
        if column.metadata == 0:
            return
        what = f"the metadata table of column {shown(column.name)}"
        reader = self._reader(column.metadata, what, WINDOW)
        if column.metadata < FIRST_OFFSET:
            raise reader.damage("lies in the header")
        try:
            count = varint(reader.take)
            if not 0 < count < (1 << 31) - 1:
                raise reader.damage(f"declares {count} entries")
            for number in range(count):
                yield self._entry(reader, number)
        except Damaged as error:
            raise error.at(self.source.name, what) from error

    def _entry(self, reader: Reader, number: int) -> MetadataEntry:
        kind = string(reader.take)
        if not kind:
            raise reader.damage("has an entry without a name")
        codec_name, parameters = stored_codec(reader.take)
        packing, offset = reader.unpack("<Bq")
        length = varint(reader.take)
        codec, fault = self._codec(codec_name, parameters, packing)
        entry = MetadataEntry(number, kind, codec, fault, packing, offset, length, reader.position)
        # ML.NET skips values of unknown types, but only if their place is possible.
        if fault and not self.is_inside(entry):
            raise reader.damage(f"has an invalid entry {shown(kind)}")
        return entry

    def is_inside(self, entry: MetadataEntry) -> bool:
        """Return whether a metadata value lies where values are allowed."""
        offset, tail = entry.offset, self.header.tail
        return FIRST_OFFSET <= offset <= tail and 0 < entry.length <= tail - offset

    def value(self, column: ColumnEntry, entry: MetadataEntry) -> Blocks:
        """Return a metadata value with a known codec: a block of one row."""
        stored = BlockLocation(entry.offset, entry.length, None)
        name = f"metadata {shown(entry.kind)} of column {shown(column.name)}"
        key = (column.number, entry.number)
        return Blocks(self, entry.codec, COMPRESSIONS[entry.compression], 1, 1, lambda _: stored, name, key)
