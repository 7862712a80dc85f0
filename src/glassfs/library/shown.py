"""Show entries in one line, and in a notebook: directories as tables, videos, images, JSON. All text is escaped.

A line decodes nothing, a notebook at most the beginning of a file, or a video or an image that is embedded as a whole.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from contextlib import suppress
from itertools import islice

from glassfs import content as contents
from glassfs.content.dtypes import STRUCTURED, Widened
from glassfs.content.rows import of_records
from glassfs.errors import GlassfsError
from glassfs.library.stream import bytes_of
from glassfs.sizes import human_size
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node

_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "M": "datetime64", "m": "timedelta64"}
LARGEST_MEDIA = 16 << 20
"""Bytes of a video or an image that a notebook embeds."""
MEDIA = {
    ".mp4": 'video controls style="max-width: 100%" src="data:video/mp4', ".png": 'img src="data:image/png',
    ".jpg": 'img src="data:image/jpeg',
}
SHOWN = 4000
"""Characters of JSON that a notebook shows."""


def line(kind: str, path: str, node: Node | None) -> str:
    words = [f"glassfs.{kind}", repr(printable(path)), description(node)]
    return f"<{' '.join(filter(None, words))}>"


def page(path: str, node: Node | None) -> str:
    rows = ""
    if isinstance(node, Directory):
        try:
            some = list(islice(node.names(), 51))
            rows = "".join(_row(node, name) for name in some[:50])
            if len(some) > 50:
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
    """Return a video to play, an image, or the beginning of JSON; "" for other files."""
    element = MEDIA.get(file.name[-4:])
    if element is not None:
        if file.size > LARGEST_MEDIA:
            return f"<p>{human_size(file.size)} are too much for a notebook: write <code>bytes()</code> to a file.</p>"
        return f'<{element};base64,{b2a_base64(bytes_of(file), newline=False).decode()}">'
    if file.name.endswith((".json", ".jsonl")):
        text = _beginning(file)
        text = text if len(text) <= SHOWN else f"{text[:SHOWN]}\n…"
        return f"<pre>{chr(10).join(map(cell, text.splitlines()))}</pre>" if text else ""
    return ""


def _beginning(file: File) -> str:
    """Return a document, indented unless it is cut, or the first ten JSON lines; "" if those take a pass over the file.
    """
    is_lines = file.name.endswith(".jsonl")
    if is_lines and isinstance(file.content, contents.Records):
        return "\n".join(json.dumps(row, ensure_ascii=False)[:SHOWN] for row in islice(of_records(file.content), 10))
    if is_lines and not file.data.is_sized:
        return ""
    text = bytes_of(file, 0, 64 << 10).decode("utf-8", "replace")
    if is_lines:
        return "\n".join(text.split("\n")[:10])
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return text


def description(node: Node | None) -> str:
    """Describe a node in a few words."""
    if node is None:
        return "cannot be opened now"
    if isinstance(node, Directory):
        try:
            names = [printable(name) for name in islice(node.names(), 7)]
        except GlassfsError as error:
            return printable(str(error))
        more = ["…"] if len(names) > 6 else []
        return f"directory: {', '.join(names[:6] + more)}" if names else "directory, empty"
    if not isinstance(node, File):
        return "link"
    content = node.content
    if isinstance(content, contents.Table):
        return f"table of {content.rows} rows"
    if isinstance(content, contents.Scalar):
        return repr(content.value)
    size = f"{human_size(node.data.size)} bytes" if node.data.is_sized else ""
    return ", ".join(filter(None, (described(node), size)))


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


def described(node: Node) -> str:
    """Return type and shape of an array or raw image, as ``float32 [300, 7]``; empty if that needs reading blocks.

    Of an array whose items are stored as narrower ones, their type and size follow: ``(stored as BF16, 4.1K)``.
    """
    content = node.content if isinstance(node, File) else None
    if isinstance(content, contents.Array) and content.known_shape is not None:
        shown = f"{type_name(content.dtype)} {list(content.known_shape)}"
        location = content.data.location() if isinstance(content.data, Widened) else None
        return f"{shown} (stored as {content.type_name}, {human_size(location.stored)})" if location else shown
    if isinstance(content, contents.Undecoded):
        return f"{content.type_name} {list(content.shape)}"
    if isinstance(content, contents.Image):
        shape = [content.height, content.width, content.channels]
        return f"uint{content.bits} {shape[:2] if content.channels == 1 else shape}"
    return ""


def type_name(descr: str) -> str:
    """Return NumPy's name of a descr string; importing NumPy takes longer than a listing."""
    if descr.startswith(STRUCTURED):
        return "struct"
    kind, size = descr[1], descr[2:]
    if kind == "b":
        return "bool"
    if kind in "Mm":
        return f"{_KINDS[kind]}{size[1:]}"
    return f"{_KINDS[kind]}{int(size) * 8}" if kind in _KINDS and size.isdigit() else descr
