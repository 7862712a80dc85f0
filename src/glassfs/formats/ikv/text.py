"""The text form of iKv documents, converted to the binary form (§9).

Opening parses the whole text into a root node as in iKv1. Errors raise Refused with the line number. Pure functions;
any thread may call them.

Where the description is ambiguous: numbers are decimal, at most one comma follows a value, and an array that contains a
null has no element type.
"""

from __future__ import annotations

import re
import struct
from array import array

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
)
from glassfs.formats.registry import BUILT_IN, HEAD, Head

_SPACE = re.compile(rb"[ \t\r\n\v\f]*")
_TOKEN = re.compile(rb'[ \t\r\n\v\f]*(?:"([^"\\]*)"|((?!//|#)[^ \t\r\n\v\f,"\[\]{}]+)|([,\[\]{}]))')
_QUOTED, _WORD, _SIGN = range(1, 4)
"""The groups of a token, of which each match has one."""
_PLAIN = re.compile(rb'[^"\\]*')
_QUOTE = ord('"')
_TAG = re.compile(rb'(ikv[12])(?=[ \t\r\n\v\f"])')
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DOUBLE = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORDS = {b"true": b"\4\1", b"false": b"\4\0", b"null": b"\0"}
_OPENED = {b"{": OBJECT, b"[": ARRAY}
_CLOSING = {OBJECT: b"}", ARRAY: b"]"}
_ESCAPE = re.compile(rb'\\(["\\nrt])')
_MEANT = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def encode(text: bytes) -> tuple[int | None, bytes, bytes]:
    """Parse a whole text; return its version (None if not given), the root's name, and the root as a binary node.

    The node begins with its type. Raises Refused.
    """
    parser = _Parser(text)
    try:
        parser.document()
    except _Ended:
        raise Refused("is a truncated iKv text") from None
    except ValueError as error:
        line = text.count(b"\n", 0, parser.position) + 1
        raise Refused(f"is not a valid iKv text: line {line} {error}") from None
    return parser.version, parser.root_name, parser.nodes.root


def recognises(head: Head) -> bool:
    """Return whether a file is an iKv text, by its first HEAD bytes (or all if it has fewer).

    A version, a name and a brace are enough. Without them the file must be called ``.ikv``, and be valid as far as
    ``head`` goes: much else looks like members without braces.
    """
    parser = _Parser(head)
    is_sound = True
    try:
        parser.document()
    except _Ended:
        is_sound = len(head) >= HEAD
    except ValueError:
        is_sound = False
    if parser.version is not None:
        return parser.is_begun
    return is_sound and head.name.lower().endswith(BUILT_IN["ikv"])


class _Ended(Exception):
    """The text ends too early."""


class _Parser:
    """Parses a text from its start. Raises _Ended, or ValueError with a reason to follow "line N"."""

    def __init__(self, text: bytes) -> None:
        self.version: int | None = None
        self.root_name = b""
        self.is_begun = False
        self.position = 0
        self.nodes = _Nodes()
        self._text = text

    def document(self) -> None:
        """Parse the whole document."""
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
            raise ValueError("starts without a version, brace or quoted key")
        has_braces = self._next() == ord("{")
        self.position += has_braces
        self.is_begun = True
        self.nodes.open(OBJECT)
        self._members(_CLOSING[OBJECT] if has_braces else None)
        if self._peek() is not None:
            raise ValueError("continues after the root")

    def _members(self, end: bytes | None) -> None:
        """Parse everything up to the end of the root, including its closing brace; None if it has none."""
        text, nodes, match = self._text, self.nodes, _TOKEN.match
        closing = [end]
        wants_key, may_have_comma = True, False
        while closing:
            found = match(text, self.position)
            if found:
                kind, self.position = found.lastindex, found.end()
                token = found[kind]  # type: ignore[index]  # every match has one of the three
            else:
                character = self._peek()
                if character is None and closing[-1] is not None:
                    raise _Ended
                kind, token = _SIGN, b""
                if character == _QUOTE:
                    kind, token = _QUOTED, self._string()
                elif character is not None:  # a comment was skipped
                    continue
            if kind == _QUOTED:
                if wants_key:
                    nodes.key(token)
                    wants_key = may_have_comma = False
                    continue
                nodes.scalar(STRING, leb128.encode(len(token)) + token)
            elif token == b",":
                if not may_have_comma:
                    raise ValueError("has a comma without a value before it")
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
        """Return the next character outside white space and comments, without consuming it."""
        character = self._peek()
        if character is None:
            raise _Ended
        return character

    def _peek(self) -> int | None:
        """Return the same, or None at the end of the text."""
        text, position = self._text, self.position
        while True:
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # always matches
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
            end = _PLAIN.match(text, end).end()  # type: ignore[union-attr]  # always matches
            if end >= len(text):
                raise _Ended
            if text[end] == _QUOTE:
                break
            end += 2
        self.position = end + 1
        raw = text[start:end]
        return _ESCAPE.sub(lambda escape: _MEANT[escape[1]], raw) if b"\\" in raw else raw


class _Frame:
    """An open object or array: its items with their types, the end of each if it is an array, and its types as bits."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.data = bytearray()
        self.ends = array("I")
        self.count = self.types = 0


class _Nodes:
    """Writes nodes. ``kind`` is the type of the innermost open one, OBJECT or ARRAY; ``root`` is the finished root."""

    def __init__(self) -> None:
        self.root = b""
        self.kind = NULL
        self._open: list[_Frame] = []

    def open(self, kind: int) -> None:
        self._open.append(_Frame(kind))
        self.kind = kind

    def close(self) -> None:
        # Counts come before the items, and the element type before both, but they are known only now: so each open
        # object or array collects its items in bytes of its own, which move into the one around it when it ends.
        frame = self._open.pop()
        payload = bytearray(leb128.encode(frame.count) + frame.data)
        if frame.kind == ARRAY:
            element = next((tag for tag in (STRING, INTEGER, DOUBLE, BOOLEAN) if frame.types == 1 << tag), NULL)
            if element != NULL:  # the items have no types of their own
                payload = bytearray(leb128.encode(frame.count))
                start = 0
                for end in frame.ends:
                    payload += frame.data[start + 1 : end]
                    start = end
            payload.insert(0, element)
        self.kind = self._open[-1].kind if self._open else NULL
        if self._open:
            self.scalar(frame.kind, payload)
        else:
            self.root = bytes((frame.kind,)) + payload

    def key(self, raw: bytes) -> None:
        if len(raw) > LONGEST_NAME:
            raise ValueError(f"has a key of {len(raw)} bytes")
        self._open[-1].data += leb128.encode(len(raw)) + raw

    def scalar(self, tag: int, payload: bytes | bytearray) -> None:
        frame = self._open[-1]
        frame.count += 1
        frame.types |= 1 << tag
        frame.data.append(tag)
        frame.data += payload
        if frame.kind == ARRAY:
            frame.ends.append(len(frame.data))

    def word(self, word: bytes) -> None:
        """Write an unquoted value."""
        known = _WORDS.get(word)
        if known is not None:
            self.scalar(known[0], known[1:])
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
