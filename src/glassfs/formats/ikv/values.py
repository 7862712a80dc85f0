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
from glassfs.content import Location, Stream
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
    WINDOW,
    NodeReader,
    NodeSpan,
    part,
)
from glassfs.source import Source

LARGEST_RENDERING = 64 << 20  # docs/manual/troubleshooting.md
LARGEST_VALUE = 160 << 20
EXPANSION = 80
"""Bytes of values for one that is stored, in empty objects or nested objects of one member; with one-byte integers, of
NumPy's intermediate results as well."""


def cost(stored: int, levels: int = DEEPEST) -> int:
    """Return the peak memory of the value of ``stored`` bytes, of so many levels, and of its text.

    Besides the text this counts the spare memory of its buffer and the piece being written. The worst cases are a null
    on a line of its own, and an escaped character.
    """
    text = min(LARGEST_RENDERING, stored * (2 * levels + 8))
    return 4 * WINDOW + min(LARGEST_VALUE, stored * EXPANSION) + text + min(text, LARGEST_RENDERING // 4)


class Decoder:
    """Builds values of one document: dict, list, str, int, float, bool, None, and bytes for text that is not UTF-8.

    Raises TooLarge before a value takes much more than LARGEST_VALUE bytes of memory, or would certainly exceed
    LARGEST_RENDERING bytes as JSON with indent 2.
    """

    def __init__(self, source: Source, what: str) -> None:
        self.rendered = 0
        self._source = source
        self._what = what
        self._taken = 0
        self._keys: dict[str | bytes, str | bytes] = {}

    def value(self, node: NodeSpan, depth: int = 0) -> Any:
        """Return the value of a measured node; ``depth`` is the number of containers around it."""
        return self._value(NodeReader(self._source, node.start, node.end, self._what, WINDOW), node.tag, depth)

    def spend(self, rendered: int, taken: int) -> None:
        """Count ``rendered`` more bytes of text (a lower bound) and ``taken`` more bytes of memory."""
        self.rendered += rendered
        self._taken += taken
        if self.rendered > LARGEST_RENDERING or self._taken > LARGEST_VALUE:
            raise TooLarge("is too large to show as one JSON document", self._source.name, self._what)

    def key(self, raw: bytes) -> str | bytes:
        """Return a key; equal keys are the same object each time, as those of a table are."""
        key = _text(raw)
        known = self._keys.setdefault(key, key)
        self.spend(len(raw), len(raw) + 160 if known is key else 0)
        return known

    def _value(self, fields: NodeReader, tag: int, depth: int) -> Any:
        if tag == NULL:
            self.spend(3, 0)
            return None
        if tag == STRING:
            size = fields.varint()
            self.spend(size + 1, size + 60)
            return _text(fields.take(size))
        if tag == INTEGER:
            self.spend(0, 32)
            return fields.signed()
        if tag == DOUBLE:
            self.spend(2, 24)
            return struct.unpack("<d", fields.take(8))[0]
        if tag == BOOLEAN:
            self.spend(3, 0)
            return fields.u8() != 0
        if depth >= DEEPEST or tag > ARRAY:
            raise fields.damage(f"has a node of unknown type {tag}, or too many levels, before {fields.position}")
        item = 2 * depth + 5  # line break, indent, comma, and at least one character
        if tag == OBJECT:
            count = fields.count(2)
            self.spend(count * (item + 4), 64 + (100 + count * 50 if count else 0))
            members: dict[str | bytes, Any] = {}
            for _ in range(count):
                key = self.key(fields.name())
                members.pop(key, None)  # of equal keys the last one counts
                members[key] = self._value(fields, fields.u8(), depth + 1)
            return members
        element = fields.element()
        count = fields.count(SMALLEST_ITEM[element])
        self.spend(count * item, 56 + count * 8)
        if element == BOOLEAN:
            return [byte != 0 for byte in fields.take(count)]
        if element == DOUBLE:
            self.spend(0, count * 24)
            return list(struct.unpack(f"<{count}d", fields.take(8 * count)))
        is_bare = element in (STRING, INTEGER)
        return [self._value(fields, element if is_bare else fields.u8(), depth + 1) for _ in range(count)]


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Integers(Stream):
    """The items of an array of integers as little-endian 64-bit numbers, stored in ``[start, end)``."""

    __slots__ = ("_count", "_end", "_source", "_start", "_what")

    def __init__(self, source: Source, cache: BlockCache, start: int, end: int, count: int, what: str) -> None:
        cost = 3 * WINDOW + EXPANSION * min(WINDOW, end - start)
        super().__init__(
            cache, (source.version, "integers", start, count), self._numbers, lambda: cost, 8 * count,
        )
        self._source, self._what = source, what
        self._start, self._end, self._count = start, end, count

    def location(self) -> Location | None:
        place = part(self._source, self._start, self._end - self._start).location()
        return place and place._replace(codec="varint")

    def _numbers(self) -> Iterator[bytes]:
        position, left = self._start, self._count
        while left:
            with self._cache.waiting():
                chunk = self._source.read(position, min(WINDOW, self._end - position))
            values, used = leb128.unpack(chunk, left)
            if not used:
                raise Damaged("its integers have changed since it was opened", self._source.name, self._what)
            yield _signed(values)
            position += used
            left -= len(values)


def _signed(values: Any) -> bytes:
    """Decode zigzag numbers (``value << 1 ^ value >> 63``) to 8 bytes each."""
    import numpy as np

    signed = (values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))
    return bytes(signed.astype("<u8", copy=False).data)
