"""Nodes of an iKv document: reading single fields, and checking whole nodes (§2, §3, §7).

``measure`` checks a node without building values; every node is measured before it is shown. ``Cursor`` reads single
fields and checks every bound again. Both are for one thread and hold one window of the file. Format errors raise
Damaged.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from glassfs.codec.leb128 import TooLong, end_at, read, read_at
from glassfs.content import Data
from glassfs.errors import Damaged
from glassfs.source import Version

NULL, STRING, INTEGER, DOUBLE, BOOLEAN, OBJECT, ARRAY = range(7)
SMALLEST_ITEM = (1, 1, 1, 8, 1, 1, 1)
TYPE_NAMES = ("null", "string", "integer", "double", "boolean", "object", "array")

DEEPEST = 256
LONGEST_NAME = 1 << 20
SMALL = 64
MOST_MARKS = 1 << 22

_FIRST_WINDOW, _LARGEST_WINDOW = 256, 256 << 10
_MARGIN = 32
_SHORT = 16
_CONTINUED = bytes(range(0x80, 0x100))
_TOO_LARGE_INTEGER = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")
_NULLS = re.compile(rb"\x00*")


class Body(NamedTuple):
    """The bytes that contain the nodes: ``part(offset, size)`` of the container ``name`` in ``version``."""

    name: str
    version: Version
    part: Callable[[int, int], Data]


class Marks:
    """Ends of the larger objects and arrays that are members of objects, by the start of their payload.

    ``deepest`` is the number of containers around the innermost value.
    """

    __slots__ = ("deepest", "ends", "starts")

    def __init__(self) -> None:
        self.starts = array("Q")
        self.ends = array("Q")
        self.deepest = 0

    def end_of(self, start: int) -> int | None:
        index = bisect_left(self.starts, start)
        if index < len(self.starts) and self.starts[index] == start:
            return self.ends[index]
        return None


class Cursor:
    """Reads consecutive fields in ``[start, end)``; ``what`` names the part in messages."""

    __slots__ = ("_base", "_data", "_index", "_window", "body", "end", "what")

    def __init__(self, body: Body, start: int, end: int, what: str, window: int = 4096) -> None:
        self.body = body
        self.end = end
        self.what = what
        self._window = window
        self._base, self._index, self._data = start, 0, b""

    @property
    def position(self) -> int:
        return self._base + self._index

    def take(self, size: int) -> bytes:
        """Read the next ``size`` bytes."""
        if self._index + size > len(self._data):
            self._load(size)
        self._index += size
        return self._data[self._index - size : self._index]

    def u8(self) -> int:
        if self._index >= len(self._data):
            self._load(1)
        self._index += 1
        return self._data[self._index - 1]

    def peek(self) -> int:
        """Return the next byte without moving on."""
        byte = self.u8()
        self._index -= 1
        return byte

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def varint(self, bits: int = 32) -> int:
        try:
            return read(self.u8, bits)
        except TooLong as error:
            raise self.damage(f"{error} before {self.position}") from None

    def integer(self) -> int:
        """Read a signed 64-bit integer."""
        value = self.varint(64)
        return value >> 1 ^ -(value & 1)

    def name(self) -> bytes:
        """Read a key or the root's name."""
        return self.take(self._name_size())

    def skip_name(self) -> None:
        self.skip(self._name_size())

    def count(self, smallest: int) -> int:
        """Read a number of items, each of at least ``smallest`` bytes."""
        count = self.varint()
        if count * smallest > self.end - self.position:
            raise self.damage(f"declares {count} items, which do not fit in it")
        return count

    def skip(self, size: int) -> None:
        self.go_to(self.position + size)

    def go_to(self, position: int) -> None:
        """Move forward to ``position``."""
        if position > self.end:
            raise self.damage(f"ends at {self.end}, inside something that ends at {position}")
        index = position - self._base
        if index > len(self._data):
            self._base, index, self._data = position, 0, b""
        self._index = index

    def damage(self, reason: str) -> Damaged:
        """Return an exception that names the container and the part."""
        return Damaged(reason, self.body.name, self.what)

    def _name_size(self) -> int:
        size = self.varint()
        if size > LONGEST_NAME:
            raise self.damage(f"has a name of {size} bytes at {self.position}")
        return size

    def _load(self, size: int) -> None:
        position = self.position
        if size > self.end - position:
            raise self.damage(f"ends at {self.end}, inside something that ends at {position + size}")
        size = min(max(size, self._window), self.end - position)
        self._data = self.body.part(position, size).read(0, size)
        self._base, self._index = position, 0


