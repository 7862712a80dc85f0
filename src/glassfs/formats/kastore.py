"""kastore: stores of one-dimensional arrays under keys that are paths (docs/formats/kastore.md, cited as §).

Any thread. Every array is a range of the file. The index is read a stretch at a time and not kept; each pass recomputes
every offset from the lengths (§3). ``glassfs.formats.tskit`` interprets the arrays of a tskit tree sequence.

An index that contradicts itself or the file raises Damaged: for the first store on opening, for appended ones (§5) on
listing. If the chain of appended stores is broken, the rest is not shown; the log and ``check`` report it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Array, Container, Extent, Fault, Group, Member, Omitted, Records, Summary, summary_of
from glassfs.content.allowance import OBJECT
from glassfs.errors import Damaged, TooLarge
from glassfs.formats import tree_sequences, tskit
from glassfs.formats.registry import AHEAD, Format, Opening
from glassfs.once import once

MAGIC = b"\x89KAS\r\n\x1a\n"
HEADER = struct.Struct("<8sHHIQ40s")
DESCRIPTOR = struct.Struct("<B7sQQQQ24s")
AT_ONCE = 4096
"""Descriptors that are read at once."""
LARGEST_SUMMARY = 512  # columns of the table of trees

TYPES = (
    ("int8", "|i1"), ("uint8", "|u1"), ("int16", "<i2"), ("uint16", "<u2"), ("int32", "<i4"), ("uint32", "<u4"),
    ("int64", "<i8"), ("uint64", "<u8"), ("float32", "<f4"), ("float64", "<f8"),
)
SIZES = tuple(int(dtype[2:]) for _, dtype in TYPES)


class Item(NamedTuple):
    """An item of the checked part of an index: its array lies from ``start`` to ``end`` in the store."""

    key: bytes
    kind: int
    start: int
    end: int
    length: int
    reserved: bytes


class Survey(NamedTuple):
    """The results of one pass over the index.

    ``known`` holds the arrays with tskit's keys, of equal keys the last. If ``all_rise``, no two keys are equal.
    ``first_falling`` is the first key below its predecessor. ``keys_end`` is the offset in the store.
    """

    known: dict[bytes, Array]
    array_bytes: int
    all_rise: bool
    first_falling: bytes | None
    keys_end: int


class ArrayStore:
    """The store at byte ``start`` of a source; ``place`` is its directory (empty for the first). Raises Damaged."""

    def __init__(self, opening: Opening, start: int = 0, place: str = "") -> None:
        self.source, self.start, self.place = opening.source, start, place
        self._opening = opening
        available = self.source.size - start
        if available < HEADER.size:
            raise self._damage(f"the header is cut short: it has {available} of {HEADER.size} bytes")
        header: tuple[bytes, int, int, int, int, bytes] = HEADER.unpack(self.source.read(start, HEADER.size))
        magic, self.major, self.minor, self.count, self.size, self._reserved = header
        if magic != MAGIC:
            raise self._damage("does not start with kastore's magic bytes")
        if self.major != 1:
            raise self._damage(f"has version {self.major}.{self.minor}, but glassfs reads version 1")
        self._first_key = HEADER.size + DESCRIPTOR.size * self.count
        if self.size < self._first_key or (self.count == 0 and self.size != HEADER.size):
            raise self._damage(f"the header declares {self.size} bytes, which do not fit {self.count} items")
        if self.size > available:
            raise self._damage(f"is cut short: the header declares {self.size} bytes, but only {available} exist")

    def items(self) -> Iterator[Item]:
        """Read the index. Raises Damaged at the first item whose offset does not follow from the lengths (§1).

        Keys and arrays are consecutive, so all lie inside the store if the last array ends with it.
        """
        key_end, end = self._first_key, 0
        for number, (kind, padding, key_start, key_length, start, length, reserved) in enumerate(self._descriptors()):
            if kind >= len(TYPES):
                raise self._damage(f"item {number} has the unknown element type {kind}")
            if number == 0:
                if not key_end <= start <= self.size:
                    raise self._damage(f"the first array starts at {start}, outside the store")
                first, end = start, start
                self._opening.allowance.part().take(start - key_end, "keys")
                keys = self.source.read(self.start + key_end, start - key_end)
            if key_start != key_end or start != (end + 7) & ~7:  # as ``_aligned``, whose call takes as long as the rest
                raise self._damage(
                    f"the key and the array of item {number} start at {key_start} and {start}, "
                    f"but {key_end} and {_aligned(end)} are expected"
                )
            key_start -= self._first_key
            key = keys[key_start : key_start + key_length]
            if not key or len(key) < key_length:
                raise self._damage(f"the key of item {number} is empty, or runs past the first array")
            key_end, end = key_end + key_length, start + length * SIZES[kind]
            yield tuple.__new__(Item, (key, kind, start, end, length, padding + reserved))
        if self.count and (first, end) != (_aligned(key_end), self.size):
            raise self._damage(
                f"the arrays lie from {first} to {end}, but {_aligned(key_end)} to {self.size} is expected"
            )

    @once
    def survey(self) -> Survey:
        known: dict[bytes, Array] = {}
        array_bytes, keys_end = 0, self._first_key
        previous, first_falling, all_rise = b"", None, True
        for item in self.items():
            key, _, start, end, _, _ = item
            array_bytes += end - start
            keys_end += len(key)
            # The C library searches keys by bisection, so writers sort them. Where they rise strictly, no key can be
            # repeated, which saves comparing all.
            if key <= previous:
                all_rise = False
                if key < previous and first_falling is None:
                    first_falling = key
            previous = key
            if key in tskit.KEYS:
                known[key] = self._array(item)
        return Survey(known, array_bytes, all_rise, first_falling, keys_end)

    @once
    def tree_sequence(self) -> tskit.TreeSequence | None:
        return tskit.recognise(self.survey.known, self._opening)

    @once
    def hidden(self) -> set[int]:
        """The numbers of items whose key a later item has as well. Raises TooLarge beyond the allowance."""
        if self.survey.all_rise:
            return set()
        hidden = set[int]()
        last: dict[bytes, int] = {}
        allowance = self._opening.allowance.part()
        for number, item in enumerate(self.items()):
            allowance.take(OBJECT, "keys that are not sorted")
            if item.key in last:
                hidden.add(last[item.key])
            last[item.key] = number
        if hidden:
            self._opening.warn(
                f"{len(hidden)} items share their key with a later one, which keeps the name", self.place,
            )
        return hidden

    def members(self) -> Iterator[Member]:
        """Yield the arrays in index order, then those whose key a later item repeats, then tskit's contents."""
        for is_late in (False, True) if self.hidden else (False,):
            for number, item in enumerate(self.items()):
                if (number in self.hidden) == is_late:
                    # A tree is at most 256 directories deep: the rest of a name is one component.
                    yield Member(tuple(item.key.split(b"/", 255)), self._array(item))
        if self.tree_sequence is not None:
            yield from self.tree_sequence.members()
            yield from self.tree_sequence.tables()
            yield from tree_sequences.members(self.tree_sequence)

    def check(self) -> Iterator[Fault]:
        falling = self.survey.first_falling
        if falling is not None:
            yield Fault(self._path(falling), "its key is out of order, so the C library may not find it")
        for number, item in enumerate(self.items()):
            if number in self.hidden:
                yield Fault(self._path(item.key), f"item {number} has the same key as a later one")
        if self.minor == 0:  # later minor versions may use them
            if any(self._reserved):
                yield Fault(self.place, "reserved bytes of the header are not zero")
            used = (number for number, item in enumerate(self.items()) if any(item.reserved))
            for number in islice(used, 1):
                yield Fault(self.place, f"reserved bytes of the descriptors from item {number} on are not zero")
        end = self.survey.keys_end
        for item in self.items():
            if any(self.source.read(self.start + end, item.start - end)):
                yield Fault(self._path(item.key), "the padding before the array is not zero")
                break
            end = item.end
        if self.tree_sequence is not None:
            for place, reason in self.tree_sequence.faults():
                yield Fault(self._path(place.encode()), reason)

    def _descriptors(self) -> Iterator[tuple[Any, ...]]:
        for first in range(0, self.count, AT_ONCE):
            size = DESCRIPTOR.size * min(AT_ONCE, self.count - first)
            yield from DESCRIPTOR.iter_unpack(
                self.source.read(self.start + HEADER.size + DESCRIPTOR.size * first, size)
            )

    def _array(self, item: Item) -> Array:
        type_name, dtype = TYPES[item.kind]
        data = Extent(self.source, self.start + item.start, item.end - item.start)
        return Array(item.key, data, dtype, (item.length,), type_name)

    def _path(self, key: bytes) -> str:
        path = key.decode("utf-8", "backslashreplace")
        return f"{self.place}/{path}" if self.place else path

    def _damage(self, reason: str) -> Damaged:
        return self.source.damage(reason, self.place)


