"""kastore: stores of one-dimensional arrays under keys that are paths (docs/formats/kastore.md, cited as §).

Stores are uncompressed: every array is a range of the file. The index is read a stretch at a time and not kept; each
pass recomputes every offset from the lengths (§3), so accepted arrays lie inside the file. ``glassfs.formats.tskit``
interprets the arrays of a tskit tree sequence.

Any thread may call any function. An index that contradicts itself or the file raises Damaged: for the first store on
opening, for appended ones (§5) on listing. If the chain of appended stores is broken, the rest is not shown; the log
and ``check`` report it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import accumulate, compress
from operator import add, le, lt, mul, not_, sub
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Array, Container, Extent, Fault, Group, Member, Omitted, Records, Summary, summary_of
from glassfs.content.allowance import OBJECT
from glassfs.errors import Damaged, TooLarge
from glassfs.formats import tree_sequences, tskit
from glassfs.formats.registry import AHEAD, BUILT_IN, JOINED, Format, Opening
from glassfs.once import once
from glassfs.source import Reader

MAGIC = b"\x89KAS\r\n\x1a\n"
HEADER = struct.Struct("<8sHHIQ40x")
DESCRIPTOR = "B7xQQQQ24x"
DESCRIPTOR_SIZE = 64
RESERVED_IN_HEADER = range(24, 64)
RESERVED_IN_DESCRIPTOR = (*range(1, 8), *range(40, 64))
LARGEST_SUMMARY = 512  # columns of the table of trees

TYPES = (
    ("int8", "|i1"), ("uint8", "|u1"), ("int16", "<i2"), ("uint16", "<u2"), ("int32", "<i4"), ("uint32", "<u4"),
    ("int64", "<i8"), ("uint64", "<u8"), ("float32", "<f4"), ("float64", "<f8"),
)
SIZES = tuple(int(dtype[2:]) for _, dtype in TYPES)


class Stretch(NamedTuple):
    """Consecutive items of the checked part of an index, as one sequence per field, which is fast for many items.

    ``starts`` and ``ends`` are offsets of arrays in the store.
    """

    keys: Sequence[bytes]
    kinds: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    lengths: Sequence[int]


class Survey(NamedTuple):
    """The results of one pass over the index.

    ``known`` holds the arrays with tskit's keys, of equal keys the last. If ``all_rise``, no two keys are equal.
    ``first_falling`` is the first key below its predecessor.
    """

    known: dict[bytes, Array]
    array_bytes: int
    all_rise: bool
    first_falling: bytes | None


class ArrayStore:
    """The store at byte ``start`` of a source; ``place`` is its directory (empty for the first). Raises Damaged."""

    def __init__(self, opening: Opening, start: int = 0, place: str = "") -> None:
        self.source, self.start, self.place = opening.source, start, place
        self._opening = opening
        available = self.source.size - start
        if available < HEADER.size:
            raise self._damage(f"the header is cut short: it has {available} of {HEADER.size} bytes")
        header: tuple[bytes, int, int, int, int] = HEADER.unpack(self.source.read(start, HEADER.size))
        magic, self.major, self.minor, self.count, self.size = header
        if magic != MAGIC:
            raise self._damage("does not start with kastore's magic bytes")
        if self.major != 1:
            raise self._damage(f"has version {self.major}.{self.minor}, but glassfs reads version 1")
        self._first_key = HEADER.size + DESCRIPTOR_SIZE * self.count
        if self.size < self._first_key or (self.count == 0 and self.size != HEADER.size):
            raise self._damage(f"the header declares {self.size} bytes, which do not fit {self.count} items")
        if self.size > available:
            raise self._damage(f"is cut short: the header declares {self.size} bytes, but only {available} exist")

    @property
    def end(self) -> int:
        return self.start + self.size

    def stretches(self) -> Iterator[Stretch]:
        """Read the index. Raises Damaged at the first item whose offset does not follow from the lengths (§1).

        Arrays are consecutive, so all lie inside the store if the last one ends with it.
        """
        key_end, array_end, first_array, last_end = self._first_key, 0, 0, 0
        allowance = self._opening.allowance.part()  # each key becomes a name in memory
        for first, raw in self._descriptors():
            fields = struct.unpack("<" + DESCRIPTOR * (len(raw) // DESCRIPTOR_SIZE), raw)
            kinds, key_starts, key_lengths, starts, lengths = (fields[place::5] for place in range(5))
            if max(kinds) >= len(TYPES):
                number, kind = next((number, kind) for number, kind in enumerate(kinds, first) if kind >= len(TYPES))
                raise self._damage(f"item {number} has the unknown element type {kind}")
            block_start, (*keys_expected, key_end) = key_end, accumulate(key_lengths, initial=key_end)
            if key_end > self.size:
                raise self._damage("the keys run past the end of the store")
            allowance.take(key_end - block_start, "keys")
            self._agree("key", first, key_starts, keys_expected)
            if 0 in key_lengths:
                raise self._damage(f"the key of item {first + key_lengths.index(0)} is empty")
            if first == 0:
                first_array = array_end = starts[0]
            ends = list(map(add, starts, map(mul, lengths, map(SIZES.__getitem__, kinds))))
            self._agree("array", first, starts, [array_end, *map(_aligned, ends[:-1])])
            array_end = _aligned(ends[-1])
            block = self.source.read(self.start + block_start, key_end - block_start)
            borders = list(accumulate(key_lengths, initial=0))
            keys = list(map(block.__getitem__, map(slice, borders, borders[1:])))
            yield Stretch(keys, kinds, starts, ends, lengths)
            last_end = ends[-1]
        if self.count and first_array != _aligned(key_end):
            raise self._damage(f"the first array starts at {first_array}, but {_aligned(key_end)} is expected")
        if self.count and last_end != self.size:
            raise self._damage(f"the last array ends at {last_end}, but the store at {self.size}")

    def keys(self) -> Iterator[bytes]:
        """Yield all keys in the order of the index. Raises Damaged."""
        for stretch in self.stretches():
            yield from stretch.keys

    @once
    def survey(self) -> Survey:
        known: dict[bytes, Array] = {}
        array_bytes = 0
        previous, first_falling, all_rise = b"", None, True
        for stretch in self.stretches():
            keys = stretch.keys
            array_bytes += sum(map(sub, stretch.ends, stretch.starts))
            before = (previous, *keys[:-1])
            if any(map(le, keys, before)):
                all_rise = False
                if first_falling is None:
                    first_falling = next(compress(keys, map(lt, keys, before)), None)
            previous = keys[-1]
            if not tskit.KEYS.isdisjoint(keys):
                arrays = (content for _, content in self._arrays([stretch]) if isinstance(content, Array))
                known.update({array.key: array for array in arrays if array.key in tskit.KEYS})
        return Survey(known, array_bytes, all_rise, first_falling)

    @once
    def tree_sequence(self) -> tskit.TreeSequence | None:
        return tskit.recognise(self.survey.known, self._opening)

    @once
    def hidden(self) -> bytes | None:
        """One byte per item, 1 if a later item has the same key; None if all keys differ.

        Found by 64-bit hashes, as the keys would take too much memory. If two keys share a hash, ``members`` lists the
        earlier one late, with no other effect.
        """
        if self.survey.all_rise:
            return None
        import numpy as np

        hashes = np.fromiter(map(hash, self.keys()), np.int64, self.count)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        is_hidden = np.zeros(self.count, np.bool_)
        is_hidden[order[:-1][hashes[:-1] == hashes[1:]]] = True
        if not is_hidden.any():
            return None
        count = np.count_nonzero(is_hidden)
        self._opening.warn(f"{count} items share their key with a later one, which keeps the name", self.place)
        return is_hidden.tobytes()

    def members(self) -> Iterator[Member]:
        """Yield the arrays in index order, then those whose key a later item repeats, then tskit's contents."""
        hidden = self.hidden
        if hidden is None:
            yield from self._arrays(self.stretches())
        else:
            yield from compress(self._arrays(self.stretches()), map(not_, hidden))
            yield from compress(self._arrays(self.stretches()), hidden)
        if self.tree_sequence is not None:
            yield from self.tree_sequence.members()
            yield from self.tree_sequence.tables()

    def check(self) -> Iterator[Fault]:
        falling = self.survey.first_falling
        if falling is not None:
            yield Fault(self._path(falling), "its key is out of order, so the C library may not find it")
        if self.hidden is not None:
            for number, key in compress(enumerate(self.keys()), self.hidden):
                yield Fault(self._path(key), f"item {number} has the same key as a later one")
        if self.minor == 0:  # later minor versions may use them
            yield from self._reserved_faults()
        yield from self._padding_faults()
        if self.tree_sequence is not None:
            for place, reason in self.tree_sequence.faults():
                yield Fault(self._path(place.encode()), reason)

    def _reserved_faults(self) -> Iterator[Fault]:
        if any(self.source.read(self.start + RESERVED_IN_HEADER.start, len(RESERVED_IN_HEADER))):
            yield Fault(self.place, "reserved bytes of the header are not zero")
        for first, raw in self._descriptors():
            if any(any(raw[byte :: DESCRIPTOR_SIZE]) for byte in RESERVED_IN_DESCRIPTOR):
                yield Fault(self.place, f"reserved bytes of the descriptors from item {first} on are not zero")
                return

    def _padding_faults(self) -> Iterator[Fault]:
        keys_end = self.start + self._first_key + sum(map(len, self.keys()))
        reader = Reader(self.source, keys_end, self.end, "padding")
        for stretch in self.stretches():
            for key, start, end in zip(stretch.keys, stretch.starts, stretch.ends, strict=True):
                if any(reader.take(self.start + start - reader.position)):
                    yield Fault(self._path(key), "the padding before the array is not zero")
                    return
                reader.skip(end - start)

    def _descriptors(self) -> Iterator[tuple[int, bytes]]:
        """Yield stretches of descriptors, each with the number of its first item."""
        at_once = 4096
        for first in range(0, self.count, at_once):
            place = self.start + HEADER.size + DESCRIPTOR_SIZE * first
            yield first, self.source.read(place, DESCRIPTOR_SIZE * min(at_once, self.count - first))

    def _arrays(self, stretches: Iterable[Stretch]) -> Iterator[Member]:
        """Yield the items as contents. There may be millions, so common values are shared objects."""
        source, origin, shape = self.source, self.start, (0,)
        for keys, kinds, starts, ends, lengths in stretches:
            for key, kind, start, end, length in zip(keys, kinds, starts, ends, lengths, strict=True):
                type_name, dtype = TYPES[kind]
                # A tree is at most 256 directories deep: the rest of a name is one component.
                name = tuple(key.split(b"/", 255)) if b"/" in key else (key,)
                if length != shape[0]:
                    shape = (length,)
                yield Member(name, Array(key, Extent(source, origin + start, end - start), dtype, shape, type_name))

    def _agree(self, what: str, first: int, found: Sequence[int], expected: Sequence[int]) -> None:
        """Raise Damaged where ``found`` differs from ``expected``; ``first`` is the number of the first item."""
        if list(found) != expected:
            number = next(number for number, start in enumerate(expected) if start != found[number])
            start, right = found[number], expected[number]
            raise self._damage(f"the {what} of item {first + number} starts at {start}, but {right} is expected")

    def _path(self, key: bytes) -> str:
        path = key.decode("utf-8", "backslashreplace")
        return f"{self.place}/{path}" if self.place else path

    def _damage(self, reason: str) -> Damaged:
        return self.source.damage(reason, self.place)


