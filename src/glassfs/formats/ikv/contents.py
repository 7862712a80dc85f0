"""Contents of measured nodes, their values, and the indexed root of iKv2 (§5).

``Decoder`` makes Python objects of a whole document, for one thread; any thread may use the rest. Every bound is
checked again, as files may change: Damaged. A value that is too large to show raises TooLarge before it is built.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from glassfs.cache import BlockCache
from glassfs.codec import leb128
from glassfs.content import (
    Array,
    Blob,
    Content,
    Data,
    Document,
    Fault,
    Group,
    Location,
    Member,
    Null,
    Omitted,
    Scalar,
    Stream,
    Text,
    booleans,
    layout_faults,
)
from glassfs.content.allowance import OBJECT, Allowance, held
from glassfs.errors import Damaged, GlassfsError, TooLarge
from glassfs.formats.ikv import nodes
from glassfs.formats.ikv.nodes import (
    ARRAY,
    BOOLEAN,
    DEEPEST,
    DOUBLE,
    INTEGER,
    NULL,
    STRING,
    WINDOW,
    NodeReader,
    NodeSpan,
    part,
    shown,
)
from glassfs.formats.registry import Opening
from glassfs.lazy import np
from glassfs.source import Source

LARGEST_RENDERING = 64 << 20  # docs/manual/troubleshooting.md
LARGEST_VALUE = 160 << 20
EXPANSION = 80
"""Bytes of values for one that is stored, in empty objects or nested objects of one member; with one-byte integers, of
NumPy's intermediate results as well."""
Value = TypeVar("Value")

_ENTRY = struct.Struct("<BII")


class Contents(NamedTuple):
    """Makes contents of measured nodes in ``source``, which is that of the opening or its text as binary."""

    source: Source
    opening: Opening

    def content(self, key: bytes, node: NodeSpan, what: str) -> Content:
        """Return the content of a node, which has been measured."""
        if node.tag == nodes.OBJECT:
            return Group(key, partial(self.members, node, what))
        if node.tag == ARRAY:
            return self._array(key, node, what)
        if node.tag == NULL:
            return Null(key)
        if node.tag == STRING:
            size = self._reader(node, what, 16).varint()
            return Text(key, part(self.source, node.end - size, size))
        return Scalar(key, Decoder(self.source, what).value(node))

    def document(self, key: bytes, node: NodeSpan, what: str) -> Document:
        return Document(key, lambda: Decoder(self.source, what).value(node), cost(node.end - node.start, node.levels))

    def members(self, node: NodeSpan, what: str) -> Iterator[Member]:
        """Yield the members of an object."""
        listed, omitted = self.last_of_each(self._members(node, what))
        for key, member in listed.items():
            yield Member((key,), self.content(key, member, f"{what}/{shown(key)}"))
        yield from omitted

    def last_of_each(self, pairs: Iterable[tuple[bytes, Value]]) -> tuple[dict[bytes, Value], list[Member]]:
        """Return the last value of each key, in the order of these values, and what is beyond the allowance."""
        last: dict[bytes, Value] = {}
        allowance, left_out = self.opening.allowance.part(), 0
        for key, value in pairs:
            # A key that comes again takes the place of its last value in the order, as the document does it.
            if key in last:
                del last[key]
            else:
                try:
                    allowance.take(OBJECT + held(key), "members")
                except TooLarge:
                    left_out += 1
                    continue
            last[key] = value
        reason = f"too many members: {left_out} more are not listed; a larger cache_size allows more"
        return last, [Member((b"",), Omitted(b"", reason))] if left_out else []

    def faults(self, node: NodeSpan, what: str) -> Iterator[Fault]:
        """Yield objects below a node that have repeated keys, which is all that reading does not report."""
        if node.tag == nodes.OBJECT:
            yield from repeated_keys((key for key, _ in self._members(node, what)), what, self.opening.allowance.part())
            for key, member in self._members(node, what):
                yield from self.faults(member, f"{what}/{shown(key)}")
        elif node.tag == ARRAY:
            fields = self._reader(node, what, WINDOW)
            if fields.element() in (NULL, nodes.OBJECT, ARRAY):
                for number in range(fields.count(1)):
                    yield from self.faults(fields.span(fields.u8()), f"{what}/{number}")

    def _array(self, key: bytes, node: NodeSpan, what: str) -> Content:
        fields = self._reader(node, what, 16)
        element, count, items = fields.u8(), fields.varint(), fields.position
        if element == INTEGER:
            integers = _integers(self.source, self.opening.cache, items, node.end, count, what)
            return Array(key, integers, "<i8", (count,), "integer")
        if element == DOUBLE:
            return Array(key, part(self.source, items, 8 * count), "<f8", (count,), "double")
        if element == BOOLEAN:
            return Array(key, booleans(part(self.source, items, count), count), "|b1", (count,), "boolean")
        return self.document(key, node, what)

    def _members(self, node: NodeSpan, what: str) -> Iterator[tuple[bytes, NodeSpan]]:
        fields = self._reader(node, what, 16 << 10)
        for _ in range(fields.count(2)):
            yield fields.name(), fields.span(fields.u8())

    def _reader(self, node: NodeSpan, what: str, window: int) -> NodeReader:
        return NodeReader(self.source, node.start, node.end, what, window)


