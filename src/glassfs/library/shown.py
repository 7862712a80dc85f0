"""Show entries in one line, and as a table in a notebook. Names are untrusted, and escaped.

Nothing is decoded for it.
"""

from __future__ import annotations

from html import escape
from itertools import islice

from glassfs import content as contents
from glassfs.errors import GlassfsError
from glassfs.sizes import human_size
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node

SHOWN_NAMES = 6
SHOWN_ROWS = 50


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
    return f"<div><b>{cell(path)}</b> {cell(description(node))}{body}</div>"


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
    if isinstance(content, contents.Array) and isinstance(content.shape, tuple) and node.name.endswith(".npy"):
        words.append(f"array {content.dtype} {content.shape}")
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
    return f"<bdi>{escape(printable(text))}</bdi>"
