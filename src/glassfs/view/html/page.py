"""What all pages share: the frame around a body, with style, script and content security policy, and escaped text.

The policy lets a page run only its own script and the ``data.js`` beside it, show files beside it, and open no
connection. Untrusted text is escaped as HTML, as JSON inside a script, and as an address; NUL and code points that are
not Unicode characters become U+FFFD. Any thread.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import cache as cached
from importlib.resources import files
from itertools import islice
from typing import Any
from urllib.parse import quote

from glassfs.content import Data
from glassfs.names import component
from glassfs.view import json

NAME, SUFFIX = b"index", ".html"
DATA_NAME, DATA_SUFFIX = b"data", ".js"
BUDGET = 1 << 20
"""Characters of a part of a page, such as its rows of metadata or its notes. What is more is left out."""
LONGEST_TITLE, LONGEST_TEXT = 200, 4000
BESIDE = " 'self' file:"
"""Sources of files beside a page, in the syntax of the policy."""
# The files that are embedded in pages, read now: later the package may have been upgraded or removed.
PARTS = {
    file.name: file.read_text(encoding="utf-8") for file in files(__package__ or "").iterdir()
    if file.name.endswith((".css", ".html", ".js"))
}
LARGEST_NUMBER = (1 << 53) - 1
"""The largest integer that scripts have without loss; larger ones become text."""
ELLIPSIS = "…"

_SPECIAL = re.compile("[\x00\r&<>\"'`\ud800-\udfff]")
_IN_SCRIPTS = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"),
               ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))


def frame(title: str, body: str, script: str, has_data: bool = True) -> tuple[bytes, bytes]:
    """Return a page before and after its facts, which its script reads as JSON.

    ``body`` is HTML, ``script`` the file name of a script. Without data beside it, it may run no script but its own.
    """
    # Names and texts of a container are in this page. If one were ever taken for markup, the policy still lets no
    # script run but the one with this digest, and nothing is sent anywhere.
    style, code = PARTS["page.css"], PARTS["common.js"] + PARTS[script]
    words = {
        "script": f"{digest(code)}{BESIDE if has_data else ''}", "look": digest(style), "style": style, "code": code,
        "title": html(brief(title, LONGEST_TITLE)), "body": body,
        "data": f'<script src="{DATA_NAME.decode()}{DATA_SUFFIX}" defer></script>\n' if has_data else "",
    }
    before, after = (text.format(**words).encode() for text in PARTS["frame.html"].split("FACTS"))
    return before, after


def fitting(texts: Iterable[str]) -> Iterator[str]:
    """Yield the first texts, as many as fit into a part of a page."""
    left = BUDGET
    for text in texts:
        left -= len(text)
        if left < 0:
            return
        yield text


class Deferred(Data):
    """The bytes of the data that ``find`` returns, called when they are first needed."""

    def __init__(self, find: Callable[[], Data]) -> None:
        self._found = cached(find)

    @property
    def size(self) -> int:
        return self._found().size

    @property
    def is_sized(self) -> bool:
        return False

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self._found().read_into(buffer, offset)


def digest(text: str) -> str:
    """Return the source that lets a policy allow this style or script alone."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
