"""Nodes of an iKv document: reading single fields, and checking whole nodes (§2, §3, §7).

A ``NodeReader`` reads single fields, and measures nodes: it checks them without building values. Every node is measured
before it is shown, and each use checks every bound again. A reader is for one thread and holds one window of the file.
Format errors raise Damaged.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from glassfs.codec.leb128 import TooLong, read
from glassfs.content import Data, Extent, Memory, Slice
from glassfs.source import Reader, Source

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

    def keep(self) -> None:
        """Do nothing: the bytes are in memory."""

    park = close = keep


def part(source: Source, offset: int, size: int) -> Data:
    """Return stored bytes of a document; those of a text have no offset in the file."""
    return Slice(source.data, offset, size) if isinstance(source, ConvertedText) else Extent(source, offset, size)


class NodeReader(Reader):
    """Reads consecutive fields of nodes."""

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
        start, levels = self.position, around
        if tag in FIXED_SIZES:
            self.skip(FIXED_SIZES[tag])
        elif tag == STRING:
            self.skip(self.varint())
        elif tag == INTEGER:
            self.varint(64)
        elif tag > ARRAY:
            raise self.damage(f"has a node of unknown type {tag} before {start}")
        elif around == DEEPEST:
            raise self.damage(f"is nested more than {DEEPEST} deep")
        else:
            levels = self._items(tag, around + 1)
        return NodeSpan(tag, start, self.position, levels)

    def _items(self, tag: int, levels: int) -> int:
        """Pass over the items of an object or array that is in ``levels``, itself included; return the most levels."""
        element = self.element() if tag == ARRAY else NULL
        count = self.count(2 if tag == OBJECT else SMALLEST_ITEM[element])
        if element in (DOUBLE, BOOLEAN):
            self.skip(count * FIXED_SIZES[element])
        elif element == INTEGER:
            self._pass_integers(count)
        elif element == STRING:
            for _ in range(count):
                self.skip(self.varint())
        else:
            deepest = levels
            for _ in range(count):
                if tag == OBJECT:
                    self.skip(self.name_size())
                inner = self.u8()
                if element and inner not in (NULL, element):
                    kinds = f"{TYPE_NAMES[element]}s"
                    raise self.damage(f"has a node of type {inner} before {self.position}, in an array of {kinds}")
                deepest = max(deepest, self.span(inner, levels).levels)
            return deepest
        return levels

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
    text = raw[:60].decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text)[1:-1]) + ("…" if len(raw) > 60 else "")