def _open(opening: Opening) -> Container:
    source, first = opening.source, ArrayStore(opening)
    survey = first.survey
    appended, rest, left_out = _appended(opening, first.end)
    if rest is not None:
        opening.warn(rest.reason, rest.place)
    facts: dict[str, Any] = {
        "keys": first.count, "array_bytes": survey.array_bytes, "store_bytes": first.size,
        "appended_stores": len(appended),
    }
    if first.tree_sequence is not None:
        facts |= first.tree_sequence.facts()

    def members() -> Iterator[Member]:
        yield from first.members()
        for number, start in enumerate(appended, 1):
            inside = partial(_members_of, opening, start, _place(number))
            yield Member((b"appended", b"%d" % number), Group(_place(number).encode(), inside))
        if left_out:
            yield Member((b"appended", b"%d" % (len(appended) + 1)), Omitted(b"", left_out))

    def check() -> Iterator[Fault]:
        yield from first.check()
        for number, start in enumerate(appended, 1):
            try:
                yield from ArrayStore(opening, start, _place(number)).check()
            except Damaged as damage:
                yield Fault(_place(number), damage.reason)
        if rest is not None:
            yield rest

    root = Group(b"", members)
    is_of_trees = first.tree_sequence is not None or appended
    summaries = {tree_sequences.NAME: partial(_trees, opening, first, appended)} if is_of_trees else {}
    return Container("kastore", f"{first.major}.{first.minor}", root, [source], facts, check, summaries=summaries)


