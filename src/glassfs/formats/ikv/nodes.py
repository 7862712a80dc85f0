"""Nodes of an iKv document: reading single fields, and checking whole nodes without building values (§2, §3, §7).

Every node is measured before it is shown, and each use checks every bound again. A reader is for one thread and holds
one window of the file. Format errors raise Damaged.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from glassfs.codec.leb128 import TooLong, read, read_at
from glassfs.content import Data, Extent, Memory, Slice
from glassfs.source import Reader, Source
from glassfs.terminal import printable

NULL, STRING, INTEGER, DOUBLE, BOOLEAN, OBJECT, ARRAY = range(7)
FIXED_SIZES = {NULL: 0, DOUBLE: 8, BOOLEAN: 1}
SMALLEST_ITEM = (1, 1, 1, 8, 1, 1, 1)
TYPE_NAMES = ("null", "string", "integer", "double", "boolean", "object", "array")

DEEPEST = 256  # levels of a document (§7, C3)
LONGEST_NAME = 1 << 20
WINDOW = 64 << 10

_CONTINUED = bytes(range(0x80, 0x100))
_TOO_LARGE_INTEGER = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")


class NodeSpan(NamedTuple):
    """A node's type, the start and end of its payload, and the levels of objects and arrays that it consists of."""

    tag: int
    start: int
    end: int
    levels: int = 0


class ConvertedText(Source):
    """The binary form of a document in text, under the name and version of the text."""

    def __init__(self, text: Source, data: bytes) -> None:
        self.name, self.entry = text.name, text.entry._replace(size=len(data))
        self.data = Memory(data)
        self._head = data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = memoryview(self._head)[offset : offset + len(buffer)]


def part(source: Source, offset: int, size: int) -> Data:
    """Return stored bytes of a document; those of a text have no offset in the file."""
    return Slice(source.data, offset, size) if isinstance(source, ConvertedText) else Extent(source, offset, size)


