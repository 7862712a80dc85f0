"""Values as strict JSON: UTF-8, keys in their order, indent 2, a newline at the end.

What JSON cannot carry is written so that it is still there: NaN and the infinities as strings, bytes that are not UTF-8
as U+FFFD. A key that this makes equal to an earlier one gets ``~2``, ``~3`` … behind it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from json.encoder import encode_basestring
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Data, Document, Rendered
from glassfs.errors import TooLarge

LIMIT = 64 << 20


def view(document: Document, cache: BlockCache, key: Hashable) -> tuple[str, Data]:
    return ".json", Rendered(cache, key, lambda: render(document.value()), cost=document.cost)


def render(value: Any) -> bytes:
    """The file for a value. Raises TooLarge past LIMIT. Beside the value there is only the text in memory."""
    text = bytearray()
    _write(text, value, b"\n")
    text += b"\n"
    if len(text) > LIMIT:
        raise _too_large()
    return bytes(text)


def line(value: Any) -> bytes:
    """A value on one line, without the newline."""
    text = bytearray()
    _write(text, value, None)
    return bytes(text)


def _write(text: bytearray, value: Any, margin: bytes | None) -> None:
    """Appends a value. ``margin`` is the newline and the blanks before it, or None for all in one line."""
    if len(text) > LIMIT:
        raise _too_large()
    if isinstance(value, (str, bytes)):
        text += _quoted(as_text(value))
    elif value is None:
        text += b"null"
    elif isinstance(value, bool):
        text += b"true" if value else b"false"
    elif isinstance(value, float):
        text += (float.__repr__(value) if math.isfinite(value) else f'"{name_of(value)}"').encode()
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
    inner = None if margin is None else margin + b"  "
    names: set[str] = set()
    separator = b""
    text += b"{"
    for key, item in members.items():
        name = _unused(as_text(key), names)
        names.add(name)
        text += separator + (inner or b"") + _quoted(name) + b": "
        _write(text, item, inner)
        separator = b", " if inner is None else b","
    text += (margin or b"") + b"}" if separator else b"}"


def _quoted(text: str) -> bytes:
    return encode_basestring(text).encode()


def _too_large() -> TooLarge:
    return TooLarge(f"the document is longer than {LIMIT >> 20} MiB as JSON")


def as_text(value: str | bytes) -> str:
    """Text that UTF-8 can carry: what is not valid becomes U+FFFD."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in value)
    return value


def name_of(number: float) -> str:
    """How a number that JSON lacks is written."""
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _unused(key: str, names: set[str]) -> str:
    number, candidate = 2, key
    while candidate in names:
        candidate = f"{key}~{number}"
        number += 1
    return candidate