def _open(opening: Opening) -> Container:
    source, first = opening.source, ArrayStore(opening)
    survey = first.survey
    appended, rest, left_out = _appended(opening, first.size)
    if rest is not None:
        opening.warn(rest.reason, rest.place)
    facts: dict[str, Any] = {
        "keys": first.count, "array_bytes": survey.array_bytes, "store_bytes": first.size,
        "appended_stores": len(appended),
    }
    if first.tree_sequence is not None:
        opening.allowance.take(192 * OBJECT, "tables")
        facts |= first.tree_sequence.facts()

    def members() -> Iterator[Member]:
        yield from first.members()
        for number, start in enumerate(appended, 1):
            place = f"appended/{number}"
            inside = partial(_members_of, opening, start, place)
            yield Member((b"appended", b"%d" % number), Group(place.encode(), inside))
        if left_out:
            yield Member((b"appended", b"%d" % (len(appended) + 1)), Omitted(b"", left_out))

    def check() -> Iterator[Fault]:
        yield from first.check()
        for number, start in enumerate(appended, 1):
            try:
                yield from ArrayStore(opening, start, f"appended/{number}").check()
            except Damaged as damage:
                yield Fault(f"appended/{number}", damage.reason)
        if rest is not None:
            yield rest

    root = Group(b"", members)
    is_of_trees = first.tree_sequence is not None or appended
    summaries = {tree_sequences.NAME: partial(_trees, opening, first, appended)} if is_of_trees else {}
    return Container(
        "kastore", f"{first.major}.{first.minor}", root, [source], facts, check, summaries=summaries,
        arrays=lambda: root,
    )


