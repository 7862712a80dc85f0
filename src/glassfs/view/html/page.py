"""The parts that all pages share: the frame around a body, with its style, its script and its content security policy.

The policy lets a page run only its own script and the ``data.js`` beside it, show files beside it, and open no
connection. Any thread.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import cache as cached
from importlib.resources import files

from glassfs.content import Data
from glassfs.view.html import escape

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


def frame(title: str, body: str, script: str, has_data: bool = True) -> tuple[bytes, bytes]:
    """Return a page before and after its facts, which its script reads as JSON.

    ``body`` is HTML, ``script`` the file name of a script. Without data beside it, it may run no script but its own.
    """
    # Names and texts of a container are in this page. If one were ever taken for markup, the policy still lets no
    # script run but the one with this digest, and nothing is sent anywhere.
    style, code = PARTS["page.css"], PARTS["common.js"] + PARTS[script]
    words = {
        "script": f"{_digest(code)}{BESIDE if has_data else ''}", "look": _digest(style), "style": style, "code": code,
        "title": escape.html(escape.brief(title, LONGEST_TITLE)), "body": body,
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


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
