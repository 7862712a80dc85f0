"""Values of measured nodes: Python objects for a whole document, packed numbers for one array.

A ``Decoder`` is for one thread; any thread may use the rest. Every bound is checked again, as files may change:
Damaged. A value that is too large to show raises TooLarge before it is built.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from glassfs.cache import BlockCache
from glassfs.codec import leb128
from glassfs.content import Data, Fault, Location
from glassfs.errors import Damaged, TooLarge
from glassfs.formats.ikv.nodes import (
    ARRAY,
    BOOLEAN,
    DEEPEST,
    DOUBLE,
    INTEGER,
    NULL,
    OBJECT,
    SMALLEST_ITEM,
    STRING,
    Body,
    Cursor,
    measure,
    shown,
)

LARGEST_RENDERING = 64 << 20
LARGEST_VALUE = 160 << 20
TEXT_SPARE = 16 << 20
KEYS_KEPT = 4096
MOST_KEYS_COMPARED = 1_000_000

_WINDOW = 64 << 10
_AT_ONCE = 64 << 10
# Bytes of values per stored byte: in empty objects, or in nested objects of one member.
_VALUE_RATIO = 80
_INTEGER_RATIO = 80  # for NumPy's intermediate results with one-byte integers
_LEAST = 4 * _WINDOW


def cost(stored: int, deepest: int = DEEPEST) -> int:
    """Return the peak memory of the value of ``stored`` bytes, nested ``deepest`` levels, and of its text.

    Besides the text this counts the spare room of its buffer and the piece being written. The worst cases are a null on
    a line of its own, and an escaped character.
    """
    text = min(LARGEST_RENDERING, stored * (2 * deepest + 8))
    return _LEAST + min(LARGEST_VALUE, stored * _VALUE_RATIO) + text + min(text, TEXT_SPARE)


class Decoder:
    """Builds values of one document: dict, list, str, int, float, bool, None, and bytes for text that is not UTF-8.

    Raises TooLarge before a value takes much more than LARGEST_VALUE bytes of memory, or would certainly exceed
    LARGEST_RENDERING bytes as JSON with indent 2.
    """

    def __init__(self, body: Body, what: str) -> None:
        self.rendered = 0
        self._body = body
        self._what = what
        self._taken = 0
        self._keys: dict[bytes, str | bytes] = {}

    def value(self, tag: int, start: int, end: int, depth: int = 0) -> Any:
        """Return the value of a measured node; ``depth`` is the number of containers around it."""
        return self._value(Cursor(self._body, start, end, self._what, _WINDOW), tag, depth)

    def spend(self, rendered: int, taken: int) -> None:
        """Count ``rendered`` more bytes of text (a lower bound) and ``taken`` more bytes of memory."""
        self.rendered += rendered
        self._taken += taken
        if self.rendered > LARGEST_RENDERING or self._taken > LARGEST_VALUE:
            raise TooLarge("is too large to show as one JSON document", self._body.name, self._what)

    def key(self, raw: bytes) -> str | bytes:
        """Return a key; frequent keys are the same object each time."""
        found = self._keys.get(raw)
        self.spend(len(raw), 0 if found is not None else len(raw) + 60)
        if found is None:
            found = _text(raw)
            if len(self._keys) < KEYS_KEPT:
                self._keys[raw] = found
        return found

    def _value(self, cursor: Cursor, tag: int, depth: int) -> Any:
        if tag == NULL:
            self.spend(3, 0)
            return None
        if tag == STRING:
            return self._string(cursor)
        if tag == INTEGER:
            self.spend(0, 32)
            return cursor.integer()
        if tag == DOUBLE:
            self.spend(2, 24)
            return struct.unpack("<d", cursor.take(8))[0]
        if tag == BOOLEAN:
            self.spend(3, 0)
            return cursor.u8() != 0
        if depth >= DEEPEST:
            raise cursor.damage(f"is nested more than {DEEPEST} deep")
        item = 2 * depth + 5  # line break, indent, comma, and at least one character
        if tag == OBJECT:
            count = cursor.count(2)
            self.spend(count * (item + 4), 64 + (100 + count * 50 if count else 0))
            members: dict[str | bytes, Any] = {}
            for _ in range(count):
                key = self.key(cursor.name())
                members.pop(key, None)  # of equal keys the last one counts
                members[key] = self._value(cursor, cursor.u8(), depth + 1)
            return members
        if tag == ARRAY:
            element = cursor.u8()
            if element > ARRAY:
                raise cursor.damage(f"has an array of unknown type {element} before {cursor.position}")
            count = cursor.count(SMALLEST_ITEM[element])
            self.spend(count * item, 56 + count * 8)
            if element in (INTEGER, DOUBLE, BOOLEAN):
                return self._numbers(cursor, element, count)
            if element == STRING:
                return [self._string(cursor) for _ in range(count)]
            return [self._value(cursor, cursor.u8(), depth + 1) for _ in range(count)]
        raise cursor.damage(f"has a node of unknown type {tag} before {cursor.position}")

    def _string(self, cursor: Cursor) -> str | bytes:
        size = cursor.varint()
        self.spend(size + 1, size + 60)
        return _text(cursor.take(size))

    def _numbers(self, cursor: Cursor, element: int, count: int) -> list[Any]:
        if element == BOOLEAN:
            return [byte != 0 for byte in cursor.take(count)]
        self.spend(0, count * 32)
        if element == DOUBLE:
            return list(struct.unpack(f"<{count}d", cursor.take(8 * count)))
        return [cursor.integer() for _ in range(count)]


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Repeats:
    """Counts repeated keys; ``first`` is the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first = b""
        self._seen: set[bytes] = set()

    def add(self, key: bytes) -> None:
        if key in self._seen:
            self.count, self.first = self.count + 1, self.first if self.count else key
        elif len(self._seen) < MOST_KEYS_COMPARED:
            self._seen.add(key)

    def faults(self, place: str) -> Iterator[Fault]:
        if self.count:
            reason = f"has the key {shown(self.first)!r} more than once; the last value counts"
            yield Fault(place, f"{reason} (repeated keys: {self.count})")


