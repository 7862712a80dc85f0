"""What an MCAP file has: schemas, channels, chunks, attachments, metadata (docs/formats/mcap.md, cited as §).

The summary at the end says it in one read. Where there is none, or where it contradicts itself or the file, the records
of the data section are scanned; chunks are only decoded for definitions that are nowhere else. Messages that are in no
chunk form chunks of their own here, so that nothing else has to know of them. Any thread may use an opened recording.

Records and their fields are parsed by the functions and classes behind ``Recording``. What ends early raises Damaged.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from glassfs import work
from glassfs.codec.checksum import CRC32, Checksum
from glassfs.codec.compression import LZ4_FRAME, NONE, ZSTD
from glassfs.content import Data, Decoded, Extent, Memory
from glassfs.content.allowance import OBJECT
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.registry import Opening
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE

CODECS = {"": NONE, "zstd": ZSTD, "lz4": LZ4_FRAME}
TAIL = 64 << 10
"""Bytes at the end that are read at once: most summaries are shorter."""
CHUNK_HEAD = 128
"""Bytes of a chunk before its records, with a name of the compression of any sensible length."""
INDEX_HEAD, INDEX_ENTRY = 15, 16
"""Bytes of a message index before its entries, and of each of these."""
_NO_SUMMARY, _NOT_ALL, _NOT_LISTED = "has no summary", "has messages outside chunks", "has more than its summary lists"
"""Why a summary is not used, though nothing is wrong with the file."""
MAGIC = b"\x89MCAP0\r\n"
RECORD = struct.Struct("<BQ")
FOOTER = struct.Struct("<BQQQI8s")
FIELDS = [("channel", "<u2"), ("sequence", "<u4"), ("log_time", "<u8"), ("publish_time", "<u8")]
"""Those of a message before its data."""
ROW = [*FIELDS, ("start", "<u8"), ("size", "<u8")]
"""What is known of a message: its fields, and where its data are in the chunk."""
FIELDS_SIZE = 22
LARGEST_RECORD = 16 * PIECE
"""Limit of records that are no messages: larger ones are skipped."""
HEAD = RECORD.size + FIELDS_SIZE


@dataclass(slots=True)
class Chunk:
    """A chunk: the record at ``start``, or messages without one if it ``is_loose``.

    ``counts`` are its messages by channel, and its message indexes are ``index_size`` bytes behind it. Unless
    ``is_counted``, they are no more than what some indexes say. ``times`` are the first and last log time, if the
    summary says them.
    """

    start: int
    size: int
    counts: dict[int, int] = field(default_factory=dict)
    index_size: int = 0
    is_loose: bool = False
    is_counted: bool = True
    times: tuple[int, int] | None = None


class Recording:
    """The recording in a file.

    ``attachments`` and ``metadata`` are records: where they begin, and their sizes. ``is_complete`` says that the file
    ends as it should, ``data_end`` where the data section does, 0 if that is unknown, ``reason`` why the summary is
    not used, and ``faults`` why there may be messages of which nothing is known. Raises Damaged.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening, self.source = opening, opening.source
        self.schemas: dict[int, Schema] = {}
        self.channels: dict[int, Channel] = {}
        self.chunks: list[Chunk] = []
        self.attachments: list[tuple[int, int]] = []
        self.metadata: list[tuple[int, int]] = []
        self.faults: list[Damaged] = []
        self.is_complete, self.data_end = True, 0
        header = self.record(len(MAGIC), Op.HEADER)
        fields = Fields(header)
        self.profile, self.library = fields.text(), fields.text()
        self._begin = len(MAGIC) + RECORD.size + len(header)
        reason = self._why_not_summarized()
        self.reason = "" if reason in (_NO_SUMMARY, _NOT_ALL, _NOT_LISTED) else reason
        if reason:
            for found in (self.schemas, self.channels, self.chunks, self.attachments, self.metadata):
                found.clear()
            is_cut = not self.is_complete
            self._scan()
            if reason == _NOT_ALL and not any(chunk.is_loose for chunk in self.chunks):
                self.reason = "its statistics have more messages than its indexes"
            if self.reason:
                opening.warn(f"{self.reason}: its records were scanned instead")
            for chunk in self.chunks if self.reason and not is_cut else ():  # indexes may be wrong as well
                chunk.is_counted = chunk.is_loose
        self._find_definitions()

    def chunk_data(self, chunk: Chunk) -> Data:
        """Return the records of a chunk, uncompressed. Raises Damaged if it is no chunk."""
        if chunk.is_loose:
            return Extent(self.source, chunk.start, chunk.size)
        part = f"the chunk at {chunk.start}"
        fields = Fields(self.source.read(chunk.start, min(CHUNK_HEAD, chunk.size)))
        try:
            op, _, _, _, size, crc = fields.numbers("BQQQQI")
            name = fields.text()
            (stored,) = fields.numbers("Q")
        except Damaged as damage:
            raise damage.at(self.source.name, part) from damage
        if op != Op.CHUNK or fields.position + stored > chunk.size:
            raise self.source.damage("is no chunk, or one that is longer than its record", part)
        if not size and (crc or stored > 32):  # compressed records take more, nothing at all takes less
            raise self.source.damage("has records, but says that it has none", part)
        if name not in CODECS:
            raise self.source.damage(f"is compressed with {name!r}, which MCAP does not know", part)
        extent = Extent(self.source, chunk.start + fields.position, stored)
        return Decoded(self._opening.cache, extent, CODECS[name], size, part, Checksum(CRC32, crc) if crc else None)

    def times(self) -> tuple[int, int] | tuple[None, None]:
        """Return the first and the last log time, as chunks say. May read a bit of each chunk. Raises Damaged."""
        found = []
        for chunk in self.chunks:
            if chunk.is_loose:
                found += messages_in(self.chunk_data(chunk), sum(chunk.counts.values()))["log_time"].tolist()
            else:
                found += chunk.times or Fields(self.source.read(chunk.start + RECORD.size, 16)).numbers("QQ")
        return (min(found), max(found)) if found else (None, None)

    def record(self, start: int, op: Op) -> memoryview:
        """Return the content of the record at an offset. Raises Damaged unless it has this opcode."""
        found, size = RECORD.unpack(self.source.read(start, RECORD.size))
        if found != op:
            raise self.source.damage(f"no {op.name.lower()} is at {start}")
        self._opening.allowance.part().take(size, "a record")
        return memoryview(self.source.read(start + RECORD.size, size))

    def _why_not_summarized(self) -> str:
        """Take what the summary has. Return why it cannot be used, empty if it can."""
        size = self.source.size
        tail = self.source.read(max(0, size - TAIL), min(size, TAIL))
        op, length, start, _, crc, magic = FOOTER.unpack(tail[-FOOTER.size :].rjust(FOOTER.size, b"\0"))
        if magic != MAGIC or op != Op.FOOTER or length != FOOTER.size - RECORD.size - len(MAGIC):
            self.is_complete = False
            return "has no footer, so its recording was not finished"
        if not start:
            return _NO_SUMMARY
        try:
            if not self._begin <= start <= size - FOOTER.size:
                return "its footer leads outside the file"
            self._opening.allowance.part().take(2 * (size - start), "the summary")
            summary = tail[start - size :] if size - start <= len(tail) else self.source.read(start, size - start)
            if crc and zlib.crc32(summary[: -len(MAGIC) - 4]) != crc:
                return "the checksum of its summary does not match"
            self.data_end = start
            return self._summarize(summary[: -FOOTER.size], start)
        except (Damaged, TooLarge) as error:
            return f"its summary cannot be used: {error.reason}"

    def _summarize(self, summary: bytes, end: int) -> str:
        """Take what a summary has; ``end`` is that of the data section. Return _NOT_ALL if that is not all.

        Raises Damaged if it cannot be right.
        """
        total: tuple[int, ...] = ()
        for op, content in records(Memory(summary)):
            fields = Fields(content)
            if op in (Op.SCHEMA, Op.CHANNEL):
                self._define(op, content)
            elif op == Op.CHUNK_INDEX:
                self._add_chunk(fields)
            elif op in (Op.ATTACHMENT_INDEX, Op.METADATA_INDEX):
                self._take(1)
                (self.attachments if op == Op.ATTACHMENT_INDEX else self.metadata).append(fields.numbers("QQ"))
            elif op == Op.STATISTICS:
                total = fields.numbers("QHIIII")
            elif op < Op.CHUNK_INDEX or op in (Op.ATTACHMENT, Op.METADATA, Op.DATA_END):
                raise Damaged("it has records of the data section")
        self.chunks.sort(key=lambda chunk: chunk.start)
        reached = self._begin
        for chunk in self.chunks:
            if chunk.start < reached:
                raise Damaged("it leads to one chunk twice, or outside the file")
            reached = chunk.start + chunk.size + chunk.index_size
        known = sum(sum(chunk.counts.values()) for chunk in self.chunks)
        is_counted = all(chunk.is_counted for chunk in self.chunks)
        places = *self.attachments, *self.metadata
        if reached > end or len(set(places)) < len(places):
            raise Damaged("it leads outside the data section, or to one record twice")
        if self.chunks and total and (total[5] != len(self.chunks) or known > total[0]):
            raise Damaged("its statistics differ from its indexes")
        # Writers may leave out each of these.
        if (
            not self.chunks or (total and total[3:5] != (len(self.attachments), len(self.metadata)))
            or {number for chunk in self.chunks for number in chunk.counts} - self.channels.keys()
            or {channel.schema for channel in self.channels.values()} - self.schemas.keys() - {0}
        ):
            return _NOT_LISTED
        return _NOT_ALL if total and is_counted and known < total[0] else ""

    def _add_chunk(self, fields: Fields) -> None:
        """Add the chunk of a chunk index.

        The message indexes of a chunk lie one behind another, so their offsets say how many entries each has.
        """
        first, last, start, size = fields.numbers("QQQQ")
        places, offsets = Fields(fields.raw()), list[tuple[int, int]]()
        while places.is_left:
            channel, offset = places.numbers("HQ")
            offsets.append((offset, channel))
        (index_size,) = fields.numbers("Q")
        self._take(1 + len(offsets))
        chunk, reached = Chunk(start, size, index_size=index_size, times=(first, last)), start + size
        ends = [*(offset for offset, _ in sorted(offsets)[1:]), start + size + index_size]
        for (offset, channel), end in zip(sorted(offsets), ends, strict=False):
            count, rest = divmod(end - offset - INDEX_HEAD, INDEX_ENTRY)
            if offset != reached or rest or count < 0 or channel in chunk.counts:
                break
            chunk.counts[channel], reached = count, end
        chunk.is_counted = bool(offsets)
        if offsets and reached != ends[-1]:
            raise Damaged("it has indexes of a chunk that are not behind it")
        self.chunks.append(chunk)

    def _scan(self) -> None:
        """Find all by the records of the data section, up to its end or that of the file."""
        position, size = self._begin, self.source.size
        with self._opening.file() as file:
            while True:
                file.seek(position)
                head = file.read(RECORD.size + 6).ljust(RECORD.size + 6, b"\0")
                op, length = RECORD.unpack_from(head)
                end = position + RECORD.size + length
                if not op or end > size:  # the rest of a recording that was not finished
                    self.is_complete = False
                    if self.chunks:  # some of its indexes may be missing
                        self.chunks[-1].is_counted = self.chunks[-1].is_loose
                    break
                channel, entries = Fields(head[RECORD.size :]).numbers("HI")
                if op in (Op.DATA_END, Op.FOOTER):
                    # One of another length, or not at the end, is a record that damage changed: more may follow.
                    is_end = length == 4 if op == Op.DATA_END else end == size - len(MAGIC)
                    self.data_end, self.is_complete = end, self.is_complete and is_end
                    break
                if op in (Op.SCHEMA, Op.CHANNEL):
                    with suppress(TooLarge):
                        self._define(op, self.record(position, Op(op)))
                elif op in (Op.MESSAGE, Op.CHUNK):
                    self._add_scanned(position, end, None if op == Op.CHUNK else channel)
                elif op == Op.MESSAGE_INDEX:
                    chunk = self.chunks[-1] if self.chunks else Chunk(0, 0)
                    if chunk.is_loose or position != chunk.start + chunk.size + chunk.index_size:
                        self.is_complete = False  # that of a chunk which damage made another record
                    else:
                        self._take(1)
                        chunk.counts[channel] = chunk.counts.get(channel, 0) + min(entries, length) // INDEX_ENTRY
                        chunk.index_size, chunk.is_counted = end - chunk.start - chunk.size, True
                elif op in (Op.ATTACHMENT, Op.METADATA):
                    self._take(1)
                    (self.attachments if op == Op.ATTACHMENT else self.metadata).append((position, end - position))
                position = end

    def _add_scanned(self, start: int, end: int, channel: int | None) -> None:
        """Add a chunk; or a message on a channel that is in none, to a chunk of about PIECE bytes with others."""
        last = self.chunks[-1] if self.chunks else None
        if channel is None:
            self._take(1)
            self.chunks.append(Chunk(start, end - start, is_counted=False))
            return
        if last is None or not last.is_loose or last.start + last.size != start or last.size > PIECE:
            self._take(1)
            last = Chunk(start, 0, is_loose=True)
            self.chunks.append(last)
        last.size = end - last.start
        last.counts[channel] = last.counts.get(channel, 0) + 1

    def _find_definitions(self) -> None:
        """Find the definitions of channels that are in chunks only, and count messages where no index does."""
        for chunk in self.chunks:
            if chunk.is_counted and chunk.counts.keys() <= self.channels.keys():
                continue
            try:
                data = self.chunk_data(chunk)
                for op, content in records(data):
                    if op in (Op.SCHEMA, Op.CHANNEL):
                        self._define(op, content)
                if not chunk.is_counted:
                    heads = (head for op, _, _, head in spans(data) if op == Op.MESSAGE)
                    chunk.counts = dict(Counter(int.from_bytes(head[:2], "little") for head in heads))
            except Damaged as damage:
                self.faults.append(damage)
            lacking = chunk.counts.keys() - self.channels.keys()
            if lacking:
                self.faults.append(Damaged(f"has messages on channels that are not defined: {sorted(lacking)}"))

    def _define(self, op: int, content: memoryview) -> None:
        """Keep a schema or channel; the first of each number counts."""
        kept: dict[int, Schema] | dict[int, Channel] = self.schemas if op == Op.SCHEMA else self.channels
        with suppress(Damaged, TooLarge if op == Op.SCHEMA else Damaged):  # messages are shown without their schema
            fields = Fields(content)
            (number,) = fields.numbers("H")
            found: Schema | Channel = (
                Schema(fields.text(), fields.text(), fields.raw()) if op == Op.SCHEMA
                else Channel(fields.numbers("H")[0], fields.raw(), fields.text(), fields.texts())
            )
            if number not in kept and (number or op == Op.CHANNEL):  # no schema has number 0
                self._opening.allowance.take(OBJECT + 2 * len(content), "definitions")
                kept[number] = found  # type: ignore[assignment]
            elif number and kept[number] != found:
                self._opening.warn(f"{Op(op).name.lower()} {number} is defined twice: the first definition counts")

    def _take(self, count: int) -> None:
        self._opening.allowance.take(2 * count * OBJECT, "records")


