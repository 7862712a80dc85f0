"""iKv documents: the binary forms iKv1 and iKv2, and the text form read as if it were iKv1 (formats/ikv.md).

An iKv1 document is measured whole when it is opened, and refused if anything in it is wrong. Of an iKv2 document header
and index are checked then; its entries are measured when somebody looks into the root, and a bad one costs itself only:
it is shown as a Blob, and left out of the document as a whole. Any thread.

Every object is a group, listed when somebody looks inside; every array is one content. Of members with the same key
the last one counts. More than MOST_MEMBERS members are not listed, as each takes memory; the document has them all.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from glassfs.cache import BlockCache
from glassfs.content import (
    Array,
    Blob,
    Container,
    Content,
    Converted,
    Document,
    Extent,
    Fault,
    Group,
    Member,
    Memory,
    Null,
    Scalar,
    Slice,
    Text,
)
from glassfs.errors import Damaged, Refused
from glassfs.formats import ikv_text
from glassfs.formats.ikv_nodes import (
    ARRAY,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    MOST_KEYS_COMPARED,
    NULL,
    OBJECT,
    SMALL,
    STRING,
    TYPE_NAMES,
    Body,
    Cursor,
    Decoder,
    Integers,
    Marks,
    measure,
    repeated_keys,
    shown,
)
from glassfs.formats.registry import Format
from glassfs.source import Source

log = logging.getLogger(__name__)

MAGIC = b"iKv"
KIND = ord("b")
INDEXED_ROOT = 1
MOST_MEMBERS = 250_000
MOST_NAME_BYTES = 64 << 20
MOST_RANGES_COMPARED = 1 << 24

_ENTRY = struct.Struct("<BII")
_ENTRIES_AT_ONCE = 4096
_FIXED_SIZES = {NULL: 0, DOUBLE: 8, BOOLEAN: 1}
_TRUTH = b"\0" + b"\1" * 255

Value = TypeVar("Value")


class Node(NamedTuple):
    """A node's type, and where its payload starts and ends."""

    tag: int
    start: int
    end: int


def recognises(head: bytes) -> bool:
    """True for a binary document of any version, and for what can only be an iKv text."""
    return (head.startswith(MAGIC) and head[3:4].isdigit()) or ikv_text.recognises(head)


def hint(head: bytes) -> str | None:
    """Why a file that starts much like an iKv document is none."""
    if head[:4].lower() in (b"ikv1", b"ikv2"):
        return "starts like an iKv document, but is neither a binary one nor text that can be read as one"
    return None


def open_ikv(source: Source, cache: BlockCache) -> Container:
    """Opens any form. Raises Damaged or Refused."""
    magic = source.read(0, min(4, source.size))
    if not magic.startswith(MAGIC):
        return _open_text(source, cache)
    if magic not in (b"iKv1", b"iKv2"):
        raise Refused(source.name, f"is {magic.decode('latin-1')}, a newer version than those known (iKv1, iKv2)")
    body = Body(source.name, source.identity, partial(Extent, source))
    cursor = Cursor(body, len(magic), source.size, "header")
    version = magic[3] - ord("0")
    kind, number = cursor.u8(), cursor.u32()
    if kind != KIND:
        raise cursor.damage(f"has the kind {kind}, expected is {KIND} ('b')")
    if number != version:
        raise cursor.damage(f"has the version {number} after the magic iKv{version}")
    if version == 1:
        facts = {"version": 1, "form": "binary"}
        return _open_plain(source, cache, body, cursor.name(), cursor.position, source.size, facts)
    return _open_indexed(source, cache, body, cursor)


def _open_text(source: Source, cache: BlockCache) -> Container:
    if source.size > ikv_text.LARGEST:
        raise Refused(source.name, f"is an iKv text of more than {ikv_text.LARGEST >> 20} MiB")
    document = ikv_text.encode(source.read(0, source.size), source.name)
    body = Body(source.name, (*source.identity, "text"), partial(Slice, Memory(document.node)))
    facts = {"version": document.version, "form": "text"}
    return _open_plain(source, cache, body, document.root_name, 0, len(document.node), facts)