def _trees(opening: Opening, first: ArrayStore, appended: Sequence[int]) -> Summary | None:
    """Return a row for each store that is a tree sequence, in the order of the stores."""

    def row_at(start: int) -> tree_sequences.TreeRow | None:
        sequence = (ArrayStore(opening, start) if start else first).tree_sequence
        return None if sequence is None else tree_sequences.TreeRow(sequence)

    def known(number: int) -> tree_sequences.TreeRow:
        row = rows[0] if number == 0 else row_at(starts[number])
        if row is None:
            raise opening.source.damage("is another store than before")
        return row

    starts, rows = array("Q"), list[tree_sequences.TreeRow]()
    columns: dict[str, str] = {}
    for number, start in enumerate((0, *appended)):
        work.check()
        with suppress(Damaged) if number else nullcontext():  # an appended store costs only its own row
            row = row_at(start)
            if row is not None:
                starts.append(start)
                rows = rows or [row]  # the others are made again when they are needed
                if len(columns) < LARGEST_SUMMARY:
                    columns = dict(row.columns) | columns
    if not starts:
        return None
    records = Records(
        tree_sequences.NAME.encode(), len(starts), lambda number: [known(number).values],
        cost=lambda number: known(number).cost,
    )
    return summary_of(tree_sequences.NAME, tuple(columns.items()), len(starts), records)