class Op(IntEnum):
    """Opcodes of records (§1)."""

    HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX = range(1, 9)
    ATTACHMENT, ATTACHMENT_INDEX, STATISTICS, METADATA, METADATA_INDEX, SUMMARY_OFFSET, DATA_END = range(9, 16)


class Schema(NamedTuple):
    """The definition of a type of messages, in one of several languages."""

    name: str
    encoding: str
    data: bytes


class Channel(NamedTuple):
    """A channel: the number of its schema, 0 without one, its topic, and how messages are encoded."""

    schema: int
    topic: bytes
    encoding: str
    metadata: dict[str, str]


class Fields:
    """Reads the fields of a record one after another. Fields behind the known ones are ignored (§1)."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self.position = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Return little-endian numbers, given their format characters."""
        return struct.unpack(f"<{form}", self.taken(struct.calcsize(f"<{form}")))

    def taken(self, size: int) -> memoryview:
        """Return the next bytes."""
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise Damaged("a record ends early")
        return self._data[start : self.position]

    def raw(self) -> bytes:
        """Return bytes that their number of 32 bits precedes."""
        return bytes(self.taken(*self.numbers("I")))

    def text(self) -> str:
        return self.raw().decode("utf-8", "replace")

    def texts(self) -> dict[str, str]:
        """Return a map from texts to texts."""
        inner, found = Fields(self.raw()), dict[str, str]()
        while inner.is_left:
            found.setdefault(inner.text(), inner.text())
        return found

    @property
    def is_left(self) -> bool:
        return self.position < len(self._data)