def _trees(opening: Opening, first: ArrayStore, appended: Sequence[int]) -> Summary | None:
    """Return a row for each store that is a tree sequence, in the order of the stores."""

    def sequence_at(start: int) -> tskit.TreeSequence:
        sequence = (ArrayStore(opening, start) if start else first).tree_sequence
        if sequence is None:
            raise opening.source.damage("is no tree sequence")
        return sequence

    starts = array("Q")
    columns: dict[str, str] = {}
    for start in (0, *appended):
        work.check()
        with suppress(Damaged):  # a store costs only its own row
            found = tree_sequences.columns_of(sequence_at(start))
            starts.append(start)
            if len(columns) < LARGEST_SUMMARY:
                columns = dict(found) | columns
    if not starts:
        return None
    records = Records(
        tree_sequences.NAME.encode(), len(starts),
        lambda number: [tree_sequences.values_of(sequence_at(starts[number]))],
        cost=lambda number: tree_sequences.cost_of(sequence_at(starts[number])),
    )
    return summary_of(tree_sequences.NAME, tuple(columns.items()), len(starts), records)


def _appended(opening: Opening, position: int) -> tuple[array[int], Fault | None, str]:
    """Return where the stores after the first begin, what is wrong after the last one, and why stores are left out."""
    source, starts = opening.source, array("Q")
    while source.size - position >= len(MAGIC) and source.read(position, len(MAGIC)) == MAGIC:
        place = f"appended/{len(starts) + 1}"
        try:
            opening.allowance.take(OBJECT, "appended stores")
            store = ArrayStore(opening, position, place)
        except TooLarge as error:
            return starts, None, f"too many stores: only {len(starts)} appended ones are shown: {error.reason}"
        except Damaged as damage:
            return starts, Fault(place, damage.reason), f"appended store: {damage.reason}"
        starts.append(position)
        position += store.size
    left = source.size - position
    return starts, Fault("", f"{left} bytes after the last store are ignored") if left else None, ""


def _aligned(position: int) -> int:
    """Return where the array after ``position`` begins (§1)."""
    return (position + 7) & ~7


def _members_of(opening: Opening, start: int, place: str) -> Iterable[Member]:
    return ArrayStore(opening, start, place).members()


_HINT = "starts like a kastore file, but its magic bytes are damaged, as after a transfer in text mode"
FORMAT = Format(
    "kastore", lambda head: head.startswith(MAGIC), _open, lambda head: _HINT if head.startswith(MAGIC[:4]) else None,
    ahead=AHEAD,
)
