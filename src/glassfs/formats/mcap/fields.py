"""What is decoded of a topic: a column for each field, and a JSON line for each message (docs/formats/mcap.md §5).

Messages are decoded in batches of rows; all columns of a batch are one block of the cache. Sizes of numbers follow from
their count. Those of sequences, and whether these have one length, take a pass over all batches, which is made once,
when ``fields`` is first listed, and kept with what formats find. Any thread.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain, count
from math import prod
from typing import Any, NamedTuple

from glassfs.content import (
    Array,
    Column,
    Concatenated,
    Data,
    Group,
    Member,
    Ragged,
    Records,
    Regular,
    Rendered,
    Slice,
    Table,
    Unreadable,
    Zeros,
)
from glassfs.content.data import Parted, SizedData
from glassfs.content.model import Name
from glassfs.errors import LASTING, Damaged, GlassfsError, NotInstalled
from glassfs.formats.mcap.definitions import (
    JsonMessages,
    Node,
    Number,
    Ros,
    Sequence,
    Struct,
    Text,
    Time,
    plan_of,
)
from glassfs.formats.mcap.messages import TIMES, Messages
from glassfs.formats.mcap.pictures import Pictures, pictures_of
from glassfs.formats.mcap.protobuf import Protobuf
from glassfs.formats.mcap.recording import Schema
from glassfs.formats.registry import Opening
from glassfs.lazy import NDArray, np
from glassfs.once import once
from glassfs.sizes import PIECE

MOST_ROWS, BATCH_BYTES = 1024, 4 * PIECE
"""Rows of a batch, and about so many bytes of their messages."""
SECOND = 10**9
LENGTHS = [("size", "<i8"), ("least", "<i8"), ("most", "<i8"), ("total", "<i8")]
"""Of each buffer in a batch: its bytes; if it has ends of rows, the least and greatest length of one, and all items."""


def decoder_of(encoding: str, schema: Schema | None) -> JsonMessages | Ros | Protobuf:
    """Return what decodes messages. Raises Damaged for a schema that cannot be used, and NotInstalled."""
    language = schema.encoding if schema else ""
    if encoding == "json" and language in ("", "jsonschema"):
        return JsonMessages()
    if schema is not None and (encoding, language) in (("cdr", "ros2msg"), ("cdr", "ros2idl"), ("ros1", "ros1msg")):
        return Ros(plan_of(schema), encoding == "ros1")
    if schema is not None and encoding == language == "protobuf":
        return Protobuf(schema)
    raise NotInstalled(f"messages of {encoding or 'no encoding'} with {language or 'no'} schema are shown as bytes")


class Leaf(NamedTuple):
    """A field with values of its own. ``slot`` is its place in the values of a message, or of an item around it.

    ``buffer`` is the number of its buffer in a batch: of a sequence of structures that with the ends of rows; of one of
    numbers, these are in the next one. ``around`` is the buffer of ends of the sequence that it is in, if it is in one,
    and ``inner`` are the fields in its own items, None unless these are structures.
    """

    path: Name
    node: Node
    slot: int
    buffer: int
    around: int | None
    inner: tuple[Leaf, ...] | None = None


class Decoding:
    """The decoded messages of a topic. Raises Damaged, and NotInstalled if nothing here decodes them."""

    def __init__(self, messages: Messages, encoding: str, schema: Schema | None, opening: Opening) -> None:
        self.messages, self.count = messages, messages.count
        self.decoder = decoder_of(encoding, schema)
        self._opening = opening
        plan, buffers = self.decoder.plan, count()
        leaves = _leaves(plan, (), count(), count())
        slots = {leaf.path[0].decode(): leaf.slot for leaf in leaves if len(leaf.path) == 1}
        kind = pictures_of(schema) if "data" in slots else ""
        self._pictures = Pictures(kind, messages, self.decoder.values, slots) if kind else None
        self._payload = slots["data"] if kind else None
        """The slot of what has files of its own."""
        self._leaves = tuple(_leaves(plan, (), count(), buffers, hidden=(b"data",) if kind else ()))
        self._buffers = next(buffers)

    def members(self) -> Iterator[Member]:
        """Yield the contents that show the messages as files."""
        yield Member((b"messages",), _Rows(b"messages", self, self._lines))
        if self._leaves:
            yield Member((b"fields",), Group(b"fields", lambda: chain.from_iterable(map(self._shown, self._leaves))))
        if self._pictures:
            yield Member((self._pictures.name,), self._pictures.directory)

    def meanings(self) -> Iterator[Member]:
        """Yield the table of the messages, and the video of images."""
        if self._leaves:
            yield Member((b"topic",), Table(b"topic", self.count, lambda: list(self._columns())))
        for video in self._pictures.videos() if self._pictures else ():
            yield Member((video.key,), video)

    @once
    def rows_a_batch(self) -> int:
        return max(1, min(MOST_ROWS, BATCH_BYTES // max(1, self.messages.mean_size)))

    @once
    def cost(self) -> int:
        """The memory that decoding a batch may take: for more than is needed, readers of small caches would wait."""
        return PIECE + 8 * min(BATCH_BYTES, self.messages.mean_size * min(self.count, self.rows_a_batch))

    @property
    def batches(self) -> int:
        return -(-self.count // self.rows_a_batch)

    def rows(self, batch: int) -> tuple[int, int]:
        """Return the first row of a batch, and the first one after it."""
        first = batch * self.rows_a_batch
        return first, min(self.count, first + self.rows_a_batch)

    def buffer(self, batch: int, number: int) -> Data:
        """Return a buffer of a batch. Raises Damaged."""
        sizes = self._header(batch)["size"]
        return Slice(self._batch(batch), 32 * self._buffers + int(sizes[:number].sum()), int(sizes[number]))

    @once
    def lengths(self) -> NDArray[Any]:
        """LENGTHS of all buffers [batches, buffers]. Raises Damaged."""
        name, shape = b"fields 1 %r" % (self.messages.key[1:],), (self.batches, self._buffers)
        with suppress(zlib.error, ValueError):
            kept = zlib.decompressobj().decompress(self._opening.found(name) or b"", 1 + 32 * prod(shape))
            return np.frombuffer(kept, LENGTHS).reshape(shape)
        found = np.array([self._header(batch) for batch in range(self.batches)], LENGTHS).reshape(shape)
        self._opening.keep(name, zlib.compress(found.tobytes(), 1))
        return found

    def _header(self, batch: int) -> NDArray[Any]:
        return np.frombuffer(self._batch(batch).read(0, 32 * self._buffers), LENGTHS)

    def _batch(self, batch: int) -> Rendered:
        key = (*self.messages.key, "batch", batch)
        return Rendered(self.messages.cache, key, partial(self._made, batch), cost=self.cost)

    def _made(self, batch: int) -> bytes:
        rows = []
        for message in self.messages.each(*self.rows(batch)):
            values = self.decoder.values(message)
            if self._payload is not None:
                values[self._payload] = None  # an image would be held until the end of the batch
            rows.append(values)
        raws, lengths = list[bytes](), list[tuple[int, ...]]()
        for raw, *rest in _encoded(self._leaves, rows):
            raws.append(raw)
            lengths.append((len(raw), *rest))
        return b"".join([np.array(lengths, LENGTHS).tobytes(), *raws])

    def _lines(self, batch: int) -> list[dict[str, Any]]:
        found, (first, end) = [], self.rows(batch)
        for row, message in zip(self.messages.rows(first, end), self.messages.each(first, end), strict=True):
            line = {name: int(row[name]) for name, _ in TIMES}
            try:
                found.append({**line, "data": self.decoder.json(message)})
            except Damaged as damage:
                found.append({**line, "data": None, "error": damage.reason})
        return found

    def _count(self, leaf: Leaf) -> int:
        """Return the rows of a field: messages, or items of the sequence around it. Raises Damaged."""
        return self.count if leaf.around is None else int(self.lengths["total"][:, leaf.around].sum())

    def _array(self, leaf: Leaf, shape: tuple[int, ...], is_even: bool) -> Array:
        """Return an array whose rows, if it ``is_even``, are as many in all batches but the last one."""
        item = leaf.node.item if isinstance(leaf.node, Sequence) else leaf.node
        assert isinstance(item, (Number, Time))
        width = int(item.dtype[2:]) * prod(shape[1:])
        values = _Values(self, leaf.buffer, width if is_even else 0, width * shape[0])
        return Array(leaf.path[-1], values, item.dtype, shape)

    def _ends(self, leaf: Leaf, buffer: int) -> Array:
        # The size is known without a pass over the messages, so listings do not fail with one.
        rows = self._count(leaf)
        return Array(leaf.path[-1], Concatenated([Zeros(8), _Ends(self, buffer, 0, 8 * rows)]), "<i8", (rows + 1,))

    def _length(self, leaf: Leaf) -> int | None:
        """Return the length that all rows of a sequence of numbers have, None if they differ. Raises Damaged."""
        if isinstance(leaf.node, Sequence) and leaf.node.length is not None:
            return leaf.node.length
        found = self.lengths[:, leaf.buffer + 1]
        found = found[found["size"] > 0]
        least, most = found["least"].min(initial=1 << 62), found["most"].max(initial=0)
        return int(most) if least == most or not len(found) else None

    def _content(self, leaf: Leaf) -> Array | Records | tuple[Array, Array]:
        """Return the content of a field that is no structure; values and offsets of rows of different lengths.

        Raises Damaged if its lengths cannot be found.
        """
        node = leaf.node
        if isinstance(node, Text) or (isinstance(node, Sequence) and isinstance(node.item, Text)):
            return _Rows(leaf.path[-1], self, lambda batch: json.loads(self.buffer(batch, leaf.buffer).whole()))
        is_even = leaf.around is None
        if not isinstance(node, Sequence):
            return self._array(leaf, (self._count(leaf),), is_even)
        length = self._length(leaf)
        if length is not None:
            return self._array(leaf, (self._count(leaf), length), is_even)
        total = int(self.lengths["total"][:, leaf.buffer + 1].sum())
        return self._array(leaf, (total,), False), self._ends(leaf, leaf.buffer + 1)

    def _shown(self, leaf: Leaf) -> Iterator[Member]:
        """Yield the contents of a field."""
        path = leaf.path
        try:
            if leaf.inner is not None:
                yield Member((*path, b"offsets"), self._ends(leaf, leaf.buffer))
                for one in leaf.inner:
                    yield from self._shown(one)
                return
            found = self._content(leaf)
            if isinstance(found, tuple):
                yield Member((*path, b"values"), found[0])
                yield Member((*path, b"offsets"), found[1])
            else:
                yield Member(path, found)
        except LASTING as error:
            yield Member(path, Array(path[-1], Unreadable(1, error), "|u1", partial(_fail, error)))

    def _columns(self) -> Iterator[Column]:
        """Yield the columns of the table of messages: fields with a value or a list for each. Raises Damaged."""
        for field, dtype in TIMES:
            key = field.encode()
            yield Column(key, Array(key, self.messages.column(field), dtype, (self.count,)))
        for leaf in self._leaves:
            if leaf.inner is not None:
                continue
            name, node, found = b".".join(leaf.path), leaf.node, self._content(leaf)
            if isinstance(found, tuple):
                values, ends = found
                yield Column(name, Ragged(name, values.data, values.dtype, ends.data, "<i8", self.count))
            else:
                is_list = isinstance(node, Sequence) and (node.length is None or isinstance(found, Records))
                yield Column(name, found, is_list)


class _Rows(Records):
    """Rows of a topic, in a block for each batch."""

    def __init__(self, key: bytes, decoding: Decoding, block: Callable[[int], list[Any]]) -> None:
        self.key, self.block, self._decoding = key, block, decoding
        self.cost = lambda block: decoding.cost
        self.type_name = self.dtype = ""

    @property
    def blocks(self) -> int:  # type: ignore[override]
        return self._decoding.batches


class _Values(SizedData, Parted):
    """The values in one buffer of all batches: rows of ``width`` bytes, or as many as the batches say if it is 0."""

    def __init__(self, decoding: Decoding, buffer: int, width: int, size: int) -> None:
        super().__init__(size)
        self._decoding, self._buffer, self._width = decoding, buffer, width

    @property
    def bounds(self) -> Any:
        if self._width:
            return Regular(self._decoding.rows_a_batch * self._width, self.size)
        return [*accumulate(self._decoding.lengths["size"][:, self._buffer].tolist(), initial=0)]

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        stored = self._decoding.buffer(number, self._buffer)
        if offset + len(buffer) > stored.size:
            raise Damaged("has other values than its lengths say")
        stored.read_into(buffer, offset)


class _Ends(_Values):
    """Where rows end in all values: the ends in each batch behind those before it."""

    def read_part(self, number: int, buffer: memoryview, offset: int) -> None:
        before = self._decoding.lengths["total"][:number, self._buffer].sum()
        ends = np.frombuffer(self._decoding.buffer(number, self._buffer).whole(), "<i8") + before
        buffer[:] = ends.tobytes()[offset : offset + len(buffer)]


def _leaves(
    plan: Struct, path: Name, slots: Iterator[int], buffers: Iterator[int], around: int | None = None,
    hidden: Name = (),
) -> Iterator[Leaf]:
    """Yield the fields of a plan that have values, except for the one at the path ``hidden``."""
    for field, node in plan.fields:
        own = (*path, field.encode())
        if isinstance(node, Struct):
            yield from _leaves(node, own, slots, buffers, around)
            continue
        slot = next(slots)
        if own == hidden:
            continue
        buffer = next(buffers)
        if isinstance(node, Time):
            next(slots)
        inner: tuple[Leaf, ...] | None = None
        if isinstance(node, Sequence) and isinstance(node.item, Struct):
            inner = tuple(_leaves(node.item, own, count(), buffers, buffer))
        elif isinstance(node, Sequence) and not isinstance(node.item, Text):
            next(buffers)
        yield Leaf(own, node, slot, buffer, around, inner)


def _encoded(leaves: tuple[Leaf, ...], rows: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the buffers of fields: their bytes, and what LENGTHS says of those with ends of rows."""
    for leaf in leaves:
        node, values = leaf.node, [row[leaf.slot] for row in rows]
        item = node.item if isinstance(node, Sequence) else node
        if isinstance(item, Text):
            yield json.dumps(values).encode(), 0, 0, 0
        elif isinstance(node, Number):
            yield np.array(values, node.dtype).tobytes(), 0, 0, 0
        elif isinstance(node, Time):
            parts = np.array([row[leaf.slot + 1] for row in rows], "<i8")
            yield _nanoseconds(np.array(values, "<i8"), parts).tobytes(), 0, 0, 0
        else:
            lengths = np.array([len(value) for value in values], "<i8")
            ends = np.cumsum(lengths, dtype="<i8")
            total = int(lengths.sum())
            found = ends.tobytes(), lengths.min(initial=total), lengths.max(initial=0), total
            if isinstance(item, Struct):
                yield found
                yield from _encoded(leaf.inner or (), [one for value in values for one in value])
                continue
            joined = np.concatenate(values) if total else np.empty(0, "<i8")
            if isinstance(item, Time) and total:
                joined = _nanoseconds(*(joined[name].astype("<i8") for name in joined.dtype.names or ()))
            yield joined.astype(getattr(item, "dtype", "<i8")).tobytes(), 0, 0, 0
            yield found


def _nanoseconds(seconds: NDArray[Any], parts: NDArray[Any]) -> NDArray[Any]:
    """Return times in nanoseconds, int64 like both arguments. Raises Damaged for those that int64 does not have."""
    last = (1 << 63) // SECOND - 3  # parts of Protocol Buffers may be up to three seconds
    if ((seconds > last) | (seconds < -last)).any():
        raise Damaged("has a time that is no int64 of nanoseconds")
    found: NDArray[Any] = seconds * SECOND + parts
    return found


def _fail(fault: GlassfsError) -> Any:
    raise fault.at()
