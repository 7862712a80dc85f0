"""Escape untrusted text for pages: as HTML, as JSON inside a script, and as an address.

Pure functions. NUL and code points that are not Unicode characters become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any
from urllib.parse import quote

from glassfs.names import component
from glassfs.view import json

LARGEST_NUMBER = (1 << 53) - 1
"""The largest integer that scripts have without loss; larger ones become text."""
ELLIPSIS = "…"

_SPECIAL = re.compile("[\x00\r&<>\"'`\ud800-\udfff]")
_IN_SCRIPTS = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"),
               ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))


def html(text: str) -> str:
    """Escape for the text of an element, and for the value of a quoted attribute."""
    return _SPECIAL.sub(_reference, text)


def script(value: Any) -> bytes:
    """Return a value as JSON that may be embedded in a script: nothing in it can end the script."""
    # The HTML parser looks for the end of the script first, whatever is a string for JSON. Two separators of lines
    # ended a string literal in scripts before 2019.
    made = bytes(json.line(value))
    for character, escaped in _IN_SCRIPTS:
        made = made.replace(character, escaped)
    return made


def address(parts: Iterable[bytes], suffix: str = "") -> str:
    """Return the address of a content from the page's directory, given its names; never an address with another
    scheme.
    """
    *folders, last = parts
    shown = [component(part) for part in folders]
    return "./" + "/".join(quote(part, safe="") for part in (*shown, component(last, suffix)))


def brief(value: Any, longest: int) -> Any:
    """Return the value cut to about ``longest`` characters."""
    # Scripts would round it. The text of very many digits takes long to make.
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return str(value) if value.bit_length() <= 256 else ELLIPSIS
    if isinstance(value, (str, bytes)):
        text = json.as_text(value[: 4 * longest])
        return text if len(text) <= longest and len(value) <= 4 * longest else text[:longest] + ELLIPSIS
    if not isinstance(value, (dict, list, tuple)):
        return value
    # Items have equal parts, of a single one half: so the depth is limited as well.
    count = min(len(value), longest // 8)
    part, left = longest // max(2, count), len(value) - count
    if longest < 8:
        return ELLIPSIS
    if isinstance(value, dict):
        items = {brief(name, part): brief(item, part) for name, item in islice(value.items(), count)}
        return items | {ELLIPSIS: f"{left} more"} if left else items
    return [brief(item, part) for item in value[:count]] + [ELLIPSIS] * (left > 0)


def _reference(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"&#{code};" if 0 < code < 0x80 else "\ufffd"