def measure(body: Body, tag: int, start: int, end: int, what: str, marks: Marks | None = None, around: int = 0) -> int:
    """Check the whole node of type ``tag`` with its payload at ``start``; return the payload's end, at most ``end``.

    ``around`` is the number of containers around the node. ``marks`` are filled in. Raises Damaged.
    """
    try:
        return _Measure(body, end, marks, around).node(tag, start)
    except ValueError as error:
        raise Damaged(str(error), body.name, what) from None


class _Measure:
    """One pass over a node. Raises ValueError with the reason.

    At least _MARGIN bytes (of the file, or zeros) follow a window, so a field that starts before ``limit`` needs no
    check of its own. Fields that leave the payload are found when the next window is loaded.
    """

    def __init__(self, body: Body, end: int, marks: Marks | None, around: int) -> None:
        self._part = body.part
        self._end = end
        self._marks = marks
        self._around = around
        self._window = _FIRST_WINDOW

    def _load(self, position: int) -> tuple[bytes, int]:
        """Return a window from ``position`` on, and the last index at which a field may start."""
        left = self._end - position
        if left < 0:
            raise ValueError(f"ends at {self._end}, inside something that ends at {position} or later")
        size = min(self._window, left)
        self._window = min(self._window * 4, _LARGEST_WINDOW)
        data = self._part(position, size).read(0, size)
        return (data + bytes(_MARGIN), size) if size == left else (data, size - _MARGIN)

    def node(self, tag: int, start: int) -> int:
        base, pos = start, 0
        data, limit = self._load(start)
        left, kind, mark, marking = 0, NULL, -1, self._marks is not None
        starts, ends = (self._marks.starts, self._marks.ends) if self._marks else (array("Q"), array("Q"))
        stack: list[tuple[int, int, int, bool]] = []
        deepest = self._around
        while True:
            if tag == STRING:
                size = data[pos]
                pos += 1
                if size >= 0x80:
                    size, pos = read_at(data, pos - 1, 32)
                pos += size
            elif tag == INTEGER:
                pos = pos + 1 if data[pos] < 0x80 else end_at(data, pos, 64)
            elif tag == DOUBLE:
                pos += 8
            elif tag == BOOLEAN:
                pos += 1
            elif tag in (OBJECT, ARRAY):
                depth = len(stack) + self._around
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
                        stack.append((left, kind, mark, marking))
                        left, kind, mark = count, tag if tag == OBJECT else -element, -1
                        if marking and len(starts) < MOST_MARKS:
                            mark = len(starts)
                            starts.append(begin)
                            ends.append(0)
                        marking = marking and tag == OBJECT
                elif element in (DOUBLE, BOOLEAN):
                    pos += count * SMALLEST_ITEM[element]
                else:
                    pass_items = _pass_strings if element == STRING else _pass_integers
                    count, pos = pass_items(data, pos, limit, count)
                    while count:
                        base += pos
                        data, limit = self._load(base)
                        count, pos = pass_items(data, 0, limit, count)
                    if marking and base + pos - begin >= SMALL and len(starts) < MOST_MARKS:
                        starts.append(begin)
                        ends.append(base + pos)
            elif tag != NULL:
                raise ValueError(f"has a node of unknown type {tag} before {base + pos}")
            while not left:
                if base + pos > self._end:
                    self._load(base + pos)
                if not stack:
                    if self._marks:
                        self._marks.deepest = deepest
                    return base + pos
                if mark >= 0:
                    if base + pos - starts[mark] < SMALL:  # it is the last mark
                        del starts[mark], ends[mark]
                    else:
                        ends[mark] = base + pos
                left, kind, mark, marking = stack.pop()
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
    first = pos
    while count > _SHORT and limit - pos > _SHORT:
        # ``count`` integers take at least ``count`` bytes, so the piece cannot contain more of them.
        piece = data[pos : min(pos + count, limit)]
        pos += len(piece)
        count -= len(piece.translate(None, _CONTINUED))
    if pos > first:
        if _TOO_LARGE_INTEGER.search(data, first, pos):
            raise TooLong("has a number of more than 64 bits")
        while pos > first and data[pos - 1] >= 0x80:
            pos -= 1
    while count and pos <= limit:
        pos = pos + 1 if data[pos] < 0x80 else end_at(data, pos, 64)
        count -= 1
    return count, pos


def shown(raw: bytes) -> str:
    """Return a name for messages."""
    text = raw[:60].decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text)[1:-1]) + ("…" if len(raw) > 60 else "")
