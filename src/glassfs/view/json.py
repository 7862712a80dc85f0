"""Values as strict JSON: UTF-8, keys in their order, indent 2, a newline at the end.

What JSON cannot carry is written so that it is still there: NaN and the infinities as strings, bytes that are not UTF-8
as U+FFFD. A key that this makes equal to an earlier one gets ``~2``, ``~3`` … behind it.
"""

from __future__ import annotations

import json
import math
from typing import Any

from glassfs.cache import BlockCache
from glassfs.content import Data, Document, Rendered
from glassfs.errors import TooLarge

LIMIT = 64 << 20


def view(document: Document, cache: BlockCache) -> tuple[str, Data]:
    return ".json", Rendered(cache, document.identity, lambda: render(document.value()))


def render(value: Any) -> bytes:
    """The file for a value. Raises TooLarge past LIMIT."""
    pieces, size = [], 1
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(_Strict().value(value)):
        pieces.append(piece)
        size += len(piece)
        if size > LIMIT:
            raise TooLarge(f"the document is longer than {LIMIT >> 20} MiB as JSON")
    rendered = "".join([*pieces, "\n"]).encode()
    if len(rendered) > LIMIT:
        raise TooLarge(f"the document is longer than {LIMIT >> 20} MiB as JSON")
    return rendered


def line(value: Any) -> bytes:
    """A value on one line, without the newline."""
    return json.dumps(_Strict().value(value), ensure_ascii=False).encode()


class _Strict:
    """Turns a value into what strict JSON can carry, up to about LIMIT bytes of it."""

    def __init__(self) -> None:
        self._room = LIMIT

    def value(self, value: Any) -> Any:
        self._room -= 2
        if self._room < 0:
            raise TooLarge(f"the document is longer than {LIMIT >> 20} MiB as JSON")
        if isinstance(value, (str, bytes)):
            text = as_text(value)
            self._room -= len(text)
            return text
        if isinstance(value, float):
            return value if math.isfinite(value) else name_of(value)
        if isinstance(value, dict):
            members: dict[str, Any] = {}
            for key, item in value.items():
                members[_unused(as_text(key), members)] = self.value(item)
            return members
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


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


def _unused(key: str, members: dict[str, Any]) -> str:
    number, candidate = 2, key
    while candidate in members:
        candidate = f"{key}~{number}"
        number += 1
    return candidate
