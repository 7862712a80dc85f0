"""Records of MCAP and their fields (docs/formats/mcap.md, cited as §).

Pure functions. What ends early raises Damaged.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Data
from glassfs.errors import Damaged
from glassfs.lazy import NDArray, np
from glassfs.sizes import PIECE

MAGIC = b"\x89MCAP0\r\n"
RECORD = struct.Struct("<BQ")
FOOTER = struct.Struct("<BQQQI8s")
FIELDS = [("channel", "<u2"), ("sequence", "<u4"), ("log_time", "<u8"), ("publish_time", "<u8")]
"""Those of a message before its data."""
ROW = [*FIELDS, ("start", "<u8"), ("size", "<u8")]
"""What is known of a message: its fields, and where its data are in the chunk."""
FIELDS_SIZE = 22
LARGEST = 16 * PIECE
HEAD = RECORD.size + FIELDS_SIZE


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
            key = inner.text()
            found.setdefault(key, inner.text())
        return found

    @property
    def is_left(self) -> bool:
        return self.position < len(self._data)


def schema_of(content: memoryview) -> tuple[int, Schema]:
    fields = Fields(content)
    (number,) = fields.numbers("H")
    return number, Schema(fields.text(), fields.text(), fields.raw())


def channel_of(content: memoryview) -> tuple[int, Channel]:
    fields = Fields(content)
    number, schema = fields.numbers("HH")
    return number, Channel(schema, fields.raw(), fields.text(), fields.texts())


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
        if op != Op.MESSAGE and end - start < LARGEST:
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
