"""The root of an iKv2 document: an index of keys and entries, with payloads anywhere behind it (§5).

Opening checks the index; listing the root or reading the whole document checks the payloads. Any thread may use this
module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from glassfs.content import Blob, Content, Fault, Member
from glassfs.errors import Damaged
from glassfs.formats.ikv.contents import FIXED_SIZES, Contents, Node
from glassfs.formats.ikv.nodes import ARRAY, OBJECT, SMALL, TYPE_NAMES, Cursor, Marks, measure, shown
from glassfs.formats.ikv.values import Decoder, Repeats, cost

MOST_RANGES_COMPARED = 1 << 24

_ENTRY = struct.Struct("<BII")
_ENTRIES_AT_ONCE = 4096


class IndexedRoot:
    """The root object of an iKv2 document. Keys and entries stay in the file and are read again on each use."""

    def __init__(self, contents: Contents, cursor: Cursor) -> None:
        """Read the index; ``cursor`` must be at the number of entries. Raises Damaged for any bad key or entry."""
        self._contents = contents
        self._body = contents.body
        self._size = cursor.end
        cursor.what = "index"
        self.count = cursor.count(1 + _ENTRY.size)
        self._keys = cursor.position
        for _ in range(self.count):
            cursor.skip_name()
        self._entries = cursor.position
        cursor.skip(self.count * _ENTRY.size)
        self._end = cursor.position
        # The size of the index and all payloads; payloads shared by entries count once per entry.
        self._stored = self._end - self._keys
        for number, (tag, offset, end) in enumerate(self._nodes()):
            if tag >= len(TYPE_NAMES):
                raise cursor.damage(f"has an entry of unknown type {tag} (number {number})")
            if end > self._size:
                raise cursor.damage(f"has an entry that ends at {end}, outside the file (number {number})")
            if offset < self._end and offset != end:
                raise cursor.damage(f"has an entry at {offset}, before the payloads (number {number})")
            self._stored += end - offset
        self._verdicts: dict[Node, Marks | str] = {}
        # Payloads may overlap: without a limit, measuring all could take quadratic time.
        self._left_to_measure = 4 * self._size + (1 << 20)
        self._has_warned = False

    def members(self) -> Iterator[Member]:
        """Yield the entries; entries with bad payloads become Blobs."""
        first, bad = None, 0
        found, omitted = self._contents.last_of_each(self._named_nodes())
        for key, node in found.items():
            what = f"root/{shown(key)}"
            content: Content
            try:
                marks = self._measured(node, what) if node.tag in (OBJECT, ARRAY) else None
                content = self._contents.content(key, node, what, marks)
            except Damaged as error:
                first, bad = first or (error.reason, error.part), bad + 1
                content = Blob(key, self._body.part(node.start, node.end - node.start))
            yield Member((key,), content)
        yield from omitted
        if first is not None and not self._has_warned:
            self._has_warned = True
            self._contents.opening.warn(f"{first[0]} (bad entries: {bad})", first[1])

    @property
    def cost(self) -> int:
        """The memory that ``value`` and its text may take."""
        return cost(self._stored)

    def value(self) -> dict[str | bytes, Any]:
        """Return the document without its bad entries."""
        decoder = Decoder(self._body, "document")
        found: dict[str | bytes, Any] = {}
        known: dict[Node, tuple[Any, int]] = {}  # values of larger payloads, which entries may share
        for raw, node in self._named_nodes():
            key = decoder.key(raw)
            found.pop(key, None)
            try:
                self._measured(node, f"root/{shown(raw)}")
            except Damaged:
                continue
            if node in known:
                found[key], rendered = known[node]
                decoder.spend(rendered, 0)
            else:
                before = decoder.rendered
                found[key] = decoder.value(*node, depth=1)
                if node.tag in (OBJECT, ARRAY) and node.end - node.start >= SMALL:
                    known[node] = found[key], decoder.rendered - before
            decoder.spend(9, 50)
        return found

    def faults(self) -> Iterator[Fault]:
        """Yield errors of the index, bad entries, and errors inside good ones."""
        yield from self._index_faults()
        seen: set[Node] = set()
        for key, node in self._named_nodes():
            what = f"root/{shown(key)}"
            try:
                self._measured(node, what)
            except Damaged as error:
                yield Fault(what, error.reason)
            else:
                if node.tag in (OBJECT, ARRAY) and node not in seen:
                    seen.add(node)
                    yield from self._contents.faults(node, what)

    def _index_faults(self) -> Iterator[Fault]:
        """Yield repeated keys, and bytes of the file that belong to no entry or to several."""
        repeats = Repeats()
        for key, _ in self._named_nodes():
            repeats.add(key)
        yield from repeats.faults("root")
        if self.count > MOST_RANGES_COMPARED:
            return
        import numpy as np

        ranges = np.fromiter((node.start << 32 | node.end - node.start for _, node in self._named_nodes()), np.uint64)
        ranges = np.sort(ranges[ranges & np.uint64(0xFFFFFFFF) > 0])
        starts = (ranges >> np.uint64(32)).astype(np.int64)
        ends = starts + (ranges & np.uint64(0xFFFFFFFF)).astype(np.int64)
        before = np.concatenate(([self._end], np.maximum.accumulate(ends)))
        gaps = np.concatenate((starts, [self._size])) - before
        if (gaps[:-1] < 0).any():
            yield Fault("root", f"{(gaps[:-1] < 0).sum()} entries share bytes with others")
        if (gaps > 0).any():
            yield Fault("root", f"{gaps[gaps > 0].sum()} bytes between or after the payloads are unused")

    def _named_nodes(self) -> Iterator[tuple[bytes, Node]]:
        keys = Cursor(self._body, self._keys, self._entries, "index", window=64 << 10)
        return ((keys.name(), node) for node in self._nodes())

    def _nodes(self) -> Iterator[Node]:
        at_once = _ENTRY.size * _ENTRIES_AT_ONCE
        for position in range(self._entries, self._end, at_once):
            packed = self._body.part(position, min(at_once, self._end - position)).whole()
            for tag, offset, size in _ENTRY.iter_unpack(packed):
                yield Node(tag, offset, offset + size)

    def _measured(self, node: Node, what: str) -> Marks | None:
        """Return the marks of an entry, or None if it has none. Raises Damaged if its payload is bad."""
        if node.tag not in (OBJECT, ARRAY) or node.end - node.start < SMALL:
            self._measure(node, what, None)
            return None
        verdict = self._verdicts.get(node)
        if verdict is None:
            verdict = self._verdicts[node] = self._verdict(node, what)
        if isinstance(verdict, str):
            raise Damaged(verdict, self._body.name, what)
        return verdict

    def _verdict(self, node: Node, what: str) -> Marks | str:
        """Return the marks of a larger object or array, or what is wrong with it."""
        size = node.end - node.start
        if size > self._left_to_measure:
            return "shares bytes with too many other entries to check it"
        self._left_to_measure -= size
        marks = Marks()
        try:
            self._measure(node, what, marks)
        except Damaged as error:
            return error.reason
        return marks

    def _measure(self, node: Node, what: str, marks: Marks | None) -> None:
        tag, start, end = node
        if tag in FIXED_SIZES:
            found = start + FIXED_SIZES[tag]
        else:
            found = measure(self._body, tag, start, end, what, marks, around=1)
        if found != end:
            raise Damaged(f"has {end - found} bytes after its value", self._body.name, what)
