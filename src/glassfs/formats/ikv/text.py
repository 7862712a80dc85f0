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
    return parser.version, parser.root_name, parser.root


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
        self.root = b""
        self._text = text

    def document(self) -> None:
        """Parse the whole document."""
        first = self._next()
        tag = _TAG.match(self._text, self.position)
        if tag:
            self.version = int(tag[1][3:])
            self.position = tag.end()
            kind, self.root_name = self._token()
            if kind == _SIGN:
                raise ValueError("has no name after the version") if self.root_name else _Ended
            if self._next() != ord("{"):
                raise ValueError("has no brace after the root's name")
        elif first not in b'{"':
            raise ValueError("starts without a version, brace or quoted key")
        has_braces = self._next() == ord("{")
        self.position += has_braces
        self.is_begun = True
        self.root = bytes((OBJECT,)) + self._object(b"}" if has_braces else b"", 1)
        if self._peek() is not None:
            raise ValueError("continues after the root")

    def _object(self, closing: bytes, levels: int) -> bytearray:
        """Parse an object in so many levels, itself included, up to its end, and return its payload.

        The end is a brace, or that of the text if ``closing`` is empty.
        """
        # Counts come before the items, but are known only now: so each object or array collects its items in bytes of
        # its own, which move into the one around it when it ends.
        count, members = 0, bytearray()
        kind, key = self._token()
        while kind != _SIGN or key != closing:
            if kind != _QUOTED:
                raise self._unexpected(key, "a quoted key")
            if len(key) > LONGEST_NAME:
                raise ValueError(f"has a key of {len(key)} bytes")
            tag, payload = self._value(*self._token(), levels)
            members += leb128.encode(len(key)) + key
            members.append(tag)
            members += payload
            count += 1
            kind, key = self._token_after_value()
        return bytearray(leb128.encode(count)) + members

    def _array(self, levels: int) -> bytearray:
        items, ends, types = bytearray(), array("I"), 0
        kind, token = self._token()
        while kind != _SIGN or token != b"]":
            tag, payload = self._value(kind, token, levels)
            items.append(tag)
            items += payload
            ends.append(len(items))
            types |= 1 << tag
            kind, token = self._token_after_value()
        element = next((tag for tag in (STRING, INTEGER, DOUBLE, BOOLEAN) if types == 1 << tag), NULL)
        made = bytearray((element,)) + leb128.encode(len(ends))
        if element == NULL:
            return made + items
        start = 0
        for end in ends:  # the items have no types of their own
            made += items[start + 1 : end]
            start = end
        return made

    def _value(self, kind: int, token: bytes, levels: int) -> tuple[int, bytes | bytearray]:
        """Return type and payload of the value that begins with a token."""
        if kind == _QUOTED:
            return STRING, leb128.encode(len(token)) + token
        if kind == _WORD:
            return _word(token)
        if token not in (b"{", b"["):
            raise self._unexpected(token, "a value")
        if levels == DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} deep")
        return (OBJECT, self._object(b"}", levels + 1)) if token == b"{" else (ARRAY, self._array(levels + 1))

    def _token(self) -> tuple[int, bytes]:
        """Return the kind of the next token, and the token; a sign of no bytes at the end of the text."""
        while True:
            found = _TOKEN.match(self._text, self.position)
            if found and found.lastindex:
                self.position = found.end()
                return found.lastindex, found[found.lastindex]
            character = self._peek()
            if character is None:
                return _SIGN, b""
            if character == _QUOTE:
                return _QUOTED, self._string()
            # Else comments were skipped.

    def _token_after_value(self) -> tuple[int, bytes]:
        """Return the same, passing over one comma."""
        found = self._token()
        return self._token() if found == (_SIGN, b",") else found

    def _unexpected(self, token: bytes, wanted: str) -> Exception:
        return ValueError(f"has {token[:20]!r} where {wanted} is expected") if token else _Ended()

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


def _word(word: bytes) -> tuple[int, bytes]:
    """Return type and payload of an unquoted value."""
    known = _WORDS.get(word)
    if known is not None:
        return known[0], known[1:]
    if _INTEGER.fullmatch(word):
        digits = word.lstrip(b"+-").lstrip(b"0") or b"0"
        value = int(digits) * (-1 if word[:1] == b"-" else 1) if len(digits) < 20 else 1 << 64
        if -(1 << 63) <= value < 1 << 63:
            return INTEGER, leb128.encode(value * 2 if value >= 0 else -value * 2 - 1)
    elif _DOUBLE.fullmatch(word):
        return DOUBLE, struct.pack("<d", float(word))
    return STRING, leb128.encode(len(word)) + word
