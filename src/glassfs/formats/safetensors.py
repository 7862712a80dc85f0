"""safetensors: tensors of a model under labels, described by JSON in front of them (docs/formats/safetensors.md, as §).

A header that contradicts itself or the file raises Damaged, before anything is allocated by its numbers. Tensors are
ranges of a file. Any thread may call any function.

An index names the tensors of a model in shards, each in one of the files beside it (§8). All headers are read when it
is opened, a little of each file: types and sizes are in them, and a reader may see no more than every file allows. A
shard that is missing, damaged, or without a tensor that the index names costs no more than these tensors. Opening
raises Damaged for the index itself, and Refused if no shard can be read.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import prod
from sys import getsizeof, intern
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Array, Container, Document, Extent, Group, Member, Omitted, Undecoded, booleans
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.dtypes import BFLOAT16, NARROW, WIDE, widened
from glassfs.content.rows import refuse_constant
from glassfs.errors import GlassfsError, NotFound, Passing, Refused, TooLarge
from glassfs.formats.mistaken import mistaken, some
from glassfs.formats.registry import HEAD, Format, Head, Opening
from glassfs.source import Source
from glassfs.threads import DaemonPool

LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000
"""Bytes (§1)."""
MOST_AXES = 32
"""Axes of an array in the oldest NumPy that glassfs supports."""
METADATA = "__metadata__"
TENSORS, FILE = b"tensors", b"file"

_HEAD = re.compile(rb'.{4}\0{4}\{[ \t\r\n]*["}]', re.DOTALL)
_SIMILAR = re.compile(rb'.{6}\0\0[ \t\r\n]*\{[ \t\r\n]*["}]', re.DOTALL)
AT_ONCE = 16
"""Shards of a remote model that are requested at a time, as each takes a round trip."""
_NAME = re.compile(r"\.safetensors\.index(?:\.[^.]+)?\.json$", re.IGNORECASE)
_OBJECT = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*["}]')
_WEIGHTS = re.compile(rb'"weight_map"\s{0,9}:\s{0,9}\{\s{0,99}"[^"]*"\s{0,9}:\s{0,9}"[^"]*\.safetensors"')
_ahead = DaemonPool("shards", AT_ONCE)
TYPES = {
    "F64": (64, "<f8"), "F32": (32, "<f4"), "F16": (16, "<f2"), "BF16": (16, BFLOAT16),
    "I64": (64, "<i8"), "I32": (32, "<i4"), "I16": (16, "<i2"), "I8": (8, "|i1"),
    "U64": (64, "<u8"), "U32": (32, "<u4"), "U16": (16, "<u2"), "U8": (8, "|u1"),
    "BOOL": (8, "|b1"), "C64": (64, "<c8"),
    "F8_E4M3": (8, "float8_e4m3fn"), "F8_E5M2": (8, "float8_e5m2"), "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"), "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F4": (4, ""), "F6_E2M3": (6, ""), "F6_E3M2": (6, ""),
}
"""The bits of an item, and its dtype or kind of ``NARROW``, "" for neither; by the names in the header (§4)."""


class Tensor(NamedTuple):
    """A tensor as its description says: bytes ``[begin, end)`` of the data."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys are distinct."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _number(digits: str) -> int | float:
    """Return a number without a fraction; -0 is no integer to the library."""
    return -0.0 if digits == "-0" else int(digits)