def _open_plain(
    source: Source, cache: BlockCache, body: Body, root_name: bytes, start: int, end: int, facts: dict[str, Any],
) -> Container:
    """A document whose root node stands in ``[start, end)``."""
    cursor = Cursor(body, start, end, "root")
    tag = cursor.u8()
    marks = Marks()
    root = Node(tag, cursor.position, measure(body, tag, cursor.position, end, "root", marks))
    unused = end - root.end
    if unused:
        log.warning("%s: %d bytes after the root are not used", source.name, unused)
    contents = _Contents(body, cache)
    members = [
        Member((b"document",), contents.document(root_name, root, "document")),
        Member((b"root",), contents.content(root_name, root, "root", marks)),
    ]

    def check() -> Iterator[Fault]:
        if unused:
            yield Fault("root", f"{unused} bytes after the root are not used")
        yield from contents.faults(root, "root")

    facts = facts | {"root_name": shown(root_name), "root_type": TYPE_NAMES[root.tag], "members": None}
    if tag == OBJECT:
        facts["members"] = cursor.varint()
    top = Group(b"", lambda: members, subgroups=int(tag == OBJECT))
    return Container("ikv", str(facts["version"]), top, [source], facts, check)


def _open_indexed(source: Source, cache: BlockCache, body: Body, cursor: Cursor) -> Container:
    flags = cursor.u32()
    if not flags & INDEXED_ROOT:
        raise cursor.damage(f"has the flags {flags:#x}, without the one for an indexed root")
    root_name = cursor.name()
    index = _Index(body, cursor)
    root = _IndexedRoot(_Contents(body, cache), index)
    members = [
        Member((b"document",), Document(root_name, root.value, (*body.identity, "document"))),
        Member((b"root",), Group(root_name, root.members, None if index.count else 0, _unlisted(index.count))),
    ]
    facts = {
        "version": 2, "form": "binary", "root_name": shown(root_name), "root_type": "object", "members": index.count,
        "flags": flags,
    }
    top = Group(b"", lambda: members, subgroups=1)
    return Container("ikv", "2", top, [source], facts, lambda: chain(index.faults(), root.faults()))


class _Contents:
    """Makes the contents of nodes that were measured."""

    def __init__(self, body: Body, cache: BlockCache) -> None:
        self.body = body
        self._cache = cache

    def content(self, key: bytes, node: Node, what: str, marks: Marks | None) -> Content:
        """``marks`` are those that were made when the node, or one around it, was measured."""
        tag, start, end = node
        if tag == NULL:
            return Null(key)
        cursor = Cursor(self.body, start, end, what, window=16)
        if tag == STRING:
            size = cursor.varint()
            return Text(key, self.body.part(cursor.position, size))
        if tag == INTEGER:
            return Scalar(key, cursor.integer())
        if tag == DOUBLE:
            return Scalar(key, struct.unpack("<d", cursor.take(8))[0])
        if tag == BOOLEAN:
            return Scalar(key, cursor.u8() != 0)
        if tag == OBJECT:
            count = cursor.varint()
            return Group(key, partial(self.members, node, what, marks), None if count else 0, _unlisted(count))
        element, count = cursor.u8(), cursor.varint()
        items = cursor.position
        if element == INTEGER:
            return Array(key, Integers(self.body, self._cache, items, end, count), "<i8", (count,), "integer")
        if element == DOUBLE:
            return Array(key, self.body.part(items, 8 * count), "<f8", (count,), "double")
        if element == BOOLEAN:
            truth = Converted(self.body.part(items, count), 1, 1, count, lambda raw: raw.translate(_TRUTH))
            return Array(key, truth, "|b1", (count,), "boolean")
        return self.document(key, node, what)

    def document(self, key: bytes, node: Node, what: str) -> Document:
        def value() -> Any:
            return Decoder(self.body, what).value(*node)

        return Document(key, value, (*self.body.identity, *node))

    def members(self, node: Node, what: str, marks: Marks | None) -> Iterator[Member]:
        """The members of an object."""
        found = _last_of_each(self._members(node, what, marks), f"{self.body.name}: {what}")
        for key, member in found.items():
            yield Member((key,), self.content(key, member, f"{what}/{shown(key)}", marks))

    def faults(self, node: Node, what: str) -> Iterator[Fault]:
        """What is wrong below a node, except that it cannot be read."""
        cursor = Cursor(self.body, node.start, node.end, what, window=64 << 10)
        for place, repeats, first in repeated_keys(cursor, node.tag, what):
            yield Fault(place, _repeated(repeats, first))

    def _members(self, node: Node, what: str, marks: Marks | None) -> Iterator[tuple[bytes, Node]]:
        cursor = Cursor(self.body, node.start, node.end, what, window=16 << 10)
        for _ in range(cursor.count(2)):
            key, tag, start = cursor.name(), cursor.u8(), cursor.position
            if tag in _FIXED_SIZES:
                cursor.skip(_FIXED_SIZES[tag])
            elif tag == STRING:
                cursor.skip(cursor.varint())
            elif tag == INTEGER:
                cursor.integer()
            else:
                end = marks.end_of(start) if marks else None
                cursor.go_to(measure(self.body, tag, start, node.end, what) if end is None else end)
            yield key, Node(tag, start, cursor.position)


