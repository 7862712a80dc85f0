"""iKv documents (``.ikv``): a named tree of values, in the binary forms iKv1 and iKv2 or as text. Any thread.

This module opens documents of any form (§4, §5, §9). ``nodes`` checks nodes, ``contents`` makes contents of them and
reads the root of iKv2 through its index. ``text`` converts the text form to the binary one.

Documents in iKv1 or text are checked whole on opening and refused if anything is wrong. Of iKv2, only header and index
are checked; an entry with a bad payload is shown as a Blob and left out of the whole document. Of members with equal
keys the last one counts. Facts: docs/formats/ikv.md; § in this package cites its sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from glassfs.content import Container, Document, Fault, Group, Member
from glassfs.errors import Refused
from glassfs.formats.ikv import text
from glassfs.formats.ikv.contents import Contents, IndexedRoot
from glassfs.formats.ikv.nodes import OBJECT, TYPE_NAMES, ConvertedText, NodeReader, shown
from glassfs.formats.registry import Format, Head, Opening
from glassfs.source import Source

MAGIC = b"iKv"
MAGICS = tuple(MAGIC + b"%d" % version for version in range(1, 10))


def recognises(head: Head) -> bool:
    """Return whether ``head`` starts a binary document of any version, or a text."""
    return head.startswith(MAGICS) or text.recognises(head)


def open_ikv(opening: Opening) -> Container:
    """Open a document of any form. Raises Damaged or Refused."""
    source = opening.source
    magic = source.read(0, min(4, source.size))
    if not magic.startswith(MAGIC):
        return _open_text(opening)
    if magic not in MAGICS[:2]:
        version = magic.decode("ascii", "replace")
        raise Refused(f"has version {version}, but glassfs reads only iKv1 and iKv2", source.name)
    fields = NodeReader(source, len(magic), source.size, "header")
    known = magic[3] - ord("0")
    kind, number = fields.unpack("<BI")
    if kind != ord("b"):
        raise fields.damage(f"has kind {kind}, but {ord('b')} ('b') is expected")
    if number != known:
        raise fields.damage(f"has version {number} after the magic iKv{known}")
    if known == 1:
        return _open_plain(opening, source, fields.name(), fields.position, {"version": 1, "form": "binary"})
    return _open_indexed(opening, fields)


def _open_text(opening: Opening) -> Container:
    source = opening.source
    # Parsing needs the text, its nodes, and for each item of an array, of two bytes or more, where it ends.
    opening.allowance.part().take(6 * source.size, "the text and its nodes")
    version, root_name, node = text.encode(source.read(0, source.size))
    opening.allowance.take(len(node), "nodes")
    return _open_plain(opening, ConvertedText(source, node), root_name, 0, {"version": version, "form": "text"})


def _open_plain(
    opening: Opening, source: Source, root_name: bytes, start: int, facts: dict[str, Any],
) -> Container:
    """Open a document whose root node is from ``start`` on in ``source``."""
    fields = NodeReader(source, start, source.size, "root")
    root = fields.span(fields.u8())
    unused = source.size - root.end
    if unused:
        opening.warn(f"{unused} bytes after the root are unused")
    contents = Contents(source, opening)
    members = [
        Member((b"document",), contents.document(root_name, root, "document")),
        Member((b"root",), contents.content(root_name, root, "root")),
    ]

    def check() -> Iterator[Fault]:
        if unused:
            yield Fault("root", f"{unused} bytes after the root are unused")
        yield from contents.faults(root, "root")

    count = NodeReader(source, root.start, root.end, "root").varint() if root.tag == OBJECT else None
    facts = facts | {"root_name": shown(root_name), "root_type": TYPE_NAMES[root.tag], "members": count}
    version = str(facts["version"] or "text")
    return Container("ikv", version, Group(b"", lambda: members), [opening.source], facts, check)


def _open_indexed(opening: Opening, fields: NodeReader) -> Container:
    (flags,) = fields.unpack("<I")
    if not flags & 1:
        raise fields.damage(f"has flags {flags:#x}, without the flag for an indexed root")
    root_name = fields.name()
    root = IndexedRoot(Contents(opening.source, opening), fields)
    members = [
        Member((b"document",), Document(root_name, root.value, root.cost)),
        Member((b"root",), Group(root_name, root.members)),
    ]
    facts = {
        "version": 2, "form": "binary", "root_name": shown(root_name), "root_type": "object", "members": root.count,
        "flags": flags,
    }
    return Container("ikv", "2", Group(b"", lambda: members), [opening.source], facts, root.faults)


FORMAT = Format("ikv", recognises, open_ikv)
