"""Contents of measured nodes, and listings of objects. Any thread may use this module.

At most MOST_MEMBERS members are listed, as each takes memory; the whole document has them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from glassfs.content import Array, Content, Document, Fault, Group, Member, Null, Omitted, Scalar, Text, booleans
from glassfs.formats.ikv.nodes import (
    ARRAY,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    NULL,
    OBJECT,
    STRING,
    Body,
    Cursor,
    Marks,
    measure,
    shown,
)
from glassfs.formats.ikv.values import Decoder, Integers, cost, repeated_keys
from glassfs.formats.registry import Opening

MOST_MEMBERS = 250_000
MOST_NAME_BYTES = 64 << 20
FIXED_SIZES = {NULL: 0, DOUBLE: 8, BOOLEAN: 1}

Value = TypeVar("Value")


class Node(NamedTuple):
    """A node's type, and the start and end of its payload."""

    tag: int
    start: int
    end: int


class Contents:
    """Makes contents of measured nodes."""

    def __init__(self, body: Body, opening: Opening) -> None:
        self.body = body
        self.opening = opening

    def content(self, key: bytes, node: Node, what: str, marks: Marks | None) -> Content:
        """Return the content of a node. Objects and arrays must have been measured, with ``marks``.

        Raises Damaged if another node does not use its bytes exactly.
        """
        if node.tag == OBJECT:
            return Group(key, partial(self.members, node, what, marks))
        if node.tag == ARRAY:
            return self._array(key, node, what, marks)
        content: Content
        cursor = Cursor(self.body, node.start, node.end, what, window=16)
        if node.tag == NULL:
            content = Null(key)
        elif node.tag == STRING:
            size = cursor.varint()
            content = Text(key, self.body.part(cursor.position, size))
            cursor.skip(size)
        elif node.tag == INTEGER:
            content = Scalar(key, cursor.integer())
        elif node.tag == DOUBLE:
            content = Scalar(key, struct.unpack("<d", cursor.take(8))[0])
        else:
            content = Scalar(key, cursor.u8() != 0)
        if cursor.position != node.end:
            raise cursor.damage(f"has {node.end - cursor.position} bytes after its value")
        return content

    def document(self, key: bytes, node: Node, what: str, marks: Marks | None) -> Document:
        def value() -> Any:
            return Decoder(self.body, what).value(*node)

        size = node.end - node.start
        return Document(key, value, cost(size, marks.deepest) if marks else cost(size))

    def members(self, node: Node, what: str, marks: Marks | None) -> Iterator[Member]:
        """Yield the members of an object."""
        found, omitted = self.last_of_each(self._members(node, what, marks))
        for key, member in found.items():
            yield Member((key,), self.content(key, member, f"{what}/{shown(key)}", marks))
        yield from omitted

    def last_of_each(self, pairs: Iterable[tuple[bytes, Value]]) -> tuple[dict[bytes, Value], list[Member]]:
        """Return the last value of each key, in the order of these values, and what is beyond the limits for keys."""
        found: dict[bytes, Value] = {}
        bytes_left, left_out = MOST_NAME_BYTES, 0
        for key, value in pairs:
            if key in found:
                del found[key]
            else:
                bytes_left -= len(key)
                if bytes_left < 0 or len(found) >= MOST_MEMBERS:
                    left_out += 1
                    continue
            found[key] = value
        reason = f"too many members: {left_out} more are not listed"
        return found, [Member((b"",), Omitted(b"", reason))] if left_out else []

    def faults(self, node: Node, what: str) -> Iterator[Fault]:
        """Yield errors below a node, except those that reading reports."""
        return repeated_keys(Cursor(self.body, node.start, node.end, what, window=64 << 10), node.tag, what)

    def _array(self, key: bytes, node: Node, what: str, marks: Marks | None) -> Content:
        cursor = Cursor(self.body, node.start, node.end, what, window=16)
        element, count, items = cursor.u8(), cursor.varint(), cursor.position
        if element == INTEGER:
            integers = Integers(self.body, self.opening.cache, items, node.end, count, what)
            return Array(key, integers, "<i8", (count,), "integer")
        if element == DOUBLE:
            return Array(key, self.body.part(items, 8 * count), "<f8", (count,), "double")
        if element == BOOLEAN:
            return Array(key, booleans(self.body.part(items, count), count), "|b1", (count,), "boolean")
        return self.document(key, node, what, marks)

    def _members(self, node: Node, what: str, marks: Marks | None) -> Iterator[tuple[bytes, Node]]:
        cursor = Cursor(self.body, node.start, node.end, what, window=16 << 10)
        for _ in range(cursor.count(2)):
            key, tag, start = cursor.name(), cursor.u8(), cursor.position
            if tag in FIXED_SIZES:
                cursor.skip(FIXED_SIZES[tag])
            elif tag == STRING:
                cursor.skip(cursor.varint())
            elif tag == INTEGER:
                cursor.integer()
            else:
                end = marks.end_of(start) if marks else None
                cursor.go_to(measure(self.body, tag, start, node.end, what) if end is None else end)
            yield key, Node(tag, start, cursor.position)