def parsed(source: Source, offset: int, size: int, allowance: Allowance, what: str) -> dict[str, Any]:
    """Return the JSON object of ``size`` bytes at ``offset`` of a source, within an allowance; ``what`` it is.

    Raises Damaged unless it is one in UTF-8 whose keys are distinct, at any depth.
    """
    allowance.take(size, what)
    raw = source.buffer(offset, size)
    # A text in which one character needs four bytes takes four for each of them. The objects that a text becomes are
    # counted before it is parsed: each has a quote, comma or bracket of its own.
    wide = 1 if raw.isascii() else 4
    allowance.take(size * wide + OBJECT // 4 * sum(map(raw.count, b'",[{')), what)
    try:
        found: dict[str, Any] = json.loads(
            raw.decode(), object_pairs_hook=_checked, parse_constant=refuse_constant, parse_int=_number,
        )
        if b"\\u" in raw:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # Unicode errors are among these
        reason = str(error).partition(": line ")[0]
        raise source.damage(f"is not valid JSON: {reason}", what) from None
    return found


class TensorHeader:
    """The header of an open file, checked (§2, §3). Raises Damaged, and TooLarge beyond the allowance.

    ``metadata_cost`` is the memory in bytes that the metadata take. Of names that are among ``known``, its values are
    used, whose memory the caller has counted.
    """

    def __init__(self, source: Source, allowance: Allowance, known: Mapping[str, str]) -> None:
        self.source = source
        (self.size,) = LENGTH.unpack(source.read(0, LENGTH.size))
        self.data_size = source.size - LENGTH.size - self.size
        if self.size > LONGEST_HEADER or self.data_size < 0:
            raise source.damage(f"has a header of {self.size} bytes, which is too long")
        described = parsed(source, LENGTH.size, self.size, allowance.part(), "the header")
        metadata = described.pop(METADATA, None)
        if type(metadata) not in (dict, type(None)):
            raise source.damage(f"has {METADATA} that is no object of texts", "the header")
        self.metadata: dict[str, str] | None = metadata or None
        self.metadata_cost = 0
        for name, value in (metadata or {}).items():
            if type(value) is not str:
                raise source.damage("is no text", f"{METADATA}/{name[:100]}")
            self.metadata_cost += OBJECT + getsizeof(name) + getsizeof(value)
        allowance.take(self.metadata_cost, "metadata")
        self.tensors: list[Tensor] = []
        for name, value in described.items():
            tensor = self._tensor(known.get(name, name), value)
            # Two tuples and their numbers.
            cost = 2 * OBJECT + 40 * len(tensor.shape)
            allowance.take(cost if name in known else cost + getsizeof(name), "tensors")
            self.tensors.append(tensor)
        # Tensors may be in any order, and one that overlaps another would show bytes under two names (§3).
        reached = 0
        for begin, end in [*sorted(tensor[3:] for tensor in self.tensors), (self.data_size, self.data_size)]:
            if begin > reached:
                raise source.damage(f"bytes {reached} to {begin} of its data belong to no tensor")
            if begin < reached:
                raise source.damage(f"bytes {begin} to {reached} of its data belong to more than one tensor")
            reached = end

    def members(self, file: str = "") -> Iterator[Member]:
        """Yield the tensors in the order of the header, as those of ``file`` in a container of several files."""
        for tensor in self.tensors:
            key = tensor.name.encode()
            content = self._content(key, tensor)
            content.in_file = file
            yield Member((key,), content)

    def facts(self) -> dict[str, Any]:
        return {"tensors": len(self.tensors), "bytes": self.data_size, METADATA: self.metadata}

    def _tensor(self, name: str, value: Any) -> Tensor:
        """Return what a description says. Its size agrees with its shape, and its bytes lie in the data."""
        value, place = value if type(value) is dict else {}, f"tensors/{name[:100]}"
        type_name, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
        if type(type_name) is not str or not _are_numbers(shape) or not _are_numbers(offsets) or len(offsets) != 2:
            raise self.source.damage("has no description of dtype, shape and two data_offsets", place)
        begin, end = offsets
        if not begin <= end <= self.data_size:
            raise self.source.damage(f"has the bytes {begin} to {end}, but the data have {self.data_size}", place)
        if type_name in TYPES:
            items, bits = 1, TYPES[type_name][0]
            for length in shape:
                items *= length
                if items * bits >= 1 << 64:
                    raise self.source.damage(f"has a shape that is too large, {shape[:MOST_AXES]}", place)
            if items * bits != 8 * (end - begin):
                what = f"{items} items of {type_name}"
                raise self.source.damage(f"has {end - begin} bytes, which is not the size of {what}", place)
        return Tensor(name, intern(type_name), tuple(shape), begin, end)

    def _content(self, key: bytes, tensor: Tensor) -> Array | Undecoded:
        _, type_name, shape, begin, end = tensor
        data = Extent(self.source, LENGTH.size + self.size + begin, end - begin)
        bits, dtype = TYPES.get(type_name, (0, ""))
        width = 4 if dtype in NARROW else bits // 8
        # NumPy counts the bytes of an array in 63 bits, those of empty axes as if they had one item.
        is_array = len(shape) <= MOST_AXES and width * prod(length or 1 for length in shape) < 1 << 63
        if not dtype or not is_array:
            return Undecoded(key, data, type_name[:100], shape[:MOST_AXES])
        if dtype in NARROW:
            return Array(key, widened(data, dtype), WIDE, shape, type_name)
        return Array(key, booleans(data, data.size) if dtype == "|b1" else data, dtype, shape, type_name)


def _are_numbers(values: Any) -> bool:
    """Return whether this is a list of integers that have 64 bits."""
    return type(values) is list and all(type(value) is int and 0 <= value < 1 << 64 for value in values)


def model(
    sources: list[Source], headers: Iterable[TensorHeader], cost: int, described: Mapping[str, Any],
    members: Callable[[], Iterable[Member]], facts: Mapping[str, Any],
) -> Container:
    """Return the container of tensors, which ``members`` yields, with headers in these files.

    ``described`` has further facts for a document, which take ``cost`` bytes, ``facts`` those for the container.
    """
    types: Counter[str] = Counter()
    size = 0
    for header in headers:
        types.update(tensor.type_name if tensor.type_name in TYPES else "other" for tensor in header.tensors)
        size += sum(tensor.end - tensor.begin for tensor in header.tensors)
    count = types.total()
    document = {"format": "safetensors", "tensors": count, "bytes": size, **described}

    def contents() -> Iterator[Member]:
        # Metadata are written as JSON and as text, in which a character may take six.
        yield Member((b"meta", FILE), Document(FILE, lambda: document, (16 << 10) + 8 * cost))
        yield Member((TENSORS,), Group(TENSORS, members))

    shown = {"tensors": count, "tensor_bytes": size, "types": dict(types.most_common()), **facts}
    root = Group(b"", contents)
    return Container("safetensors", "1", root, sources, shown, arrays=lambda: root)


def is_safetensors(head: Head) -> bool:
    """Return whether a file has a header of a possible length that begins an object (§1)."""
    return _HEAD.match(head) is not None and LENGTH.unpack_from(head)[0] <= min(LONGEST_HEADER, head.size - LENGTH.size)


def hint(head: Head) -> str | None:
    """Return why a file that seems to have a header is not of this format, or None."""
    if _SIMILAR.match(head) is None:
        return None
    (size,) = LENGTH.unpack_from(head)
    found = f"its header has {size} bytes, but only {head.size - LENGTH.size} follow"
    if size <= head.size - LENGTH.size:
        found = f"its header of {size} bytes is longer than {LONGEST_HEADER}, or begins with white space"
    return f"starts like a safetensors file, but {found}"


def is_index(head: Head) -> bool:
    """Return whether a file is a JSON object with the name of an index, or with shards of a model in its first bytes.
    """
    return _OBJECT.match(head) is not None and bool(_NAME.search(head.name) or _WEIGHTS.search(head))


def open_index(opening: Opening) -> Container:
    """Open an index and its shards. Raises Refused, Damaged, TooLarge, and Passing if it cannot be determined now."""
    source, allowance = opening.source, opening.allowance
    index = parsed(source, 0, source.size, allowance.part(), "the index")
    weights, metadata = index.pop("weight_map", None), index.pop("metadata", None)
    if type(weights) is not dict or not all(type(name) is str for name in weights.values()):
        raise source.damage("is JSON without a weight_map of files, such as the answer of a server about an error")
    tensors_of: dict[str, dict[str, str]] = {}
    for tensor, name in weights.items():
        if name not in tensors_of:
            allowance.take(16 * OBJECT + getsizeof(name), "shards")
        allowance.take(OBJECT + getsizeof(tensor), "tensors")
        tensors_of.setdefault(name, {})[tensor] = tensor
    del weights
    metadata = metadata if type(metadata) is dict else {}
    described = {key: value for key, value in metadata.items() if not isinstance(value, (dict, list))}
    cost = sum(OBJECT + getsizeof(key) + getsizeof(value) for key, value in described.items())
    allowance.take(cost, "metadata")
    shards = _Shards(opening)
    for name, opened in _each(opening, list(tensors_of)):
        # The names of its tensors are in its header from now on, or dropped.
        shards.add(name, tensors_of.pop(name), opened)
    headers = [header for _, header in shards.headers]
    cost += sum(header.metadata_cost for header in headers) + 8 * OBJECT * len(shards.facts)
    if shards.facts and not headers:
        first = f"{shards.facts[0]['name'][:255]} {shards.facts[0]['unreadable']}"
        raise Refused(f"none of its {len(shards.facts):,} shards can be read: {first}", source.name)
    lost = len(shards.facts) - len(headers)
    facts = {"shards": len(shards.facts), **({"unreadable_shards": lost} if lost else {})}
    document = {"metadata": described or None, "shards": shards.facts}
    return model(shards.sources, headers, cost, document, shards.members, facts)


class _Shards:
    """The shards of a model: their sources after that of the index, their headers with the tensors that the index names
    in each, facts of each for a document, and what is left out of the model.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.sources = [opening.source]
        self.headers: list[tuple[str, TensorHeader]] = []
        self.facts: list[dict[str, Any]] = []
        self._omitted: list[Omitted] = []

    def members(self) -> Iterator[Member]:
        for name, header in self.headers:
            yield from header.members(name)
        for omitted in self._omitted:
            yield Member((omitted.key,), omitted)

    def add(self, name: str, tensors: Mapping[str, str], opened: Callable[[], Source]) -> None:
        """Add a shard in which the index names these tensors."""
        try:
            header = self._header(opened(), tensors)
        except (Passing, TooLarge) as error:
            raise type(error)(error.reason, self._opening.source.name, name) from error
        except GlassfsError as error:
            reason = error.reason if isinstance(error, NotFound) else error.without_source
            self.facts.append({"name": name, "unreadable": reason})
            self._omit(name, f"{reason}, and with it ", tensors, is_damage=True)
            return
        self.facts.append({"name": name, **header.facts()})
        self.headers.append((name, header))
        found = {tensor.name for tensor in header.tensors}
        self._omit(name, "lacks ", [tensor for tensor in tensors if tensor not in found], is_damage=True)
        self._omit(name, "not in the index: ", sorted(found - tensors.keys()))
        header.tensors = [tensor for tensor in header.tensors if tensor.name in tensors]

    def _header(self, shard: Source, tensors: Mapping[str, str]) -> TensorHeader:
        self.sources.append(shard)
        try:
            head = Head.of(shard, shard.read_ahead(HEAD))
            if not is_safetensors(head):
                raise Refused(hint(head) or mistaken(head) or "is no safetensors file")
            return TensorHeader(shard, self._opening.allowance, tensors)
        finally:
            shard.drop_ahead()
            if not self._opening.known:  # there may be more shards than descriptors: reading opens them again
                shard.park()
                shard.keep()

    def _omit(self, name: str, reason: str, tensors: Iterable[str], is_damage: bool = False) -> None:
        names = [tensor[:100] for tensor in tensors]
        if names:
            said = f"{reason}{len(names):,} tensor{'' if len(names) == 1 else 's'}: {some(names)}"
            self._omitted.append(Omitted(name.encode(), said, is_damage))


def _each(opening: Opening, names: Iterable[str]) -> Iterator[tuple[str, Callable[[], Source]]]:
    """Yield each name with a function that returns the source of the shard, or raises why it cannot be opened."""
    def opened(name: str) -> Source:
        shard = opening.sibling(name)
        shard.read_ahead(HEAD)
        return shard

    if not opening.source.is_remote:
        yield from ((name, partial(opened, name)) for name in names)
        return
    ahead, waiting = work.derived(), iter(names)
    begin = lambda name: (name, _ahead.submit(partial(work.done_for, ahead, partial(opened, name))))  # noqa: E731
    begun = deque(map(begin, islice(waiting, AT_ONCE)))
    try:
        while begun:
            name, future = begun.popleft()
            work.is_done(future)
            begun.extend(map(begin, islice(waiting, 1)))
            yield name, future.result
    finally:
        ahead.cancel()


def _open(opening: Opening) -> Container:
    if opening.source.read(0, min(8, opening.source.size))[4:] != bytes(4):  # no length of a header
        return open_index(opening)
    header = TensorHeader(opening.source, opening.allowance, {})
    return model([opening.source], [header], header.metadata_cost, header.facts(), header.members, {})


FORMAT = Format("safetensors", lambda head: is_safetensors(head) or is_index(head), _open, hint)