def repeated_keys(keys: Iterable[bytes], place: str, allowance: Allowance) -> Iterator[Fault]:
    """Yield a fault if keys are repeated. Those beyond the allowance are not compared."""
    seen = set[bytes]()
    repeated: list[bytes] = []
    count = 0
    with suppress(TooLarge):
        for key in keys:
            if key in seen:
                count += 1
                repeated = repeated or [key]
            else:
                allowance.take(OBJECT + held(key), "keys")
                seen.add(key)
    if repeated:
        reason = f"has the key {shown(repeated[0])!r} more than once; the last value counts"
        yield Fault(place, f"{reason} (repeated keys: {count})")


class IndexedRoot:
    """The root object of an iKv2 document: an index of keys and entries, with payloads anywhere behind it.

    Keys and entries stay in the file and are read again on each use. Making it checks the index; listing the root or
    reading the whole document checks the payloads.
    """

    SMALL = 64
    """Bytes of an object or array that is measured each time it is used."""

    def __init__(self, contents: Contents, fields: NodeReader) -> None:
        """Read the index; ``fields`` must be at the number of entries. Raises Damaged for any bad key or entry."""
        self._contents = contents
        self._source = contents.source
        fields.what = "index"
        self.count = fields.count(1 + _ENTRY.size)
        self._keys = fields.position
        for _ in range(self.count):
            fields.skip(fields.name_size())
        self._entries = fields.position
        fields.skip(self.count * _ENTRY.size)
        self._end = fields.position
        # The size of the index and all payloads; payloads shared by entries count once per entry.
        self._stored = self._end - self._keys
        for number, (tag, offset, end, _) in enumerate(self._nodes()):
            if tag >= len(nodes.TYPE_NAMES):
                raise fields.damage(f"has an entry of unknown type {tag} (number {number})")
            if end > fields.end:
                raise fields.damage(f"has an entry that ends at {end}, outside the file (number {number})")
            if offset < self._end and offset != end:
                raise fields.damage(f"has an entry at {offset}, before the payloads (number {number})")
            self._stored += end - offset
        # Entries may share payloads, or overlap: without a limit, measuring all could take quadratic time. So what was
        # found out about a larger one is remembered, and they are measured only up to some times the file.
        self._verdicts: dict[NodeSpan, int | str] = {}
        self._left_to_measure = 4 * self._source.size + (1 << 20)
        self._has_warned = False

    def members(self) -> Iterator[Member]:
        """Yield the entries; entries with bad payloads become Blobs."""
        first: GlassfsError | None = None
        bad = 0
        listed, omitted = self._contents.last_of_each(self._named_nodes())
        for key, node in listed.items():
            what = f"root/{shown(key)}"
            content: Content
            try:
                content = self._contents.content(key, self._measured(node, what), what)
            except (Damaged, TooLarge) as error:
                first, bad = first or error, bad + 1
                content = Blob(key, part(self._source, node.start, node.end - node.start))
            yield Member((key,), content)
        yield from omitted
        if first is not None and not self._has_warned:
            self._has_warned = True
            self._contents.opening.warn(f"{first.reason} (bad entries: {bad})", first.part)

    @property
    def cost(self) -> int:
        """The memory that ``value`` and its text may take."""
        return cost(self._stored)

    def value(self) -> dict[str | bytes, Any]:
        """Return the document without its bad entries."""
        decoder = Decoder(self._source, "document")
        values: dict[str | bytes, Any] = {}
        for raw, node in self._named_nodes():
            key = decoder.key(raw)
            values.pop(key, None)
            try:
                self._measured(node, f"root/{shown(raw)}")
            except (Damaged, TooLarge):
                continue
            values[key] = decoder.value(node, depth=1)
            decoder.spend(9, 50)
        return values

    def faults(self) -> Iterator[Fault]:
        """Yield errors of the index, bad entries, and errors inside good ones."""
        allowance = self._contents.opening.allowance.part()
        yield from repeated_keys((key for key, _ in self._named_nodes()), "root", allowance)
        payloads = ((node.start, node.end, f"the payload of {shown(key)!r}") for key, node in self._named_nodes())
        parts = chain([(0, self._end, "the index")], payloads)
        yield from layout_faults(parts, self._source.size, allowance, may_share=True)
        seen: set[NodeSpan] = set()
        for key, node in self._named_nodes():
            what = f"root/{shown(key)}"
            try:
                self._measured(node, what)
            except (Damaged, TooLarge) as error:
                yield Fault(what, error.reason)
            else:
                if node.tag in (nodes.OBJECT, ARRAY) and node not in seen:
                    seen.add(node)
                    yield from self._contents.faults(node, what)

    def _named_nodes(self) -> Iterator[tuple[bytes, NodeSpan]]:
        keys = NodeReader(self._source, self._keys, self._entries, "index", WINDOW)
        return ((keys.name(), node) for node in self._nodes())

    def _nodes(self) -> Iterator[NodeSpan]:
        at_once = 4096 * _ENTRY.size
        for position in range(self._entries, self._end, at_once):
            packed = self._source.read(position, min(at_once, self._end - position))
            for tag, offset, size in _ENTRY.iter_unpack(packed):
                yield NodeSpan(tag, offset, offset + size)

    def _measured(self, node: NodeSpan, what: str) -> NodeSpan:
        """Return the node with its levels. Raises Damaged if its payload is bad, TooLarge if there are too many."""
        size, verdict = node.end - node.start, self._verdicts.get(node)
        if verdict is None:
            is_large = node.tag in (nodes.OBJECT, ARRAY) and size >= self.SMALL
            if is_large:
                self._contents.opening.allowance.take(2 * OBJECT, "entries")
            if is_large and size > self._left_to_measure:
                verdict = "shares bytes with too many other entries to check it"
            else:
                try:
                    measured = NodeReader(self._source, node.start, node.end, what).span(node.tag, around=1)
                    left = node.end - measured.end
                    verdict = f"has {left} bytes after its value" if left else measured.levels
                except Damaged as error:
                    verdict = error.reason
            # An entry that shares its payload with another one has the same verdict, without a second pass over it.
            if is_large:
                self._left_to_measure -= size
                self._verdicts[node] = verdict
        if isinstance(verdict, str):
            raise self._source.damage(verdict, what)
        return node._replace(levels=verdict)