def repeated_keys(cursor: Cursor, tag: int, what: str) -> Iterator[Fault]:
    """Yield objects of a measured node that have repeated keys."""
    if tag == OBJECT:
        repeats = Repeats()
        for _ in range(cursor.count(2)):
            key = cursor.name()
            repeats.add(key)
            yield from repeated_keys(cursor, cursor.u8(), f"{what}/{shown(key)}")
        yield from repeats.faults(what)
    elif tag == ARRAY and cursor.peek() in (NULL, OBJECT, ARRAY):
        cursor.u8()
        for number in range(cursor.count(1)):
            yield from repeated_keys(cursor, cursor.u8(), f"{what}/{number}")
    else:
        cursor.go_to(measure(cursor.body, tag, cursor.position, cursor.end, what))


class Integers(Data):
    """The items of an array of integers as little-endian 64-bit numbers, stored in ``[start, end)``."""

    __slots__ = ("_body", "_cache", "_count", "_end", "_start", "_what", "key")

    def __init__(self, body: Body, cache: BlockCache, start: int, end: int, count: int, what: str) -> None:
        self._body, self._cache = body, cache
        self._start, self._end, self._count = start, end, count
        self._what = what
        self.key = (body.version, "integers", start, count)

    @property
    def size(self) -> int:
        return 8 * self._count

    @property
    def cost(self) -> int:
        return 2 * self.size + self.stream_cost

    @property
    def stream_cost(self) -> int:
        return _LEAST + _INTEGER_RATIO * min(_AT_ONCE, self._end - self._start)

    def location(self) -> Location | None:
        place = self._body.part(self._start, self._end - self._start).location()
        return place and place._replace(codec="varint")

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._cache.read_into(self, buffer, offset)

    def whole(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        position, left = self._start, self._count
        while left:
            with self._cache.waiting():
                size = min(_AT_ONCE, self._end - position)
                chunk = self._body.part(position, size).read(0, size)
            values, used = leb128.unpack(chunk, left)
            if not used:
                raise Damaged("its integers have changed since it was opened", self._body.name, self._what)
            yield _signed(values)
            position += used
            left -= len(values)


def _signed(values: Any) -> bytes:
    """Decode zigzag numbers (``value << 1 ^ value >> 63``) to 8 bytes each."""
    import numpy as np

    signed = (values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))
    return bytes(signed.astype("<u8", copy=False).data)