def _appended(opening: Opening, position: int) -> tuple[array[int], Fault | None, str]:
    """Return where the stores after the first begin, what is wrong after the last one, and why stores are left out."""
    source, starts = opening.source, array("Q")
    while source.size - position >= len(MAGIC) and source.read(position, len(MAGIC)) == MAGIC:
        place = _place(len(starts) + 1)
        try:
            opening.allowance.take(OBJECT, "appended stores")
            store = ArrayStore(opening, position, place)
        except TooLarge as error:
            return starts, None, f"too many stores: only {len(starts)} appended ones are shown: {error.reason}"
        except Damaged as damage:
            return starts, Fault(place, damage.reason), f"appended store: {damage.reason}"
        starts.append(position)
        position = store.end
    left = source.size - position
    return starts, Fault("", f"{left} bytes after the last store are ignored") if left else None, ""


def _place(number: int) -> str:
    return f"appended/{number}"


def _aligned(position: int) -> int:
    """Return where the array after ``position`` begins (§1)."""
    return (position + 7) & ~7


def _members_of(opening: Opening, start: int, place: str) -> Iterable[Member]:
    return ArrayStore(opening, start, place).members()


def _hint(head: bytes) -> str | None:
    if head.startswith(MAGIC[:4]):
        return "starts like a kastore file, but its magic bytes are damaged, as after a transfer in text mode"
    return None


FORMAT = Format(
    "kastore", lambda head: head.startswith(MAGIC), _open, _hint, BUILT_IN["kastore"], joined=JOINED["kastore"],
    ahead=AHEAD,
)