def cost(stored: int, levels: int = DEEPEST) -> int:
    """Return the peak memory of the value of ``stored`` bytes, of so many levels, and of its text.

    Besides the text this counts the spare memory of its buffer and the piece being written. The worst cases are a null
    on a line of its own, and an escaped character.
    """
    text = min(LARGEST_RENDERING, stored * (2 * levels + 8))
    return 4 * WINDOW + min(LARGEST_VALUE, stored * EXPANSION) + text + min(text, LARGEST_RENDERING // 4)


@dataclass
class Decoder:
    """Builds values of one document: dict, list, str, int, float, bool, None, and bytes for text that is not UTF-8.

    Raises TooLarge before a value takes much more than LARGEST_VALUE bytes of memory, or would certainly exceed
    LARGEST_RENDERING bytes as JSON with indent 2.
    """

    _source: Source
    _what: str
    _rendered: int = 0
    _taken: int = 0
    _keys: dict[str | bytes, str | bytes] = field(default_factory=dict)

    def value(self, node: NodeSpan, depth: int = 0) -> Any:
        """Return the value of a measured node; ``depth`` is the number of containers around it."""
        return self._value(NodeReader(self._source, node.start, node.end, self._what, WINDOW), node.tag, depth)

    def spend(self, rendered: int, taken: int) -> None:
        """Count ``rendered`` more bytes of text (a lower bound) and ``taken`` more bytes of memory."""
        self._rendered += rendered
        self._taken += taken
        if self._rendered > LARGEST_RENDERING or self._taken > LARGEST_VALUE:
            raise TooLarge("is too large to show as one JSON document", self._source.name, self._what)

    def key(self, raw: bytes) -> str | bytes:
        """Return a key; equal keys are the same object each time, as those of a table are."""
        key = _text(raw)
        known = self._keys.setdefault(key, key)
        self.spend(len(raw), len(raw) + 160 if known is key else 0)
        return known

    def _value(self, fields: NodeReader, tag: int, depth: int) -> Any:
        if tag == NULL:
            self.spend(3, 0)
            return None
        if tag == STRING:
            size = fields.varint()
            self.spend(size + 1, size + 60)
            return _text(fields.take(size))
        if tag == INTEGER:
            self.spend(0, 32)
            return fields.signed()
        if tag == DOUBLE:
            self.spend(2, 24)
            return struct.unpack("<d", fields.take(8))[0]
        if tag == BOOLEAN:
            self.spend(3, 0)
            return fields.u8() != 0
        if depth >= DEEPEST or tag > ARRAY:
            raise fields.damage(f"has a node of unknown type {tag}, or too many levels, before {fields.position}")
        item = 2 * depth + 5  # line break, indent, comma, and at least one character
        if tag == nodes.OBJECT:
            count = fields.count(2)
            self.spend(count * (item + 4), 64 + (100 + count * 50 if count else 0))
            members: dict[str | bytes, Any] = {}
            for _ in range(count):
                key = self.key(fields.name())
                members.pop(key, None)  # of equal keys the last one counts
                members[key] = self._value(fields, fields.u8(), depth + 1)
            return members
        element = fields.element()
        count = fields.count(nodes.SMALLEST_ITEM[element])
        self.spend(count * item, 56 + count * 8)
        if element == BOOLEAN:
            return [byte != 0 for byte in fields.take(count)]
        if element == DOUBLE:
            self.spend(0, count * 24)
            return list(struct.unpack(f"<{count}d", fields.take(8 * count)))
        is_bare = element in (STRING, INTEGER)
        return [self._value(fields, element if is_bare else fields.u8(), depth + 1) for _ in range(count)]


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _integers(source: Source, cache: BlockCache, start: int, end: int, count: int, what: str) -> Data:
    """Return the items of an array of integers as little-endian 64-bit numbers, stored in ``[start, end)``."""
    cost = 3 * WINDOW + EXPANSION * min(WINDOW, end - start)

    def numbers() -> Iterator[bytes]:
        position, left = start, count
        while left:
            values, used = leb128.unpack(source.read(position, min(WINDOW, end - position)), left)
            if not used:
                raise source.damage("its integers have changed since it was opened", what)
            # Zigzag numbers: ``value << 1 ^ value >> 63``.
            signed = (values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))
            yield bytes(signed.astype("<u8", copy=False).data)
            position += used
            left -= len(values)

    def location() -> Location | None:
        place = part(source, start, end - start).location()
        return place and place._replace(codec="varint")

    key = source.version, "integers", start, count
    return Stream(cache, key, numbers, lambda: cost, 8 * count, location)
