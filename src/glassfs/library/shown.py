"""Describe nodes in a few words, without decoding anything. Names are escaped for terminals."""

from __future__ import annotations

from itertools import islice

from glassfs import content as contents
from glassfs.content.dtypes import STRUCTURED, Widened
from glassfs.errors import GlassfsError
from glassfs.sizes import human_size
from glassfs.terminal import printable
from glassfs.tree import Directory, File, Node

_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "M": "datetime64", "m": "timedelta64"}


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
