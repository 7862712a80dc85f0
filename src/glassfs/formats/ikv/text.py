"""The text form of iKv documents, turned into the binary one (§9).

A text is parsed whole when it is opened and becomes a root node as in iKv1; what cannot be parsed is Refused, with its
line. Pure functions, any thread. Memory: the text, and up to three times as much for its nodes; hence LARGEST.

Where the description leaves it open: numbers are decimal, at most one comma follows a value, and an array that has a
null in it has no element type.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from glassfs.errors import Refused
from glassfs.formats.ikv.nodes import (
    ARRAY,
    BOOLEAN,
    DEEPEST,
    DOUBLE,
    INTEGER,
    LONGEST_NAME,
    NULL,
    OBJECT,
    STRING,
    varint,
)
from glassfs.formats.registry import HEAD

LARGEST = 32 << 20

_SPACE = re.compile(rb"[ \t\r\n\v\f]*")
_WORD = re.compile(rb'[^ \t\r\n\v\f,"\[\]{}]+')
_PLAIN = re.compile(rb'[^"\\]*')
_TAG = re.compile(rb'(ikv[12])(?=[ \t\r\n\v\f"])')
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DOUBLE = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_WORDS = {b"true": b"\4\1", b"false": b"\4\0", b"null": b"\0"}
_CLOSED_BY = {ord("{"): (OBJECT, ord("}")), ord("["): (ARRAY, ord("]"))}
_ESCAPES = ((b'\\"', b'"'), (b"\\n", b"\n"), (b"\\r", b"\r"), (b"\\t", b"\t"))
_COUNT_SIZE = 5
_MOVED = 4096


class TextDocument(NamedTuple):
    """A parsed text: its version if it tells one, and its root object as a binary node, type included."""

    version: int | None
    root_name: bytes
    node: bytes


def encode(text: bytes, name: str) -> TextDocument:
    """Parses a whole text; ``name`` is that of its container. Raises Refused."""
    parser = _Parser(text)
    try:
        parser.document()
    except _Ended:
        raise Refused(name, "is an iKv text that ends too early") from None
    except ValueError as error:
        line = text.count(b"\n", 0, parser.position) + 1
        raise Refused(name, f"is no iKv text: line {line} {error}") from None
    return TextDocument(parser.version, parser.root_name, bytes(parser.nodes.data))


def recognises(head: bytes) -> bool:
    """Whether a file can only be an iKv text, by its first HEAD bytes (or all, if there are fewer).

    With a version tag it must go on like a document. Without one it must not be something else that looks the same:
    members in braces must have a value (``{}`` is JSON as well), and a colon or an equals sign after a key is none.
    Members without braces must have an array, or both an object and a number, boolean or null: quoted strings in
    pairs, with objects or without, are found in too many other files.
    """
    parser = _Parser(head, is_strict=True)
    try:
        parser.document()
    except _Ended:
        if len(head) < HEAD:
            return False
    except ValueError:
        return False
    seen = parser.nodes.seen
    if parser.version is not None:
        return parser.is_begun
    if head[:2] == b"#!" or _CONTROL.search(head):
        return False
    if parser.has_braces:
        return bool(seen)
    return ARRAY in seen or (OBJECT in seen and bool(seen & {INTEGER, DOUBLE, BOOLEAN, NULL}))


class _Ended(Exception):
    """The text ends where more is needed."""


class _Parser:
    """Goes through a text from its start. Raises ValueError with the rest of a sentence that names the line, or _Ended.

    With ``is_strict`` no bare word may begin like the sign that other notations have between key and value, unless the
    text has a version.
    """

    def __init__(self, text: bytes, is_strict: bool = False) -> None:
        self.version: int | None = None
        self.root_name = b""
        self.has_braces = False
        self.is_begun = False
        self.position = 0
        self.nodes = _Nodes()
        self._text = text
        self._is_strict = is_strict

    def document(self) -> None:
        """The whole document."""
        first = self._next()
        tag = _TAG.match(self._text, self.position)
        if tag:
            self.version = int(tag[1][3:])
            self.position = tag.end()
            self.root_name = self._string() if self._next() == ord('"') else self._word()
            if self._next() != ord("{"):
                raise ValueError("has no brace after the root's name")
        elif first not in b'{"':
            raise ValueError("starts with neither a version, a brace nor a quoted key")
        self.has_braces = self._next() == ord("{")
        self.position += self.has_braces
        self.is_begun = True
        self.nodes.open(OBJECT)
        self._members()
        if self._peek() is not None:
            raise ValueError("goes on after the root")

    def _members(self) -> None:
        """Everything up to the end of the root."""
        nodes = self.nodes
        closing = [ord("}") if self.has_braces else None]
        while closing:
            if self._peek() == closing[-1]:
                self.position += closing.pop() is not None
                nodes.close()
                if closing:
                    self._comma()
                continue
            character = self._next()
            if nodes.kind == OBJECT:
                if character != ord('"'):
                    raise ValueError("has no quoted key where one must be")
                nodes.key(self._string())
                character = self._next()
            if character in _CLOSED_BY:
                kind, end = _CLOSED_BY[character]
                if len(closing) >= DEEPEST:
                    raise ValueError(f"is nested more than {DEEPEST} deep")
                self.position += 1
                closing.append(end)
                nodes.open(kind)
                continue
            if character == ord('"'):
                raw = self._string()
                nodes.scalar(STRING, varint(len(raw)) + raw)
            else:
                nodes.word(self._word())
            self._comma()

    def _next(self) -> int:
        """The next character that is neither white space nor in a comment. It is not passed."""
        character = self._peek()
        if character is None:
            raise _Ended
        return character

    def _peek(self) -> int | None:
        """The same, or None at the end of the text."""
        text, position = self._text, self.position
        while True:
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches everywhere
            if not text.startswith((b"#", b"//"), position):
                break
            position = text.find(b"\n", position)
            if position < 0:
                position = len(text)
        self.position = position
        return text[position] if position < len(text) else None

    def _comma(self) -> None:
        if self._peek() == ord(","):
            self.position += 1

    def _word(self) -> bytes:
        found = _WORD.match(self._text, self.position)
        if not found:
            raise ValueError(f"has {chr(self._text[self.position])!r} where a value must be")
        if self._is_strict and self.version is None and self._text[self.position] in b":=":
            raise ValueError("has a sign after a key")
        self.position = found.end()
        return found[0]

    def _string(self) -> bytes:
        text, start = self._text, self.position + 1
        end = start
        while True:
            end = _PLAIN.match(text, end).end()  # type: ignore[union-attr]  # it matches everywhere
            if end >= len(text):
                raise _Ended
            if text[end] == ord('"'):
                break
            end += 2
        self.position = end + 1
        raw = text[start:end]
        if b"\\" not in raw:
            return raw
        # Split at escaped backslashes, no other escape has a part of one in it.
        parts = raw.split(b"\\\\")
        for escape, meant in _ESCAPES:
            parts = [part.replace(escape, meant) for part in parts]
        return b"\\".join(parts)


@dataclass
class _Frame:
    """An object or array that is not closed: where its count and its items stand, and what types these have."""

    kind: int
    place: int
    count: int = 0
    types: set[int] = field(default_factory=set)


class _Nodes:
    """Writes nodes one after another. ``seen`` are the types of all values that were begun inside the root."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.seen: set[int] = set()
        self._open: list[_Frame] = []

    @property
    def kind(self) -> int:
        """OBJECT or ARRAY: what is written to."""
        return self._open[-1].kind

    def open(self, kind: int) -> None:
        self._note(kind)
        self.data.append(kind)
        if kind == ARRAY:
            self.data.append(NULL)
        self._open.append(_Frame(kind, len(self.data)))
        self.data += bytes(_COUNT_SIZE)

    def close(self) -> None:
        frame = self._open.pop()
        data, first = self.data, frame.place + _COUNT_SIZE
        if frame.kind == ARRAY and len(frame.types) == 1:
            element = next(iter(frame.types))
            if element in (STRING, INTEGER, DOUBLE, BOOLEAN):
                data[frame.place - 1] = element
                _take_tags_out(data, first, element)
        count = varint(frame.count)
        if len(data) - first > _MOVED:  # a padded number, instead of moving all that follows
            count = bytes(frame.count >> 7 * place & 0x7F | 0x80 for place in range(_COUNT_SIZE - 1)) + b"\0"
        data[frame.place : first] = count

    def key(self, raw: bytes) -> None:
        if len(raw) > LONGEST_NAME:
            raise ValueError(f"has a key of {len(raw)} bytes")
        self.data += varint(len(raw)) + raw

    def scalar(self, tag: int, payload: bytes) -> None:
        self._note(tag)
        self.data.append(tag)
        self.data += payload

    def word(self, word: bytes) -> None:
        """A value that was not quoted."""
        known = _WORDS.get(word)
        if known is not None:
            self.scalar(known[0], known[1:])
            return
        if _INTEGER.fullmatch(word):
            digits = word.lstrip(b"+-").lstrip(b"0") or b"0"
            value = int(digits) * (-1 if word[:1] == b"-" else 1) if len(digits) < 20 else 1 << 64
            if -(1 << 63) <= value < 1 << 63:
                self.scalar(INTEGER, varint(value * 2 if value >= 0 else -value * 2 - 1))
                return
        elif _DOUBLE.fullmatch(word):
            self.scalar(DOUBLE, struct.pack("<d", float(word)))
            return
        self.scalar(STRING, varint(len(word)) + word)

    def _note(self, tag: int) -> None:
        if self._open:
            frame = self._open[-1]
            frame.count += 1
            frame.types.add(tag)
            self.seen.add(tag)


def _take_tags_out(data: bytearray, first: int, element: int) -> None:
    """Removes the types of the nodes from ``first`` on, all of which are of the type ``element``."""
    if element in (DOUBLE, BOOLEAN):
        del data[first :: 9 if element == DOUBLE else 2]
        return
    nodes, bare, position = bytes(data[first:]), bytearray(), 0
    while position < len(nodes):
        start = end = position + 1
        size = shift = 0
        while True:
            byte = nodes[end]
            size |= (byte & 0x7F) << shift
            end, shift = end + 1, shift + 7
            if byte < 0x80:
                break
        position = end + size if element == STRING else end
        bare += nodes[start:position]
    data[first:] = bare
