"""Cut secrets from what servers say before it becomes a message. Any thread.

A server knows the credentials that it was sent, and may repeat them in any answer: whole or in part, percent-encoded
or in base64. Names and bytes of objects are passed on unchanged.
"""

from __future__ import annotations

import html
import os
import re
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus

from glassfs.errors import GlassfsError
from glassfs.source.remote.url import shown as shown_url

PART = 8
"""So many successive characters of a secret are cut, also without the others."""
LEAST = 4
"""Shorter secrets are cut only where they are whole words."""
MOST_NOTED = 8
CUT = "…"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
# What tokens of Google and of services with JSON Web Tokens look like. obstore gets some that this process never sees.
_TOKEN = re.compile(r"\b(?:eyJ[\w-]{8,}(?:\.[\w-]+)*|ya29\.[\w.-]{8,})")
_NAME = re.compile(r"(?:^|_)(?:KEY|SECRET|TOKEN|PASSWORD|SAS)(?:_|$)(?!(?:FILE|ID|PATH|URI|URL)$)")
"""Names of environment variables that hold secrets, unlike ``AWS_ACCESS_KEY_ID``."""


class Secrets:
    """The secrets of a server: texts and bytes in ``values`` at any depth, of a URL's ``query``, and the environment's.
    """

    def __init__(self, values: Iterable[Any], query: str = "") -> None:
        in_query = [query, *(value for _, value in parse_qsl(query))]
        in_environment = [
            value for name, value in os.environ.items() if _NAME.search(name.upper()) and len(value) >= PART
        ]
        self._texts = {text for value in (*values, in_query, in_environment) for text in _texts(value) if text}
        self._noted: deque[str] = deque(maxlen=MOST_NOTED)
        self._lock = threading.Lock()
        self._built: tuple[frozenset[str], re.Pattern[str] | None] | None = None

    def note(self, *values: str | bytes | None) -> None:
        """Add secrets that became known later. Only the last ``MOST_NOTED`` are kept, as such secrets expire."""
        with self._lock:
            for text in _texts(values):
                if text and text not in self._noted:
                    self._noted.append(text)
                    self._built = None

    def cut(self, text: str) -> str:
        """Return the text without secrets, and with URLs that have neither userinfo nor query."""
        text = _TOKEN.sub(CUT, _URL.sub(lambda found: shown_url(found[0]), text))
        # A server may quote a secret in part, cut off anywhere. So each stretch of some length that a secret has in
        # common with the text is cut, in every form in which it may be written.
        parts, short = self._forms()
        folded = _folded(text)
        is_cut = bytearray(len(text))
        for start in range(len(text) - PART + 1):
            if folded[start : start + PART] in parts:
                is_cut[start : start + PART] = b"\1" * PART
        for found in short.finditer(folded) if short is not None else ():
            is_cut[found.start() : found.end()] = b"\1" * len(found[0])
        if not any(is_cut):
            return text
        return re.sub("\0+", CUT, "".join("\0" if gone else one for one, gone in zip(text, is_cut, strict=True)))

    def cut_from(self, error: GlassfsError) -> GlassfsError:
        """Return the error, or one without the secrets that are in its reason."""
        reason = self.cut(error.reason)
        return error if reason == error.reason else type(error)(reason, error.source, error.part)

    def _forms(self) -> tuple[frozenset[str], re.Pattern[str] | None]:
        """Return the parts of all long forms, and a pattern of the short ones."""
        with self._lock:
            if self._built is None:
                forms = {_folded(form) for text in (*self._texts, *self._noted) for form in _encoded(text)}
                parts = (form[at : at + PART] for form in forms for at in range(len(form) - PART + 1))
                short = sorted((form for form in forms if len(form) < PART), key=len, reverse=True)
                words = (re.escape(form) if len(form) >= LEAST else rf"\b{re.escape(form)}\b" for form in short)
                self._built = frozenset(parts), re.compile("|".join(words)) if short else None
            return self._built


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in an option, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _encoded(text: str) -> Iterator[str]:
    """Yield the forms in which an answer may have a secret."""
    yield from (text, quote(text), quote(text, safe=""), quote_plus(text), html.escape(text))
    data = text.encode("utf-8", "replace")
    for before in range(3):  # bytes in front of it, as the user's name in a Basic authorization
        bits = 8 * (before + len(data))
        form = b64encode(bytes(before) + data).decode()[-(-8 * before // 6) : bits // 6]
        if len(form) >= PART:
            yield from (form, form.translate({ord("+"): "-", ord("/"): "_"}))


def _folded(text: str) -> str:
    """Return the text in lower case where that does not change its length: names of headers lose their case."""
    return "".join(lower if len(lower := one.lower()) == 1 else one for one in text)
