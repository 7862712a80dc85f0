"""Pages of contents for tests, and what a browser finds in them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np

from glassfs.cache import BlockCache
from glassfs.content import Column, Content, Data, Recording, Records, Table
from glassfs.view import html
from tests.view.views import PLACE


def recording(
    record: dict[str, Any] | Exception | None = None, columns: Sequence[Column] = (), rows: int = 0,
    cameras: Sequence[Any] | Exception = (),
) -> Recording:
    """Return an episode; an exception is raised in place of its value."""
    def given(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    table = Table(b"steps", rows, lambda: given(columns))
    return Recording(b"episode", lambda: given(record or {}), table, lambda: given(cameras))


def table(records: Sequence[dict[str, Any]], directory: bytes = b"episodes", block: int = 7) -> Table:
    blocks = -(-len(records) // block)
    given = Records(b"episodes", blocks, lambda number: records[number * block : (number + 1) * block])
    names = list(records[0]) if records else []
    return Table(
        b"episodes", len(records), lambda: [Column(name.encode(), given) for name in names], given, directory,
    )


def files(content: Content, cache: BlockCache | None = None) -> dict[str, Data]:
    """Return the files that the view makes of a content, by name."""
    shown = html.show(content, cache or BlockCache(8 << 20), PLACE)  # type: ignore[arg-type]
    found = {(name or b"").decode() + suffix: thing for thing, suffix, name in shown}
    assert all(isinstance(thing, Data) for thing in found.values())
    return found  # type: ignore[return-value]


def page_of(*given: Any, **options: Any) -> Page:
    """Return the page of an episode, for what ``recording`` gets."""
    return Page(bytes(files(recording(*given, **options))["index.html"].whole()))


class Page(HTMLParser):
    """A page: its tags with their attributes, its texts by the tag that they are in, and its facts."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.texts:
            tag, text = self.texts[-1]
            self.texts[-1] = (tag, text + data)

    def handle_endtag(self, tag: str) -> None:
        self.texts.append((f"/{tag}", ""))

    def of(self, tag: str) -> list[str]:
        return [text for found, text in self.texts if found == tag]

    @property
    def facts(self) -> Any:
        scripts = self.of("script")
        return json.loads(scripts[0])


def plotted(data: bytes) -> tuple[dict[str, Any], list[np.ndarray[Any, Any] | None]]:
    """Return the facts of data.js about columns, and the points of each; None if they cannot be read."""
    text = data.decode()
    head, *lines = text.removeprefix('"use strict";\n').splitlines()
    told = json.loads(head.removeprefix("glassfs.columns(").removesuffix(");"))
    points: list[np.ndarray[Any, Any] | None] = []
    for number, (line, shown) in enumerate(zip(lines, told["columns"], strict=True)):
        match = re.fullmatch(r'glassfs\.values\((\d+), "([A-Za-z0-9+/=]*)", ([01])\);', line)
        assert match is not None and int(match[1]) == number
        values = np.frombuffer(base64.b64decode(match[2]), f"<{shown['type']}")
        assert values.size == shown["channels"] * shown["points"]
        points.append(values.reshape(shown["channels"], -1) if match[3] == "1" else None)
    return told, points


def listed(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the rows of a list and the facts about them, from data.js or from a page that contains them."""
    text = data.decode()
    if text.startswith("<!DOCTYPE html>"):
        found = Page(data).facts
    else:
        found = json.loads(text.removeprefix('"use strict";\nglassfs.rows(').removesuffix(");\n"))
    *rows, end = found["rows"]
    assert end is None
    return rows, found["facts"]