class NodeReader(Reader):
    """Reads consecutive fields of nodes."""

    MARGIN = 32
    """Bytes, more than the fields take that ``span`` reads between two questions for a window."""

    def u8(self) -> int:
        # Most of the time of reading is spent here: without the calls of ``take`` it is a third.
        index = self.position - self._data_start
        if index >= len(self._data) or self.position >= self.end:
            return self.take(1)[0]
        self.position += 1
        return self._data[index]

    def varint(self, bits: int = 32) -> int:
        value = self.u8()
        if value < 0x80:
            return value
        self.position -= 1
        try:
            return read(self.u8, bits)
        except TooLong as error:
            raise self.damage(f"{error} before {self.position}") from None

    def signed(self) -> int:
        """Read a signed 64-bit integer."""
        value = self.varint(64)
        return value >> 1 ^ -(value & 1)

    def name_size(self) -> int:
        """Read the size of a key or of the root's name."""
        size = self.varint()
        if size > LONGEST_NAME:
            raise self.damage(f"has a name of {size} bytes at {self.position}")
        return size

    def name(self) -> bytes:
        return self.take(self.name_size())

    def count(self, smallest: int) -> int:
        """Read a number of items, each of at least ``smallest`` bytes."""
        count = self.varint()
        if count * smallest > self.remaining:
            raise self.damage(f"declares {count} items, which do not fit in it")
        return count

    def element(self) -> int:
        """Read the type of an array's items."""
        element = self.u8()
        if element > ARRAY:
            raise self.damage(f"has an array of unknown type {element} before {self.position}")
        return element

    def span(self, tag: int, around: int = 0) -> NodeSpan:
        """Check the whole node of this type, whose payload is next, and pass over it.

        The levels of the result are those of objects and arrays up to the innermost, those ``around`` it included.
        """
        start = self.position
        try:
            levels = self._pass(tag, around)
        except TooLong as error:
            raise self.damage(f"{error} behind {start}") from None
        return NodeSpan(tag, start, self.position, levels)

    def _pass(self, tag: int, levels: int) -> int:
        """Check and pass over a node in so many levels; return the most levels. Raises TooLong as well."""
        # A document may have millions of nodes. Reading their fields here and not by the methods above takes a tenth of
        # the time. At most MARGIN bytes are read between two comparisons with ``limit``, the last index of the window
        # at which so many bytes follow, of the document or zeros behind its end.
        around: list[tuple[int, int]] = []  # of each object and array: the nodes that are left, and what they are
        left, kind = 0, NULL
        data, at, limit = self._ahead(self.position)
        deepest = levels
        while True:
            if tag == STRING:
                size, at = read_at(data, at, 32)
                at += size
            elif tag == INTEGER:
                _, at = read_at(data, at, 64)
            elif tag in FIXED_SIZES:
                at += FIXED_SIZES[tag]
            elif tag > ARRAY:
                raise self.damage(f"has a node of unknown type {tag} before {self._data_start + at}")
            else:
                depth = levels + len(around) + 1
                if depth > DEEPEST:
                    raise self.damage(f"is nested more than {DEEPEST} deep")
                deepest = max(deepest, depth)
                self.position = self._data_start + at
                element = self.element() if tag == ARRAY else OBJECT
                count = self.count(SMALLEST_ITEM[element] if tag == ARRAY else 2)
                if tag == ARRAY and element in (DOUBLE, BOOLEAN):
                    self.skip(count * FIXED_SIZES[element])
                elif tag == ARRAY and element == INTEGER:
                    self._pass_integers(count)
                elif count:
                    around.append((left, kind))
                    left, kind = count, -element if tag == ARRAY else OBJECT
                data, at, limit = self._ahead(self.position)
            while not left and around:
                left, kind = around.pop()
            if at > limit:
                data, at, limit = self._ahead(self._data_start + at)
            if not left:
                self.position = self._data_start + at
                self.skip(0)
                return deepest
            left -= 1
            if kind == OBJECT:
                size, at = read_at(data, at, 32)
                at += size
                if size > LONGEST_NAME:
                    raise self.damage(f"has a name of {size} bytes before {self._data_start + at}")
                if at > limit:
                    data, at, limit = self._ahead(self._data_start + at)
            if kind == -STRING:
                tag = STRING
                continue
            tag, at = data[at], at + 1
            if kind < 0 and tag not in (NULL, -kind):
                kinds = f"{TYPE_NAMES[-kind]}s"
                raise self.damage(f"has a node of type {tag} before {self._data_start + at}, in an array of {kinds}")

    def _ahead(self, position: int) -> tuple[bytes, int, int]:
        """Return a window, the index of ``position`` in it, and the last index that MARGIN bytes follow."""
        at, limit = position - self._data_start, len(self._data) - self.MARGIN
        if not 0 <= at <= limit:
            if position > self.end:
                raise self.damage(f"ends at {self.end}, inside of what ends at {position}")
            size = min(self._window, self.end - position)
            self._data, self._data_start, at = self.source.read(position, size), position, 0
            if size < self._window:
                self._data += bytes(self.MARGIN)
            limit = len(self._data) - self.MARGIN
        return self._data, at, limit

    def _pass_integers(self, count: int) -> None:
        # Each takes a byte or more, so that a piece of ``count`` bytes ends at most so many; one that goes on behind it
        # ends in a later piece. The last byte of each is the one below 0x80.
        tail = b""
        while count:
            piece = self.peek(min(count, WINDOW))
            self.skip(len(piece) or 1)
            tail += piece
            if _TOO_LARGE_INTEGER.search(tail):
                raise self.damage(f"has a number of more than 64 bits before {self.position}")
            count -= len(piece.translate(None, _CONTINUED))
            tail = tail[-9:]


def shown(raw: bytes) -> str:
    """Return a name for messages."""
    return printable(raw[:60]) + ("…" if len(raw) > 60 else "")
