"""kastore: stores of one-dimensional arrays under keys that are paths (formats/kastore.md).

Nothing in a store is compressed: every array is a range of the file. The index is walked a stretch at a time and not
kept; the walk recomputes each position from the lengths (§3), so that what passes it lies inside the file. What the
arrays of a tskit tree sequence mean is told by ``glassfs.formats.tskit``.

Every function may be called from any thread. An index that contradicts itself or the file raises Damaged: in the first
store when it is opened, in an appended one (§5) when somebody looks into it. Where the chain of appended stores breaks
off, what is left is not shown, but logged and told by ``check``.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

from glassfs.cache import BlockCache
from glassfs.content import Array, Container, Extent, Fault, Group, Member
from glassfs.errors import Damaged
from glassfs.formats import tskit
from glassfs.formats.registry import Format
from glassfs.source import Reader, Source

MAGIC = b"\x89KAS\r\n\x1a\n"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
HEADER = struct.Struct("<8sHHIQ40x")
DESCRIPTOR = struct.Struct("<B7xQQQQ24x")
RESERVED_IN_HEADER = range(24, 64)
RESERVED_IN_DESCRIPTOR = (*range(1, 8), *range(40, 64))
ITEMS_AT_ONCE = 4096
LARGEST_KEY_BLOCK = 64 << 20  # each key ends up in memory as a name
DEEPEST = 256  # components of a key; what is left is one component
MOST_STORES = 1 << 16

log = logging.getLogger(__name__)


class Type(NamedTuple):
    name: str
    dtype: str
    size: int


TYPES = (
    Type("int8", "|i1", 1), Type("uint8", "|u1", 1), Type("int16", "<i2", 2), Type("uint16", "<u2", 2),
    Type("int32", "<i4", 4), Type("uint32", "<u4", 4), Type("int64", "<i8", 8), Type("uint64", "<u8", 8),
    Type("float32", "<f4", 4), Type("float64", "<f8", 8),
)


class Item(NamedTuple):
    """One array: ``length`` elements of ``type`` from byte ``start`` of the source on."""

    key: bytes
    type: Type
    start: int
    length: int

    @property
    def size(self) -> int:
        return self.length * self.type.size


class Survey(NamedTuple):
    """What one walk over the index tells.

    ``known`` are the items whose keys tskit knows, of equal keys the last. Where the keys all rise no two are equal;
    ``first_falling`` is the first that is below the one before it.
    """

    known: dict[bytes, Item]
    keys_end: int
    array_bytes: int
    all_rise: bool
    first_falling: bytes | None


class Store:
    """The store at byte ``start`` of a source; ``place`` is its directory (empty for the first). Raises Damaged."""

    def __init__(self, source: Source, start: int = 0, place: str = "") -> None:
        self.source, self.start, self.place = source, start, place
        there = source.size - start
        if there < HEADER.size:
            raise self._damage(f"the header is cut short, {there} of {HEADER.size} bytes are there")
        header: tuple[bytes, int, int, int, int] = HEADER.unpack(source.read(start, HEADER.size))
        magic, self.major, self.minor, self.count, self.size = header
        if magic != MAGIC:
            raise self._damage("does not begin with kastore's magic bytes")
        if self.major != 1:
            raise self._damage(f"is of version {self.major}.{self.minor}, glassfs reads version 1")
        self._first_key = HEADER.size + DESCRIPTOR.size * self.count
        if self.size < self._first_key or (self.count == 0 and self.size != HEADER.size):
            raise self._damage(f"the header declares {self.size} bytes, which do not fit {self.count} items")
        if self.size > there:
            raise self._damage(f"is cut short: the header declares {self.size} bytes, {there} are there")

    @property
    def end(self) -> int:
        return self.start + self.size

    def items(self) -> Iterator[Item]:
        """Walks the index. Raises Damaged at the first item whose place is not the one that the lengths give (§1).

        As arrays only follow one another, that all lie inside the store is known when the last one ends with it.
        """
        key_end, array_end, first_array = self._first_key, 0, 0
        for first, raw in self._descriptors():
            block_start = key_end
            block_size = sum(descriptor[2] for descriptor in DESCRIPTOR.iter_unpack(raw))
            if block_start + block_size > self.size:
                raise self._damage("the keys run past the end of the store")
            if block_start + block_size - self._first_key > LARGEST_KEY_BLOCK:
                raise self._damage(f"the keys take more than the {LARGEST_KEY_BLOCK >> 20} MiB that glassfs accepts")
            keys = self.source.read(self.start + block_start, block_size)
            for number, (kind, key_start, key_length, start, length) in enumerate(DESCRIPTOR.iter_unpack(raw), first):
                if kind >= len(TYPES):
                    raise self._damage(f"item {number}: element type {kind} is unknown")
                if key_start != key_end:
                    raise self._damage(f"item {number}: the key starts at {key_start}, expected {key_end}")
                if key_length == 0:
                    raise self._damage(f"item {number}: the key is empty")
                if number == 0:
                    first_array = array_end = start
                elif start != (array_end + 7) & ~7:
                    raise self._damage(f"item {number}: the array starts at {start}, expected {(array_end + 7) & ~7}")
                key_end = key_start + key_length
                array_end = start + length * TYPES[kind].size
                key = keys[key_start - block_start : key_end - block_start]
                yield Item(key, TYPES[kind], self.start + start, length)
        if self.count and first_array != (key_end + 7) & ~7:
            raise self._damage(f"the first array starts at {first_array}, expected {(key_end + 7) & ~7}")
        if self.count and array_end != self.size:
            raise self._damage(f"the last array ends at {array_end}, the store at {self.size}")

    @cached_property
    def survey(self) -> Survey:
        known = {}
        keys_size = array_bytes = 0
        previous, first_falling, all_rise = b"", None, True
        for item in self.items():
            key = item.key
            keys_size += len(key)
            array_bytes += item.size
            if key <= previous:
                all_rise = False
                if key != previous and first_falling is None:
                    first_falling = key
            previous = key
            if key in tskit.KEYS:
                known[key] = item
        return Survey(known, self.start + self._first_key + keys_size, array_bytes, all_rise, first_falling)

    @cached_property
    def tree_sequence(self) -> tskit.TreeSequence | None:
        return tskit.recognise({
            key: tskit.Column(Extent(self.source, item.start, item.size), item.type.name, item.type.dtype, item.length)
            for key, item in self.survey.known.items()
        })

    @cached_property
    def hidden(self) -> bytes | None:
        """A byte an item, 1 where a later item has the same key; None where all keys differ.

        Found by 64-bit hashes, as the keys themselves would take too much room. Two keys that share a hash cost the
        earlier one its turn in ``members``, no more.
        """
        if self.survey.all_rise:
            return None
        import numpy as np

        hashes = np.fromiter((hash(item.key) for item in self.items()), np.int64, self.count)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        is_hidden = np.zeros(self.count, np.bool_)
        is_hidden[order[:-1][hashes[:-1] == hashes[1:]]] = True
        if not is_hidden.any():
            return None
        log.warning(
            "%s: %d items share their key with a later one, which keeps the name",
            self._name, np.count_nonzero(is_hidden),
        )
        return is_hidden.tobytes()

    def members(self) -> Iterator[Member]:
        """The arrays in the order of the index, those that share their key with a later one behind; then the text."""
        hidden = self.hidden
        for number, item in enumerate(self.items()):
            if hidden is None or not hidden[number]:
                yield self._member(item)
        if hidden is not None:
            for number, item in enumerate(self.items()):
                if hidden[number]:
                    yield self._member(item)
        if self.tree_sequence is not None:
            yield from self.tree_sequence.members()

    def check(self) -> Iterator[Fault]:
        falling = self.survey.first_falling
        if falling is not None:
            yield Fault(self._path(falling), "stands out of order among the keys: the C library may not find it")
        if self.hidden is not None:
            for number, item in enumerate(self.items()):
                if self.hidden[number]:
                    yield Fault(self._path(item.key), f"item {number} has the same key as a later one")
        if self.minor == 0:  # a later minor version may have given them a meaning
            yield from self._reserved_faults()
        yield from self._padding_faults()
        if self.tree_sequence is not None:
            for key, reason in self.tree_sequence.faults():
                yield Fault(self._path(key.encode()), reason)

    def _reserved_faults(self) -> Iterator[Fault]:
        if any(self.source.read(self.start + RESERVED_IN_HEADER.start, len(RESERVED_IN_HEADER))):
            yield Fault(self.place, "reserved bytes of the header are not zero")
        for first, raw in self._descriptors():
            if any(any(raw[byte :: DESCRIPTOR.size]) for byte in RESERVED_IN_DESCRIPTOR):
                yield Fault(self.place, f"reserved bytes of the descriptors from item {first} on are not zero")
                return

    def _padding_faults(self) -> Iterator[Fault]:
        reader = Reader(self.source, self.survey.keys_end, self.end, "padding")
        for item in self.items():
            if any(reader.take(item.start - reader.position)):
                yield Fault(self._path(item.key), "the padding in front of the array is not zero")
                return
            reader.skip(item.size)

    def _descriptors(self) -> Iterator[tuple[int, bytes]]:
        """The descriptors in stretches, each with the number of its first item."""
        for first in range(0, self.count, ITEMS_AT_ONCE):
            place = self.start + HEADER.size + DESCRIPTOR.size * first
            yield first, self.source.read(place, DESCRIPTOR.size * min(ITEMS_AT_ONCE, self.count - first))

    def _member(self, item: Item) -> Member:
        name = tuple(item.key.split(b"/", DEEPEST - 1))
        data = Extent(self.source, item.start, item.size)
        return Member(name, Array(item.key, data, item.type.dtype, (item.length,), item.type.name))

    def _path(self, key: bytes) -> str:
        path = key.decode("utf-8", "backslashreplace")
        return f"{self.place}/{path}" if self.place else path

    @property
    def _name(self) -> str:
        return f"{self.source.name}: {self.place}" if self.place else self.source.name

    def _damage(self, reason: str) -> Damaged:
        return Damaged(f"{self._name}: {reason}")


def _open(source: Source, cache: BlockCache) -> Container:
    first = Store(source)
    survey = first.survey
    appended, rest = _appended(source, first.end)
    if rest is not None:
        log.warning("%s: %s", source.name, ": ".join(filter(None, rest)))
    facts: dict[str, Any] = {
        "keys": first.count, "array_bytes": survey.array_bytes, "store_bytes": first.size,
        "appended_stores": len(appended),
    }
    if first.tree_sequence is not None:
        facts |= first.tree_sequence.facts()

    def members() -> Iterator[Member]:
        yield from first.members()
        for number, start in enumerate(appended, 1):
            inside = partial(_members_of, source, start, _place(number))
            yield Member((b"appended", b"%d" % number), Group(_place(number).encode(), inside))

    def check() -> Iterator[Fault]:
        yield from first.check()
        for number, start in enumerate(appended, 1):
            try:
                yield from Store(source, start, _place(number)).check()
            except Damaged as damage:
                yield _fault(source, _place(number), damage)
        if rest is not None:
            yield rest

    root = Group(b"", members, error=f"{rest.place}: {rest.reason}" if rest is not None and rest.place else None)
    return Container("kastore", f"{first.major}.{first.minor}", root, [source], facts, check)


def _appended(source: Source, position: int) -> tuple[array[int], Fault | None]:
    """Where the stores after the first begin, and what is wrong with the bytes behind the last of them.

    That fault has a place where a store is lost, and none where the bytes are no store.
    """
    starts = array("Q")
    while source.size - position >= len(MAGIC) and source.read(position, len(MAGIC)) == MAGIC:
        place = _place(len(starts) + 1)
        if len(starts) == MOST_STORES:
            return starts, Fault(place, f"is not shown, nor what follows: {MOST_STORES} appended stores are the most")
        try:
            store = Store(source, position, place)
        except Damaged as damage:
            return starts, _fault(source, place, damage)
        starts.append(position)
        position = store.end
    left = source.size - position
    return starts, Fault("", f"{left} bytes after the last store are ignored") if left else None


def _fault(source: Source, place: str, damage: Damaged) -> Fault:
    return Fault(place, str(damage).removeprefix(f"{source.name}: {place}: "))


def _place(number: int) -> str:
    return f"appended/{number}"


def _members_of(source: Source, start: int, place: str) -> Iterable[Member]:
    return Store(source, start, place).members()


def _hint(head: bytes) -> str | None:
    if head.startswith(HDF5_MAGIC):
        return (
            "is an HDF5 file. If it is a .trees file, it was written by msprime before 0.6.0; "
            "`tskit upgrade` of tskit 0.6.0 or earlier makes a current one of it"
        )
    if head.startswith(MAGIC[:4]):
        return "starts like a kastore file, but its magic bytes are damaged, as by a transfer in text mode"
    return None


FORMAT = Format("kastore", lambda head: head.startswith(MAGIC), _open, _hint)