def spans(data: Data) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield opcodes, where contents begin and end, and their first bytes: as many as a message has before its data.

    Data are read a window at a time, so chunks of any size take little memory. Raises Damaged where a record is longer
    than the data.
    """
    window, begin, end, size = b"", 0, 0, data.size
    while end < size:
        work.check()
        if end + HEAD > begin + len(window):
            begin, window = end, data.read(end, min(PIECE, size - end))
        place = end - begin
        op, length = RECORD.unpack_from(window, place) if end + RECORD.size <= size else (0, 0)
        start = end + RECORD.size
        end = start + length
        if end > size or not op:
            raise Damaged(f"a record at {start - RECORD.size} is longer than what holds it, or none")
        yield op, start, end, window[place + RECORD.size : place + min(HEAD, RECORD.size + length)]


def records(data: Data) -> Iterator[tuple[int, memoryview]]:
    """Yield opcodes and contents of records that are no messages, nor too large. Raises Damaged as ``spans`` does."""
    for op, start, end, _ in spans(data):
        if op != Op.MESSAGE and end - start < LARGEST_RECORD:
            yield op, memoryview(data.read(start, end - start))


def messages_in(chunk: Data, most: int) -> NDArray[Any]:
    """Return a row for each message in a chunk, in its order. Raises Damaged if one of its records is cut short, or if
    there are more than ``most``: a small chunk may have any number.
    """
    heads, places = bytearray(), array("Q")
    for op, start, end, head in spans(chunk):
        if op == Op.MESSAGE:
            if len(head) < FIELDS_SIZE or len(places) >= 2 * most:
                raise Damaged(f"the message at {start} is shorter than its fields, or one more than the indexes say")
            heads += head
            places.extend((start + FIELDS_SIZE, end - start - FIELDS_SIZE))
    found = np.empty(len(places) // 2, ROW)
    fields = np.frombuffer(heads, FIELDS)
    for name, _ in FIELDS:
        found[name] = fields[name]
    found["start"], found["size"] = places[::2], places[1::2]
    return found