class _Index:
    """The keys and entries of an iKv2 document. They stay in the file and are read again by whoever needs them."""

    def __init__(self, body: Body, cursor: Cursor) -> None:
        """``cursor`` stands at the number of entries. Raises Damaged where any key or entry is wrong."""
        self.body = body
        self.size = cursor.end
        cursor.what = "index"
        self.count = cursor.count(1 + _ENTRY.size)
        self._keys = cursor.position
        for _ in range(self.count):
            cursor.skip_name()
        self._entries = cursor.position
        cursor.skip(self.count * _ENTRY.size)
        self._end = cursor.position
        for number, (tag, offset, end) in enumerate(self._nodes()):
            if tag >= len(TYPE_NAMES):
                raise cursor.damage(f"has an entry of unknown type {tag} (number {number})")
            if end > self.size:
                raise cursor.damage(f"has an entry that ends at {end}, outside the file (number {number})")
            if offset < self._end and offset != end:
                raise cursor.damage(f"has an entry at {offset}, before the payloads begin (number {number})")

    def entries(self) -> Iterator[tuple[bytes, Node]]:
        keys = Cursor(self.body, self._keys, self._entries, "index", window=64 << 10)
        return ((keys.name(), node) for node in self._nodes())

    def faults(self) -> Iterator[Fault]:
        """Keys that stand in it twice, and bytes of the file that belong to no entry or to several."""
        seen: set[bytes] = set()
        repeats, first = 0, b""
        for key, _ in self.entries():
            if key in seen:
                repeats, first = repeats + 1, first if repeats else key
            elif len(seen) < MOST_KEYS_COMPARED:
                seen.add(key)
        if repeats:
            yield Fault("root", _repeated(repeats, first))
        if self.count > MOST_RANGES_COMPARED:
            return
        import numpy as np

        ranges = np.fromiter((node.start << 32 | node.end - node.start for _, node in self.entries()), np.uint64)
        ranges = np.sort(ranges[ranges & np.uint64(0xFFFFFFFF) > 0])
        starts = (ranges >> np.uint64(32)).astype(np.int64)
        ends = starts + (ranges & np.uint64(0xFFFFFFFF)).astype(np.int64)
        before = np.concatenate(([self._end], np.maximum.accumulate(ends)))
        gaps = np.concatenate((starts, [self.size])) - before
        if (gaps[:-1] < 0).any():
            yield Fault("root", f"{(gaps[:-1] < 0).sum()} entries share bytes with others")
        if (gaps > 0).any():
            yield Fault("root", f"{gaps[gaps > 0].sum()} bytes between or after the payloads are not used")

    def _nodes(self) -> Iterator[Node]:
        at_once = _ENTRY.size * _ENTRIES_AT_ONCE
        for position in range(self._entries, self._end, at_once):
            packed = self.body.part(position, min(at_once, self._end - position)).whole()
            for tag, offset, size in _ENTRY.iter_unpack(packed):
                yield Node(tag, offset, offset + size)


