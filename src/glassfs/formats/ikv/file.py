"""Opening iKv documents of any form (§4, §5, §9). Raises Damaged or Refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from glassfs.content import Container, Document, Extent, Fault, Group, Member, Memory, Slice
from glassfs.errors import Refused
from glassfs.formats.ikv import text
from glassfs.formats.ikv.contents import Contents, Node
from glassfs.formats.ikv.indexed import IndexedRoot
from glassfs.formats.ikv.nodes import OBJECT, TYPE_NAMES, Body, Cursor, Marks, measure, shown
from glassfs.formats.registry import Opening

MAGIC = b"iKv"
MAGICS = tuple(MAGIC + b"%d" % version for version in range(1, 10))
KIND = ord("b")
INDEXED_ROOT = 1


def recognises(head: bytes) -> bool:
    """Return whether ``head`` starts a binary document of any version, or can only be an iKv text."""
    return head.startswith(MAGICS) or text.recognises(head)


def hint(head: bytes) -> str | None:
    """Return why a file that starts much like an iKv document is not one, or None."""
    if head[:4].lower() in (b"ikv1", b"ikv2"):
        return "starts like an iKv document, but is neither a binary nor a valid text document"
    return None


def open_ikv(opening: Opening) -> Container:
    """Open a document of any form. Raises Damaged or Refused."""
    source = opening.source
    magic = source.read(0, min(4, source.size))
    if not magic.startswith(MAGIC):
        return _open_text(opening)
    if magic not in MAGICS[:2]:
        version = magic.decode("ascii", "replace")
        raise Refused(f"has version {version}, but glassfs reads only iKv1 and iKv2", source.name)
    body = Body(source.name, source.version, partial(Extent, source))
    cursor = Cursor(body, len(magic), source.size, "header")
    known = magic[3] - ord("0")
    kind, number = cursor.u8(), cursor.u32()
    if kind != KIND:
        raise cursor.damage(f"has kind {kind}, but {KIND} ('b') is expected")
    if number != known:
        raise cursor.damage(f"has version {number} after the magic iKv{known}")
    if known == 1:
        facts = {"version": 1, "form": "binary"}
        return _open_plain(opening, body, cursor.name(), cursor.position, source.size, facts)
    return _open_indexed(opening, body, cursor)


def _open_text(opening: Opening) -> Container:
    source = opening.source
    if source.size > text.LARGEST:
        raise Refused(f"is an iKv text larger than {text.LARGEST >> 20} MiB", source.name)
    version, root_name, node = text.encode(source.read(0, source.size))
    body = Body(source.name, source.version, partial(Slice, Memory(node)))
    return _open_plain(opening, body, root_name, 0, len(node), {"version": version, "form": "text"})


def _open_plain(
    opening: Opening, body: Body, root_name: bytes, start: int, end: int, facts: dict[str, Any],
) -> Container:
    """Open a document whose root node is in ``[start, end)``."""
    cursor = Cursor(body, start, end, "root")
    tag = cursor.u8()
    marks = Marks()
    root = Node(tag, cursor.position, measure(body, tag, cursor.position, end, "root", marks))
    unused = end - root.end
    if unused:
        opening.warn(f"{unused} bytes after the root are unused")
    contents = Contents(body, opening)
    members = [
        Member((b"document",), contents.document(root_name, root, "document", marks)),
        Member((b"root",), contents.content(root_name, root, "root", marks)),
    ]

    def check() -> Iterator[Fault]:
        if unused:
            yield Fault("root", f"{unused} bytes after the root are unused")
        yield from contents.faults(root, "root")

    facts = facts | {"root_name": shown(root_name), "root_type": TYPE_NAMES[root.tag], "members": None}
    if tag == OBJECT:
        facts["members"] = cursor.varint()
    top = Group(b"", lambda: members)
    return Container("ikv", str(facts["version"] or "text"), top, [opening.source], facts, check)


def _open_indexed(opening: Opening, body: Body, cursor: Cursor) -> Container:
    flags = cursor.u32()
    if not flags & INDEXED_ROOT:
        raise cursor.damage(f"has flags {flags:#x}, without the flag for an indexed root")
    root_name = cursor.name()
    root = IndexedRoot(Contents(body, opening), cursor)
    members = [
        Member((b"document",), Document(root_name, root.value, root.cost)),
        Member((b"root",), Group(root_name, root.members)),
    ]
    facts = {
        "version": 2, "form": "binary", "root_name": shown(root_name), "root_type": "object", "members": root.count,
        "flags": flags,
    }
    top = Group(b"", lambda: members)
    return Container("ikv", "2", top, [opening.source], facts, root.faults)
