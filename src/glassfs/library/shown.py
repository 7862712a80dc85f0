"""Show entries in one line, and in a notebook: directories as tables, videos to play, JSON. All text is escaped.

A line decodes nothing, a notebook at most the beginning of a file, or a video that is embedded as a whole.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from itertools import islice

from glassfs import content as contents
from glassfs.errors import GlassfsError
from glassfs.library.stream import bytes_of
from glassfs.sizes import human_size
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node

SHOWN_NAMES = 6
SHOWN_ROWS = 50
LARGEST_MEDIA = 16 << 20
"""Bytes of a video or an image that a notebook embeds."""
LARGEST_JSON = 64 << 10
"""Bytes of a JSON document that is indented; of a larger one the beginning is shown as stored."""
SHOWN_LINES, SHOWN_CHARACTERS = 10, 4000
"""Limits of JSON lines, and of characters of JSON."""


def line(kind: str, path: str, node: Node | None) -> str:
    words = [f"glassfs.{kind}", repr(printable(path)), description(node)]
    return f"<{' '.join(filter(None, words))}>"


def page(path: str, node: Node | None) -> str:
    rows = ""
    if isinstance(node, Directory):
        try:
            some = list(islice(node.names(), SHOWN_ROWS + 1))
            rows = "".join(_row(node, name) for name in some[:SHOWN_ROWS])
            if len(some) > SHOWN_ROWS:
                rows += '<tr><td colspan="2">…</td></tr>'
        except GlassfsError as error:
            rows = f"<tr><td>{cell(str(error))}</td></tr>"
    body = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    if isinstance(node, File):
        try:
            body = _preview(node)
        except GlassfsError as error:
            body = f"<p>{cell(str(error))}</p>"
    return f"<div><b>{cell(path)}</b> {cell(description(node))}{body}</div>"


def _preview(file: File) -> str:
    """Return a video to play, or the beginning of JSON; "" for other files."""
    if file.name.endswith(".mp4"):
        if file.size > LARGEST_MEDIA:
            how = "write <code>bytes()</code> to a file to play it, or show frames: <code>entry[0]</code>"
            return f"<p>This video of {human_size(file.size)} is too large for a notebook; {how}.</p>"
        data = b2a_base64(bytes_of(file), newline=False).decode()
        return f'<video controls style="max-width: 100%" src="data:video/mp4;base64,{data}"></video>'
    found = None
    if file.name.endswith(".json"):
        found = _indented(file)
    elif file.name.endswith(".jsonl"):
        found = _first_lines(file)
    if found is None:
        return ""
    shown = found if len(found) <= SHOWN_CHARACTERS else f"{found[:SHOWN_CHARACTERS]}\n…"
    return f"<pre>{chr(10).join(map(cell, shown.splitlines()))}</pre>"


def _indented(file: File) -> str:
    size = file.size
    text = bytes_of(file, 0, min(size, LARGEST_JSON)).decode("utf-8", "replace")
    if size > LARGEST_JSON:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _first_lines(file: File) -> str | None:
    """Return the first JSON lines, or None if reading them takes a pass over the data."""
    content = file.content
    if isinstance(content, contents.Table):
        content = content.records
    if isinstance(content, contents.Records):
        if not content.blocks:
            return ""
        with file.origin.services.cache.reserved(content.cost(0)):
            rows = content.block(0)[:SHOWN_LINES]
            return "\n".join(json.dumps(row, ensure_ascii=False)[:SHOWN_CHARACTERS] for row in rows)
    if not file.data.is_sized:
        return None
    start = bytes_of(file, 0, min(file.size, SHOWN_CHARACTERS)).decode("utf-8", "replace")
    return "\n".join(start.split("\n")[:SHOWN_LINES])


def description(node: Node | None) -> str:
    """Describe a node in a few words."""
    if node is None:
        return "cannot be opened now"
    if isinstance(node, Directory):
        try:
            names = [printable(name) for name in islice(node.names(), SHOWN_NAMES + 1)]
        except GlassfsError as error:
            return printable(str(error))
        more = ["…"] if len(names) > SHOWN_NAMES else []
        return f"directory: {', '.join(names[:SHOWN_NAMES] + more)}" if names else "directory, empty"
    if not isinstance(node, File):
        return "link"
    words = []
    content = node.content
    if isinstance(content, contents.Array) and content.known_shape is not None and node.name.endswith(".npy"):
        words.append(f"array {printable(content.stored.dtype)} {content.shape}")
    elif isinstance(content, contents.Image):
        words.append(f"image {content.width} × {content.height}")
    elif isinstance(content, contents.Table):
        words.append(f"table of {content.rows} rows")
    elif isinstance(content, contents.Scalar):
        words.append(repr(content.value))
    if node.data.is_sized:
        words.append(f"{human_size(node.data.size)} bytes" if node.data.size < 1024 else human_size(node.data.size))
    return ", ".join(words)


def _row(directory: Directory, name: str) -> str:
    try:
        node = directory.child(name)
        what = "directory" if isinstance(node, Directory) else description(node)
    except GlassfsError as error:
        what = str(error)
    return f"<tr><td>{cell(name)}</td><td>{cell(what)}</td></tr>"


def cell(text: str) -> str:
    from html import escape  # only notebooks need it

    return f"<bdi>{escape(printable(text))}</bdi>"
