"""The text form of iKv documents, turned into the binary one (§9).

A text is parsed whole when it is opened and becomes a root node as in iKv1; what cannot be parsed is Refused, with its
line. Pure functions, any thread. Memory: the text, and up to three times as much for its nodes; hence LARGEST.

Where the description leaves it open: numbers are decimal, at most one comma follows a value, and an array that has a
null in it has no element type.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from glassfs.codec import leb128
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
    TYPE_NAMES,
)
from glassfs.formats.registry import HEAD

LARGEST = 16 << 20

_SPACE = re.compile(rb"[ \t\r\n\v\f]*")
_TOKEN = re.compile(rb'[ \t\r\n\v\f]*(?:"([^"\\]*)"|((?!//|#)[^ \t\r\n\v\f,"\[\]{}]+)|([,\[\]{}]))')
_QUOTED, _WORD, _SIGN = 1, 2, 3
_PLAIN = re.compile(rb'[^"\\]*')
_QUOTE = ord('"')
_TAG = re.compile(rb'(ikv[12])(?=[ \t\r\n\v\f"])')
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DOUBLE = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_WORDS = {b"true": b"\4\1", b"false": b"\4\0", b"null": b"\0"}
_OPENED = {b"{": OBJECT, b"[": ARRAY}
_CLOSING = {OBJECT: b"}", ARRAY: b"]"}
_ESCAPES = ((b'\\"', b'"'), (b"\\n", b"\n"), (b"\\r", b"\r"), (b"\\t", b"\t"))
_COUNT_SIZE = 5
_MOVED = 4096
_STRETCH = 64 << 10


class TextDocument(NamedTuple):
    """A parsed text: its version if it tells one, and its root object as a binary node, type included."""

    version: int | None
    root_name: bytes
    node: bytes


def encode(text: bytes) -> TextDocument:
    """Parses a whole text. Raises Refused."""
    parser = _Parser(text)
    try:
        parser.document()
    except _Ended:
        raise Refused("is an iKv text that ends too early") from None
    except ValueError as error:
        line = text.count(b"\n", 0, parser.position) + 1
        raise Refused(f"is not a valid iKv text: line {line} {error}") from None
    return TextDocument(parser.version, parser.root_name, bytes(parser.nodes.data))


def recognises(head: bytes) -> bool:
    """Whether a file can only be an iKv text, by its first HEAD bytes (or all, if there are fewer).

    A version, a name and a brace are enough. Without them the text must have no fault as far as it goes, and not be
    something else that looks the same: members in braces must have a value (``{}`` is JSON as well), and a colon or
    an equals sign after a key is not. Members without braces must have an array, or both an object and a number,
    boolean or null: quoted strings in pairs, with objects or without, are found in too many other files.
    """
    parser = _Parser(head, is_strict=True)
    is_sound = True
    try:
        parser.document()
    except _Ended:
        is_sound = len(head) >= HEAD
    except ValueError:
        is_sound = False
    if parser.version is not None:
        return parser.is_begun
    if not is_sound or head[:2] == b"#!" or _CONTROL.search(head):
        return False
    seen = parser.nodes.seen
    if parser.has_braces:
        return seen(*range(len(TYPE_NAMES)))
    return seen(ARRAY) or (seen(OBJECT) and seen(INTEGER, DOUBLE, BOOLEAN, NULL))


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
            if self._next() == _QUOTE:
                self.root_name = self._string()
            else:
                word = _TOKEN.match(self._text, self.position)
                if not word or word.lastindex != _WORD:
                    raise ValueError("has no name after the version")
                self.root_name, self.position = word[_WORD], word.end()
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
        """Everything up to the end of the root, its closing brace included."""
        text, nodes, match = self._text, self.nodes, _TOKEN.match
        closing = [_CLOSING[OBJECT] if self.has_braces else None]
        wants_key, may_have_comma = True, False
        while closing:
            found = match(text, self.position)
            if found:
                kind, self.position = found.lastindex, found.end()
                token = found[kind]  # type: ignore[index]  # there is one of the three in every match
            else:
                character = self._peek()
                if character is None and closing[-1] is not None:
                    raise _Ended
                kind, token = _SIGN, b""
                if character == _QUOTE:
                    kind, token = _QUOTED, self._string()
                elif character is not None:  # there was a comment
                    continue
            if kind == _QUOTED:
                if wants_key:
                    nodes.key(token)
                    wants_key = may_have_comma = False
                    continue
                nodes.scalar(STRING, leb128.encode(len(token)) + token)
            elif token == b",":
                if not may_have_comma:
                    raise ValueError("has a comma with no value before it")
                may_have_comma = False
                continue
            elif kind == _SIGN and (token == closing[-1] or not token):
                if nodes.kind == OBJECT and not wants_key:
                    raise ValueError("has a key without a value")
                closing.pop()
                nodes.close()
                if not closing:
                    break
            elif wants_key:
                raise ValueError(f"has {token[:20]!r} where a quoted key is expected")
            elif kind == _WORD:
                if self._is_strict and self.version is None and token[0] in b":=":
                    raise ValueError("has a sign after a key")
                nodes.word(token)
            elif token in _OPENED:
                if len(closing) >= DEEPEST:
                    raise ValueError(f"is nested more than {DEEPEST} deep")
                nodes.open(_OPENED[token])
                closing.append(_CLOSING[nodes.kind])
                wants_key, may_have_comma = nodes.kind == OBJECT, False
                continue
            else:
                raise ValueError(f"has {token!r} where a value is expected")
            wants_key, may_have_comma = nodes.kind == OBJECT, True

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

    def _string(self) -> bytes:
        text, start = self._text, self.position + 1
        end = start
        while True:
            end = _PLAIN.match(text, end).end()  # type: ignore[union-attr]  # it matches everywhere
            if end >= len(text):
                raise _Ended
            if text[end] == _QUOTE:
                break
            end += 2
        self.position = end + 1
        return _unescaped(text[start:end])


def _unescaped(raw: bytes) -> bytes:
    """A string without its escapes, a stretch at a time as each is taken apart."""
    if b"\\" not in raw:
        return raw
    done, start = bytearray(), 0
    while start < len(raw):
        stretch = raw[start : start + _STRETCH]
        if (len(stretch) - len(stretch.rstrip(b"\\"))) % 2:  # do not end within an escape
            stretch = raw[start : start + _STRETCH + 1]
        start += len(stretch)
        # Split at escaped backslashes: no other escape has a part of one in it.
        parts = stretch.split(b"\\\\")
        for escape, meant in _ESCAPES:
            parts = [part.replace(escape, meant) for part in parts]
        done += b"\\".join(parts)
    return bytes(done)


@dataclass(slots=True)
class _Frame:
    """An object or array that is not closed: where its count stands, and of what types its items are (a bit each)."""

    kind: int
    place: int
    count: int = 0
    types: int = 0


class _Nodes:
    """Writes nodes one after another. ``kind`` is what is written to, OBJECT or ARRAY."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.kind = NULL
        self._types = 0
        self._open: list[_Frame] = []

    def seen(self, *types: int) -> bool:
        """Whether a value of one of these types was begun inside the root."""
        found = self._types
        for frame in self._open:
            found |= frame.types
        return any(found >> tag & 1 for tag in types)

    def open(self, kind: int) -> None:
        if self._open:
            self.scalar(kind, b"")
        else:
            self.data.append(kind)
        if kind == ARRAY:
            self.data.append(NULL)
        self._open.append(_Frame(kind, len(self.data)))
        self.kind = kind
        self.data += bytes(_COUNT_SIZE)

    def close(self) -> None:
        frame = self._open.pop()
        self.kind = self._open[-1].kind if self._open else NULL
        self._types |= frame.types
        data, first = self.data, frame.place + _COUNT_SIZE
        for element in (STRING, INTEGER, DOUBLE, BOOLEAN):
            if frame.kind == ARRAY and frame.types == 1 << element:
                data[frame.place - 1] = element
                _take_tags_out(data, first, element)
        count = leb128.encode(frame.count)
        if len(data) - first > _MOVED:  # a padded number, instead of moving all that follows
            count = bytes(frame.count >> 7 * place & 0x7F | 0x80 for place in range(_COUNT_SIZE - 1)) + b"\0"
        data[frame.place : first] = count

    def key(self, raw: bytes) -> None:
        if len(raw) > LONGEST_NAME:
            raise ValueError(f"has a key of {len(raw)} bytes")
        self.data += leb128.encode(len(raw)) + raw

    def scalar(self, tag: int, payload: bytes) -> None:
        frame = self._open[-1]
        frame.count += 1
        frame.types |= 1 << tag
        self.data.append(tag)
        self.data += payload

    def word(self, word: bytes) -> None:
        """A value that was not quoted."""
        known = _WORDS.get(word)
        if known is not None:
            self.scalar(known[0], known[1:])
        elif word.isdigit() and len(word) < 19:
            self.scalar(INTEGER, leb128.encode(2 * int(word)))
        elif _INTEGER.fullmatch(word):
            digits = word.lstrip(b"+-").lstrip(b"0") or b"0"
            value = int(digits) * (-1 if word[:1] == b"-" else 1) if len(digits) < 20 else 1 << 64
            if -(1 << 63) <= value < 1 << 63:
                self.scalar(INTEGER, leb128.encode(value * 2 if value >= 0 else -value * 2 - 1))
            else:
                self.scalar(STRING, leb128.encode(len(word)) + word)
        elif _DOUBLE.fullmatch(word):
            self.scalar(DOUBLE, struct.pack("<d", float(word)))
        else:
            self.scalar(STRING, leb128.encode(len(word)) + word)


def _take_tags_out(data: bytearray, first: int, element: int) -> None:
    """Removes the types of the nodes from ``first`` on, all of which are of the type ``element``."""
    if element in (DOUBLE, BOOLEAN):
        del data[first :: 9 if element == DOUBLE else 2]
        return
    nodes, bare, position = bytes(data[first:]), bytearray(), 0
    while position < len(nodes):
        start = position + 1
        size, end = leb128.read_at(nodes, start, 64)
        position = end + size if element == STRING else end
        bare += nodes[start:position]
    data[first:] = bare
