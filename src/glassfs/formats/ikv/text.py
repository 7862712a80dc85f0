"""The text form of iKv documents, converted to a root node of the binary form iKv1 (§9). Pure functions.

Errors raise Refused with the line number. Where the description is ambiguous: numbers are decimal, at most one comma
follows a value, and an array that contains a null has no element type.
"""

from __future__ import annotations

import re
import struct
from array import array
from dataclasses import dataclass

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

_TOKEN = re.compile(
    rb'[ \t\r\n\v\f]*(?:"([^"\\]*)"|(?:#|//)[^\n]*|([^ \t\r\n\v\f,"\[\]{}]+)|([,\[\]{}]|\Z)|("))'
)
"""A token, or a comment; one of them is next in any text."""
_QUOTED, _WORD, _SIGN, _OPEN = range(1, 5)
"""The groups of a token, of which each match has one, and a comment none: _OPEN begins any other string."""
_ESCAPED = re.compile(rb'\\.|"', re.DOTALL)
_BRACE, _END = (_SIGN, b"{"), (_SIGN, b"")
_TAGS = {(_WORD, b"ikv1"): 1, (_WORD, b"ikv2"): 2}
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


Token = tuple[int, bytes]
"""The kind of a token and its text, of a string without quotes and escapes; ``_END`` is the end of the text."""


@dataclass
class _Parser:
    """Parses a text from its start. Raises _Ended, or ValueError with a reason to follow "line N"."""

    _text: bytes
    version: int | None = None
    root_name: bytes = b""
    is_begun: bool = False
    position: int = 0
    root: bytes = b""

    def document(self) -> None:
        """Parse the whole document."""
        token = self._token()
        self.version = _TAGS.get(token)
        if self.version is not None:
            name = self._token()
            if name[0] == _SIGN:
                raise self._unexpected(name, "a name after the version")
            self.root_name, token = name[1], self._token()
            if token != _BRACE:
                raise self._unexpected(token, "a brace after the root's name")
        elif token != _BRACE and token[0] != _QUOTED:
            raise self._unexpected(token, "a version, brace or quoted key")
        self.is_begun = True
        has_braces = token == _BRACE
        root = self._object(self._token() if has_braces else token, b"}" if has_braces else b"", 1)
        self.root = bytes((OBJECT,)) + root
        if self._token() != _END:
            raise ValueError("continues after the root")

    def _object(self, token: Token, closing: bytes, levels: int) -> bytearray:
        """Parse an object in so many levels, itself included, from its first token on, and return its payload.

        The end is a brace, or that of the text if ``closing`` is empty.
        """
        # Counts come before the items, but are known only now: so each object or array collects its items in bytes of
        # its own, which move into the one around it when it ends.
        count, members = 0, bytearray()
        while token != (_SIGN, closing):
            kind, key = token
            if kind != _QUOTED:
                raise self._unexpected(token, "a quoted key")
            if len(key) > LONGEST_NAME:
                raise ValueError(f"has a key of {len(key)} bytes")
            tag, payload = self._value(self._token(), levels)
            members += leb128.encode(len(key)) + key
            members.append(tag)
            members += payload
            count += 1
            token = self._token_after_value()
        return bytearray(leb128.encode(count)) + members

    def _array(self, levels: int) -> bytearray:
        items, ends, types = bytearray(), array("I"), 0
        token = self._token()
        while token != (_SIGN, b"]"):
            tag, payload = self._value(token, levels)
            items.append(tag)
            items += payload
            ends.append(len(items))
            types |= 1 << tag
            token = self._token_after_value()
        element = next((tag for tag in (STRING, INTEGER, DOUBLE, BOOLEAN) if types == 1 << tag), NULL)
        made = bytearray((element,)) + leb128.encode(len(ends))
        if element == NULL:
            return made + items
        start = 0
        for end in ends:  # the items have no types of their own
            made += items[start + 1 : end]
            start = end
        return made

    def _value(self, token: Token, levels: int) -> tuple[int, bytes | bytearray]:
        """Return type and payload of the value that begins with a token."""
        kind, text = token
        if kind == _QUOTED:
            return STRING, leb128.encode(len(text)) + text
        if kind == _WORD:
            return _word(text)
        if text not in (b"{", b"["):
            raise self._unexpected(token, "a value")
        if levels == DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} deep")
        if text == b"[":
            return ARRAY, self._array(levels + 1)
        return OBJECT, self._object(self._token(), b"}", levels + 1)

    def _token(self) -> Token:
        """Return the next token."""
        kind = None
        while kind is None:
            found: re.Match[bytes] = _TOKEN.match(self._text, self.position)  # type: ignore[assignment]  # always matches
            self.position, kind = found.end(), found.lastindex
        return (_QUOTED, self._escaped()) if kind == _OPEN else (kind, found[kind])

    def _escaped(self) -> bytes:
        """Return the rest of a string with escapes."""
        start = self.position
        # A loop, as an expression for a string of any length takes memory for each escape in it.
        for found in _ESCAPED.finditer(self._text, start):
            if found[0] == b'"':
                self.position = found.end()
                return _ESCAPE.sub(lambda escape: _MEANT[escape[1]], self._text[start : found.start()])
        raise _Ended

    def _token_after_value(self) -> Token:
        """Return the same, passing over one comma."""
        token = self._token()
        return self._token() if token == (_SIGN, b",") else token

    def _unexpected(self, token: Token, wanted: str) -> Exception:
        return _Ended() if token == _END else ValueError(f"has {token[1][:20]!r} where {wanted} is expected")


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