class _IndexedRoot:
    """The root object of an iKv2 document."""

    def __init__(self, contents: _Contents, index: _Index) -> None:
        self._contents = contents
        self._body = contents.body
        self._index = index
        self._verdicts: dict[Node, Marks | str] = {}
        # Ranges may overlap: without a bound, measuring them all could cost as much as the file's size squared.
        self._left_to_measure = 4 * index.size + (1 << 20)
        self._is_told = False

    def members(self) -> Iterator[Member]:
        """The entries; one whose payload is bad as a Blob."""
        bad = []
        for key, node in _last_of_each(self._index.entries(), f"{self._body.name}: root").items():
            what = f"root/{shown(key)}"
            try:
                yield Member((key,), self._contents.content(key, node, what, self._measured(node, what)))
            except Damaged as error:
                bad.append(str(error))
                yield Member((key,), Blob(key, self._body.part(node.start, node.end - node.start)))
        if bad and not self._is_told:
            self._is_told = True
            log.warning("%s (entries that are bad: %d)", bad[0], len(bad))

    def value(self) -> dict[str | bytes, Any]:
        """The document without its bad entries."""
        decoder = Decoder(self._body, "document")
        found: dict[str | bytes, Any] = {}
        known: dict[Node, tuple[Any, int]] = {}
        for raw, node in self._index.entries():
            key = decoder.key(raw)
            try:
                self._measured(node, f"root/{shown(raw)}")
            except Damaged:
                found.pop(key, None)
                continue
            value, rendered = known.get(node, (None, -1))
            if rendered < 0:
                before = decoder.rendered
                value = decoder.value(*node, depth=1)
                if node.tag in (OBJECT, ARRAY):
                    known[node] = value, decoder.rendered - before
            decoder.spend(len(raw) + 9 + max(rendered, 0), 100)
            found[key] = value
        return found

    def faults(self) -> Iterator[Fault]:
        """Bad entries, and what is wrong in the others."""
        seen: set[Node] = set()
        for key, node in self._index.entries():
            what = f"root/{shown(key)}"
            try:
                self._measured(node, what)
            except Damaged as error:
                yield Fault(what, str(error).removeprefix(f"{self._body.name}: {what} "))
            else:
                if node.tag in (OBJECT, ARRAY) and node not in seen:
                    seen.add(node)
                    yield from self._contents.faults(node, what)

    def _measured(self, node: Node, what: str) -> Marks | None:
        """The marks of an entry, of which there may be none. Raises Damaged if its payload is bad."""
        if node.tag not in (OBJECT, ARRAY) or node.end - node.start < SMALL:
            self._measure(node, what, None)
            return None
        verdict = self._verdicts.get(node)
        if verdict is None:
            verdict = self._verdicts[node] = self._verdict(node, what)
        if isinstance(verdict, str):
            raise Damaged(f"{self._body.name}: {what} {verdict}")
        return verdict

    def _verdict(self, node: Node, what: str) -> Marks | str:
        """The marks of a larger object or array, or what is wrong with it."""
        size = node.end - node.start
        if size > self._left_to_measure:
            return "shares bytes with too many other entries to be checked"
        self._left_to_measure -= size
        marks = Marks()
        try:
            self._measure(node, what, marks)
        except Damaged as error:
            return str(error).removeprefix(f"{self._body.name}: {what} ")
        return marks

    def _measure(self, node: Node, what: str, marks: Marks | None) -> None:
        tag, start, end = node
        if tag in _FIXED_SIZES:
            found = start + _FIXED_SIZES[tag]
        else:
            found = measure(self._body, tag, start, end, what, marks, around=1)
        if found != end:
            raise Damaged(f"{self._body.name}: {what} has {end - start} bytes, but its value {found - start}")


def _last_of_each(pairs: Iterable[tuple[bytes, Value]], what: str) -> dict[bytes, Value]:
    """The last value of each key, as far as there is room for keys."""
    found: dict[bytes, Value] = {}
    room, left_out = MOST_NAME_BYTES, 0
    for key, value in pairs:
        if key not in found:
            room -= len(key)
            if room < 0 or len(found) >= MOST_MEMBERS:
                left_out += 1
                continue
        found[key] = value
    if left_out:
        log.warning("%s has too many members to list them all: %d are left out", what, left_out)
    return found


def _unlisted(count: int) -> str | None:
    return f"only {MOST_MEMBERS} of {count} members are listed" if count > MOST_MEMBERS else None


def _repeated(repeats: int, first: bytes) -> str:
    return f"the key {shown(first)!r} stands there more than once, the last one counts ({repeats} such repeats)"


FORMAT = Format("ikv", recognises, open_ikv, hint)
