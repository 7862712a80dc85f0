"""Values as strict JSON: UTF-8, keys in their order, indent 2, a newline at the end.

Values that JSON lacks are written in another way: NaN and the infinities as strings, bytes that are not UTF-8 as
U+FFFD. A key that this makes equal to an earlier one gets ``~2``, ``~3`` … appended.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from json.encoder import JSONEncoder, encode_basestring
from typing import Any

from glassfs.errors import TooLarge
from glassfs.names import free_name

LIMIT = 64 << 20
AT_ONCE = 64 << 10
"""Bytes or characters of one string that are written at a time: each may need some sixty bytes temporarily."""
SHORT = 4 << 10
"""Limit of characters and texts in an object that is written at once."""
_PLAIN = (int, float, bool, type(None))

_SURROGATE = re.compile("[\ud800-\udfff]")


def render(value: Any) -> bytearray:
    """Return the file for a value. Raises TooLarge past LIMIT. Takes no memory but the text."""
    text = bytearray()
    _write(text, value, b"\n")
    text += b"\n"
    if len(text) > LIMIT:
        raise _too_large()
    return text


def line(value: Any) -> bytearray:
    """Return a value on one line, without the newline. Raises TooLarge past LIMIT."""
    text = bytearray()
    _write(text, value, None)
    return text


def _write(text: bytearray, value: Any, margin: bytes | None) -> None:
    """Append a value. ``margin`` is the newline and the spaces before it, or None to write on one line."""
    if len(text) > LIMIT:
        raise _too_large()
    if isinstance(value, (str, bytes)):
        _write_string(text, value)
    elif value is None:
        text += b"null"
    elif isinstance(value, bool):
        text += b"true" if value else b"false"
    elif isinstance(value, float):
        text += float.__repr__(value).encode() if math.isfinite(value) else b'"%b"' % name_of(value).encode()
    elif isinstance(value, int):
        text += int.__repr__(value).encode()
    elif isinstance(value, dict):
        _write_object(text, value, margin)
    else:
        inner = None if margin is None else margin + b"  "
        separator = b""
        text += b"["
        for item in value:
            text += separator + (inner or b"")
            _write(text, item, inner)
            separator = b", " if inner is None else b","
        text += (margin or b"") + b"]" if separator else b"]"


def _write_object(text: bytearray, members: dict[Any, Any], margin: bytes | None) -> None:
    written = _written_at_once(members, margin)
    if written is not None:
        text += written
        return
    inner = None if margin is None else margin + b"  "
    names: set[str] = set()
    separator = b""
    text += b"{"
    for key, item in members.items():
        name = as_text(key)
        # Keys that differ only in bytes that are not UTF-8 are equal as text.
        name = free_name(name, names.__contains__, name.__add__)
        names.add(name)
        text += separator + (inner or b"")
        _write_string(text, name)
        text += b": "
        _write(text, item, inner)
        separator = b", " if inner is None else b","
    text += (margin or b"") + b"}" if separator else b"}"


def _written_at_once(members: dict[Any, Any], margin: bytes | None) -> bytes | None:
    """Return a small object of short keys without objects and lists in it, in a third of the time; None for others."""
    texts = [*members, *(item for item in members.values() if type(item) not in _PLAIN)]
    if set(map(type, texts)) != {str} or len(texts) + sum(map(len, texts)) > SHORT:
        return None
    try:
        written = _encoder(margin).encode(members).encode()
    except ValueError:  # NaN, infinities, surrogates
        return None
    return written if margin is None else b"{%b  %b%b}" % (margin, written[1:-1], margin)


@lru_cache(64)
def _encoder(margin: bytes | None) -> JSONEncoder:
    """Return what writes the members of an object, which are values without others in them."""
    between = ", " if margin is None else f",{margin.decode()}  "
    return JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(between, ": "))


def _write_string(text: bytearray, value: str | bytes) -> None:
    if len(value) <= AT_ONCE:
        text += encode_basestring(as_text(value)).encode()
        return
    text += b'"'
    for piece in _pieces(value):
        text += encode_basestring(piece)[1:-1].encode()
        if len(text) > LIMIT:
            raise _too_large()
    text += b'"'


def _pieces(value: str | bytes) -> Iterator[str]:
    """Yield a string in pieces, as text that UTF-8 can encode."""
    if isinstance(value, str):
        for start in range(0, len(value), AT_ONCE):
            yield as_text(value[start : start + AT_ONCE])
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, len(value), AT_ONCE):
        yield decoder.decode(value[start : start + AT_ONCE])
    yield decoder.decode(b"", final=True)


def _too_large() -> TooLarge:
    return TooLarge(f"the document is longer than {LIMIT >> 20} MiB as JSON")


def as_text(value: str | bytes) -> str:
    """Return text that UTF-8 can encode: what is not valid becomes U+FFFD."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if value.isascii() else _SURROGATE.sub("\ufffd", value)


def name_of(number: float) -> str:
    """Return the string for a number that JSON lacks."""
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
