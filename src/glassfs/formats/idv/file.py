"""An IDV file: its header, table of contents and metadata tables (§2, §3, §6), and its columns as contents.

Opening goes through the table of contents once and keeps nothing of it; it is read again where columns are listed.
Raises Refused, and Damaged or Changed like the source.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.codec import compression
from glassfs.content import Array, Container, Document, Fault, Group, Member, Records
from glassfs.errors import Damaged, Refused, TooLarge
from glassfs.formats.idv.codecs import Codec, describe, shown, string
from glassfs.formats.idv.columns import (
    ENTRY_SIZE,
    FIRST_OFFSET,
    Blocks,
    File,
    Indices,
    Lookup,
    Place,
    RowEnds,
    StoredValues,
    TextRows,
    TextSlots,
    Values,
)
from glassfs.formats.idv.runs import varint
from glassfs.source import Reader, Source

SIGNATURE = b"CML\0DVB\0"
TAIL = SIGNATURE[::-1]
OLDEST_VERSION = 0x0001_0001_0001_0002
OLDEST_COMPATIBLE = 0x0001_0001_0001_0004
NEWEST_COMPATIBLE = 0x0001_0001_0001_0006
COMPRESSIONS = {0: compression.NONE, 1: compression.DEFLATE}
COMPRESSION_NAMES = {0: "None", 1: "Deflate"}
DENSE_SLOTS = 65_536
MOST_COLUMNS = 100_000
MOST_METADATA = 100_000
MOST_BYTES = 1 << 62
TABLE_WINDOW = 64 << 10
_HEADER = struct.Struct("<8sQQqqqi")

log = logging.getLogger(__name__)

Name = tuple[bytes, ...]


class Header(NamedTuple):
    """The fields of the header; offsets are from its first byte."""

    signature: bytes
    version: int
    compatible_version: int
    toc: int
    tail: int
    rows: int
    columns: int


class Column(NamedTuple):
    """An entry of the table of contents, which ends at ``end``. ``compression`` is the stored code."""

    number: int
    name: bytes
    codec_name: bytes
    parameters: bytes
    compression: int
    rows_per_block: int
    lookup: int
    metadata: int
    end: int


class Metadata(NamedTuple):
    """An entry of a metadata table, which ends at ``end``."""

    kind: bytes
    codec_name: bytes
    parameters: bytes
    compression: int
    offset: int
    length: int
    end: int


class Shown(NamedTuple):
    """A readable column and the name it goes by; that of a hidden one has a number behind it."""

    column: Column
    codec: Codec
    name: bytes
    is_hidden: bool


def open_idv(source: Source, cache: BlockCache) -> Container:
    """Reads header and table of contents. Raises Refused where they are wrong."""
    if source.size < FIRST_OFFSET:
        raise Refused(source.name, f"is cut: {source.size} bytes, an IDV header has {FIRST_OFFSET}")
    header = Header(*_HEADER.unpack(source.read(0, _HEADER.size)))
    reason = _header_fault(header, source)
    if reason:
        raise Refused(source.name, reason)
    opened = IdvFile(source, cache, header)
    unreadable = []
    for column in opened.columns():
        reason = opened.place_fault(column)
        if reason:
            raise Refused(source.name, reason)
        reason = opened.unreadable(column)
        if reason:
            unreadable.append(f"{shown(column.name)} {reason}")
    if unreadable:
        count = f"{len(unreadable)} of {header.columns}"
        log.warning("%s: %s columns cannot be read, such as %s", source.name, count, unreadable[0])
    opened.readable = header.columns - len(unreadable)
    facts = {
        "compatible_version": version_text(header.compatible_version), "rows": header.rows,
        "columns": header.columns, "unreadable_columns": len(unreadable),
    }
    root = Group(b"", opened.members, subgroups=2 if opened.readable else 1)
    return Container("idv", version_text(header.version), root, [source], facts, opened.check)


def version_text(version: int) -> str:
    """0x0001000100010006 → 1.1.1.6"""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))


def _header_fault(header: Header, source: Source) -> str | None:
    version, compatible = version_text(header.version), version_text(header.compatible_version)
    if header.compatible_version > header.version:
        return f"says it is of version {version}, but compatible only with {compatible}"
    if header.version < OLDEST_VERSION or header.compatible_version < OLDEST_COMPATIBLE:
        return f"is of version {compatible}; 1.1.1.4 is the oldest that was released"
    if header.compatible_version > NEWEST_COMPATIBLE:
        return f"needs a reader of version {compatible}; this one is of 1.1.1.6"
    if header.rows < 0 or header.columns < 0:
        return f"says it has {header.rows} rows and {header.columns} columns"
    if not FIRST_OFFSET <= header.tail <= source.size - len(TAIL):
        return f"has its tail outside the file (at {header.tail} of {source.size} bytes): it was cut, or is damaged"
    if source.read(header.tail, len(TAIL)) != TAIL:
        return f"has no tail signature at {header.tail}"
    if header.columns and not FIRST_OFFSET <= header.toc <= header.tail:
        return f"has its table of contents outside the file (at {header.toc} of {source.size} bytes)"
    if header.columns > min(MOST_COLUMNS, source.size):
        return f"says it has {header.columns} columns, of which the table of contents is too short or too long to show"
    return None


class IdvFile:
    """An opened file."""

    def __init__(self, source: Source, cache: BlockCache, header: Header) -> None:
        self.source = source
        self.header = header
        self.file = File(source, cache, header.tail)
        self.readable = 0

    def columns(self) -> Iterator[Column]:
        """The table of contents. Raises Damaged."""
        if not self.header.columns:
            return
        reader = Reader(self.source, self.header.toc, self.header.tail, "the table of contents", TABLE_WINDOW)
        for number in range(self.header.columns):
            name = string(reader.take)
            codec = string(reader.take), reader.take(varint(reader.take))
            packing = reader.u8()
            rows_per_block = varint(reader.take) & 0xFFFF_FFFF
            lookup, metadata = reader.unpack("<qq")
            yield Column(number, name, *codec, packing, rows_per_block, lookup, metadata, reader.position)

    def place_fault(self, column: Column) -> str | None:
        """What is wrong with the rows per block, or with the place of the lookup table."""
        rows = self.header.rows
        if not rows:
            return None
        if not 0 < column.rows_per_block < 1 << 31:
            return f"column {shown(column.name)} has {column.rows_per_block} rows per block"
        blocks = -(-rows // column.rows_per_block)
        if not FIRST_OFFSET <= column.lookup <= self.header.tail - ENTRY_SIZE * blocks:
            return f"the lookup table of column {shown(column.name)} lies outside the file"
        return None

    def unreadable(self, column: Column) -> str | None:
        """Why a column has no file."""
        try:
            codec = describe(column.codec_name, column.parameters)
        except Damaged as error:
            return str(error)
        if column.compression not in COMPRESSIONS:
            return f"has the unknown compression {column.compression}"
        if self.header.rows * codec.size * max(codec.item.width, 1) > MOST_BYTES:
            return "is larger than a file can be"
        return None

    def shown(self) -> list[Shown]:
        """The readable columns: those that ML.NET shows, then those that a later one of the same name hides."""
        columns = [column for column in self.columns() if self.unreadable(column) is None]
        last = {column.name: column.number for column in columns}
        visible, hidden, numbers = [], [], dict.fromkeys(last, 2)
        for column in columns:
            codec = describe(column.codec_name, column.parameters)
            if last[column.name] == column.number:
                visible.append(Shown(column, codec, column.name, False))
            else:
                hidden.append(Shown(column, codec, b"%s~%d" % (column.name, numbers[column.name]), True))
                numbers[column.name] += 1
        return visible + hidden

    def blocks(self, column: Column, codec: Codec) -> Blocks:
        rows, rows_per_block = self.header.rows, max(1, column.rows_per_block)
        lookup = Lookup(self.source, column.lookup, -(-rows // rows_per_block))
        return Blocks(
            self.file, codec, COMPRESSIONS[column.compression], rows, rows_per_block, lookup,
            f"column {shown(column.name)}",
        )

    def metadata(self, column: Column) -> Iterator[Metadata]:
        """The metadata table of a column. Raises Damaged where it breaks off."""
        if column.metadata == 0:
            return
        what = f"the metadata table of column {shown(column.name)}"
        reader = Reader(self.source, column.metadata, self.header.tail, what)
        if column.metadata < FIRST_OFFSET:
            raise reader.damage("lies in the header")
        count = varint(reader.take)
        if not 0 < count < (1 << 31) - 1:
            raise reader.damage(f"says it has {count} entries")
        for _ in range(count):
            kind = string(reader.take)
            if not kind:
                raise reader.damage("has an entry without a name")
            codec = string(reader.take), reader.take(varint(reader.take))
            packing, offset = reader.unpack("<Bq")
            length = varint(reader.take)
            entry = Metadata(kind, *codec, packing, offset, length, reader.position)
            if not self.is_inside(entry) and self.meaningless(entry):
                raise reader.damage(f"has an entry {shown(kind)} that makes no sense")
            yield entry

    def is_inside(self, entry: Metadata) -> bool:
        """Whether a metadata value lies where values may be."""
        offset, tail = entry.offset, self.header.tail
        return FIRST_OFFSET <= offset <= tail and 0 < entry.length <= tail - offset

    def meaningless(self, entry: Metadata) -> str | None:
        """Why a metadata value has no file: its codec or its compression is unknown."""
        try:
            describe(entry.codec_name, entry.parameters)
        except Damaged as error:
            return str(error)
        if entry.compression not in COMPRESSIONS:
            return f"has the unknown compression {entry.compression}"
        return None

    def value(self, column: Column, entry: Metadata) -> Blocks:
        """A metadata value that has a meaning: a block of one row."""
        codec = describe(entry.codec_name, entry.parameters)
        place = Place(entry.offset, entry.length, None)
        name = f"metadata {shown(entry.kind)} of column {shown(column.name)}"
        return Blocks(self.file, codec, COMPRESSIONS[entry.compression], 1, 1, lambda _: place, name)

    def members(self) -> Iterator[Member]:
        yield Member((b"meta",), Group(b"meta", self._meta))
        if self.readable:
            yield Member((b"columns",), Group(b"columns", self._columns))

    def check(self) -> Iterator[Fault]:
        from glassfs.formats.idv.check import faults

        return faults(self)

    def _columns(self) -> Iterator[Member]:
        for column, codec, name, _ in self.shown():
            yield from self._column(column, codec, name)

    def _column(self, column: Column, codec: Codec, name: bytes) -> Iterator[Member]:
        blocks, key, rows = self.blocks(column, codec), column.name, self.header.rows
        if codec.item.is_text:
            texts = TextRows(blocks)
            identity = (self.source.identity, "idv", column.number)
            yield Member((name,), Records(key, texts.count, texts.group, identity, codec.type_name))
        elif 0 < codec.size <= DENSE_SLOTS:
            shape = (rows, *(codec.dimensions or ()))
            yield from _arrays((name,), key, blocks, shape)
        elif codec.size:
            yield Member((name,), Group(key, lambda: _sparse(key, blocks), subgroups=0))
        else:
            yield Member((name,), Group(key, lambda: _ragged(key, blocks), subgroups=0))

    def _meta(self) -> Iterator[Member]:
        yield Member((b"schema",), Document(b"schema", self._schema, (self.source.identity, "idv", "schema")))
        listed, reasons = 0, []
        for column, _, name, _ in self.shown():
            try:
                for position, entry in enumerate(self.metadata(column)):
                    listed += 1
                    if listed > MOST_METADATA:
                        raise Damaged(f"has more than {MOST_METADATA} metadata values; the others are not shown")
                    yield from self._value(column, name, position, entry)
            except Damaged as error:
                reasons.append(str(error).removeprefix(f"{self.source.name}: "))
                if listed > MOST_METADATA:
                    break
        if reasons:
            log.warning("%s: metadata tables that break off: %d: %s", self.source.name, len(reasons), reasons[0])

    def _value(self, column: Column, name: bytes, position: int, entry: Metadata) -> Iterator[Member]:
        if self.meaningless(entry):  # listed in the schema, and found by check
            return
        blocks = self.value(column, entry)
        codec, place = blocks.codec, (b"columns", name, entry.kind)
        if codec.item.is_text:
            texts = TextSlots(blocks)
            identity = (self.source.identity, "idv", column.number, position)
            yield Member(place, Records(entry.kind, texts.count, texts.group, identity, codec.type_name))
        else:
            yield from _arrays(place, entry.kind, blocks, codec.dimensions or ())

    def _schema(self) -> dict[str, Any]:
        hidden = {column.number for column, _, _, is_hidden in self.shown() if is_hidden}
        listed, columns = 0, []
        for column in self.columns():
            kinds = []
            try:
                for entry in self.metadata(column):
                    listed += 1
                    if listed > MOST_METADATA:
                        raise TooLarge(f"{self.source.name}: has more metadata than a schema can list")
                    kinds.append(entry.kind)
            except Damaged as error:
                log.info("%s", error)
            try:
                type_name = describe(column.codec_name, column.parameters).type_name
            except Damaged:
                type_name = None
            columns.append({
                "name": column.name,
                "type": type_name,
                "codec": column.codec_name,
                "compression": COMPRESSION_NAMES.get(column.compression, str(column.compression)),
                "rows_per_block": column.rows_per_block,
                "hidden": column.number in hidden,
                "readable": self.unreadable(column) is None,
                "metadata": kinds,
            })
        return {"version": version_text(self.header.version), "rows": self.header.rows, "columns": columns}


def _arrays(name: Name, key: bytes, blocks: Blocks, shape: tuple[int, ...]) -> Iterator[Member]:
    """All elements of a column, or of a metadata value; those of vectors of unknown size in one row."""
    for item in blocks.codec.item.arrays:
        values = Values(blocks, item)
        tail = item.tail
        if blocks.codec.size:
            yield Member(name, Array(
                key, values, item.dtype, (*shape, *tail), blocks.codec.type_name, label=item.label,
            ))
        else:
            yield Member(name, Array(
                key, values, item.dtype, partial(_ragged_shape, blocks, tail), blocks.codec.type_name,
                label=item.label,
            ))


def _ragged_shape(blocks: Blocks, tail: tuple[int, ...]) -> tuple[int, ...]:
    return (blocks.elements[-1], *tail)


def _ragged(key: bytes, blocks: Blocks) -> Iterator[Member]:
    yield from _arrays((b"values",), key, blocks, ())
    shape = (blocks.rows + 1,)
    yield Member((b"offsets",), Array(key, RowEnds(blocks, is_stored=False), "<i8", shape))


def _sparse(key: bytes, blocks: Blocks) -> Iterator[Member]:
    type_name = blocks.codec.type_name
    for item in blocks.codec.item.arrays:
        shape = partial(_sparse_shape, blocks, item.tail)
        yield Member((b"data",), Array(key, StoredValues(blocks, item), item.dtype, shape, type_name, label=item.label))
    indices = Indices(blocks, describe(b"Int32", b"").item)
    yield Member((b"indices",), Array(key, indices, "<i4", partial(_sparse_shape, blocks, ())))
    yield Member((b"indptr",), Array(key, RowEnds(blocks, is_stored=True), "<i8", (blocks.rows + 1,)))


def _sparse_shape(blocks: Blocks, tail: tuple[int, ...]) -> tuple[int, ...]:
    return (blocks.stored[-1], *tail)
