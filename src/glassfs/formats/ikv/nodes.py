"""Nodes of an iKv document: reading single fields, and checking whole nodes (§2, §3, §7).

``measure`` checks a node without building values; every node is measured before it is shown. A ``NodeReader`` reads
single fields and checks every bound again. Both are for one thread and hold one window of the file. Format errors raise
Damaged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from glassfs.codec.leb128 import TooLong, read, read_at
from glassfs.content import Data, Extent, Memory, Slice
from glassfs.source import Reader, Source
from glassfs.source.contract import distribute

NULL, STRING, INTEGER, DOUBLE, BOOLEAN, OBJECT, ARRAY = range(7)
FIXED_SIZES = {NULL: 0, DOUBLE: 8, BOOLEAN: 1}
SMALLEST_ITEM = (1, 1, 1, 8, 1, 1, 1)
TYPE_NAMES = ("null", "string", "integer", "double", "boolean", "object", "array")

DEEPEST = 256  # levels of a document (§7, C3)
LONGEST_NAME = 1 << 20
WINDOW = 64 << 10

_CONTINUED = bytes(range(0x80, 0x100))
_TOO_LARGE_INTEGER = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")
_NULLS = re.compile(rb"\x00*")


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

    def scatter(self, buffers: Sequence[memoryview], offset: int) -> None:
        distribute(memoryview(self._head)[offset:], buffers)

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

    def span(self, tag: int) -> NodeSpan:
        """Pass over the payload of a node of this type, measuring it."""
        start, levels = self.position, 0
        if tag in FIXED_SIZES:
            self.skip(FIXED_SIZES[tag])
        elif tag == STRING:
            self.skip(self.varint())
        elif tag == INTEGER:
            self.varint(64)
        else:
            end, levels = measure(self.source, tag, start, self.end, self.what)
            self.skip(end - start)
        return NodeSpan(tag, start, self.position, levels)


def measure(source: Source, tag: int, start: int, end: int, what: str, around: int = 0) -> tuple[int, int]:
    """Check the whole node of type ``tag`` with its payload at ``start``.

    Return the payload's end, at most ``end``, and the levels of objects and arrays up to the innermost, those
    ``around`` the node included. Raises Damaged.
    """
    try:
        return _Measure(source, end).node(tag, start, around)
    except ValueError as error:
        raise source.damage(str(error), what) from None


class _Measure:
    """One pass over a node. Raises ValueError with the reason.

    At least MARGIN bytes (of the file, or zeros) follow a window, so a field that starts before ``limit`` needs no
    check of its own. Fields that leave the payload are found when the next window is loaded.
    """

    MARGIN = 32

    def __init__(self, source: Source, end: int) -> None:
        self._source = source
        self._end = end
        self._window = 256  # grows, as most nodes are small

    def _load(self, position: int) -> tuple[bytes, int]:
        """Return a window from ``position`` on, and the last index at which a field may start."""
        left = self._end - position
        if left < 0:
            raise ValueError(f"ends at {self._end}, inside something that ends at {position} or later")
        size = min(self._window, left)
        self._window = min(self._window * 4, 4 * WINDOW)
        data = self._source.read(position, size)
        return (data + bytes(self.MARGIN), size) if size == left else (data, size - self.MARGIN)

    def node(self, tag: int, start: int, around: int) -> tuple[int, int]:
        # The loop has no recursion, as a document may have 256 levels, and one turn of it for each value. It is at
        # index ``pos`` of a window that begins at ``base``. ``left`` values are missing in the innermost object or
        # array, whose ``kind`` is OBJECT, or the negative element type of an array; ``stack`` has those around it.
        base, pos = start, 0
        data, limit = self._load(start)
        left, kind, deepest = 0, NULL, around
        stack: list[tuple[int, int]] = []
        while True:
            if tag == STRING:
                size = data[pos]
                pos += 1
                if size >= 0x80:
                    size, pos = read_at(data, pos - 1, 32)
                pos += size
            elif tag == INTEGER:
                pos = pos + 1 if data[pos] < 0x80 else read_at(data, pos, 64)[1]
            elif tag == DOUBLE:
                pos += 8
            elif tag == BOOLEAN:
                pos += 1
            elif tag in (OBJECT, ARRAY):
                depth = len(stack) + around
                if depth >= deepest:
                    if depth >= DEEPEST:
                        raise ValueError(f"is nested more than {DEEPEST} deep")
                    deepest = depth + 1
                begin, element = base + pos, OBJECT
                if tag == ARRAY:
                    element = data[pos]
                    pos += 1
                    if element > ARRAY:
                        raise ValueError(f"has an array of unknown type {element} at {begin}")
                count, pos = read_at(data, pos, 32)
                if count * (2 if tag == OBJECT else SMALLEST_ITEM[element]) > self._end - base - pos:
                    raise ValueError(f"declares {count} items at {begin}, which do not fit")
                if tag == OBJECT or element in (NULL, OBJECT, ARRAY):
                    if count:
                        stack.append((left, kind))
                        left, kind = count, tag if tag == OBJECT else -element
                elif element in (DOUBLE, BOOLEAN):
                    pos += count * SMALLEST_ITEM[element]
                else:
                    pass_items = _pass_strings if element == STRING else _pass_integers
                    count, pos = pass_items(data, pos, limit, count)
                    while count:
                        base += pos
                        data, limit = self._load(base)
                        count, pos = pass_items(data, 0, limit, count)
            elif tag != NULL:
                raise ValueError(f"has a node of unknown type {tag} before {base + pos}")
            while not left:
                if base + pos > self._end:
                    self._load(base + pos)
                if not stack:
                    return base + pos, deepest
                left, kind = stack.pop()
            left -= 1
            if pos > limit:
                base, (data, limit), pos = base + pos, self._load(base + pos), 0
            if kind == OBJECT:
                size = data[pos]
                pos += 1
                if size >= 0x80:
                    size, pos = read_at(data, pos - 1, 32)
                    if size > LONGEST_NAME:
                        raise ValueError(f"has a name of {size} bytes at {base + pos}")
                pos += size
                if pos > limit:
                    base, (data, limit), pos = base + pos, self._load(base + pos), 0
                tag = data[pos]
                pos += 1
                continue
            tag = data[pos]
            pos += 1
            if tag == NULL:
                run = _NULLS.match(data, pos, pos + min(left, limit - pos)) if left and pos < limit else None
                if run:
                    left -= run.end() - pos
                    pos = run.end()
            elif kind and tag != -kind:
                raise ValueError(f"has a node of type {tag} before {base + pos}, in an array of {TYPE_NAMES[-kind]}s")


def _pass_strings(data: bytes, pos: int, limit: int, count: int) -> tuple[int, int]:
    """Skip strings within the window; return how many are left, and the next index."""
    while count and pos <= limit:
        size = data[pos]
        pos += 1
        if size >= 0x80:
            size, pos = read_at(data, pos - 1, 32)
        pos += size
        count -= 1
    return count, pos


def _pass_integers(data: bytes, pos: int, limit: int, count: int) -> tuple[int, int]:
    """Skip integers within the window; return how many are left, and the next index."""
    first, few = pos, 16
    while count > few and limit - pos > few:
        # ``count`` integers take at least ``count`` bytes, so the piece cannot contain more of them.
        piece = data[pos : min(pos + count, limit)]
        pos += len(piece)
        count -= len(piece.translate(None, _CONTINUED))
    if pos > first:
        if _TOO_LARGE_INTEGER.search(data, first, pos):
            raise TooLong("has a number of more than 64 bits")
        # The last integer may go on behind the piece: the loop below passes it as a whole.
        while pos > first and data[pos - 1] >= 0x80:
            pos -= 1
    while count and pos <= limit:
        pos = pos + 1 if data[pos] < 0x80 else read_at(data, pos, 64)[1]
        count -= 1
    return count, pos


def shown(raw: bytes) -> str:
    """Return a name for messages."""
    text = raw[:60].decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text)[1:-1]) + ("…" if len(raw) > 60 else "")


