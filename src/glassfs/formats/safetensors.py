"""safetensors: tensors of a model under labels, described by JSON in front of them (docs/formats/safetensors.md, as §).

The header may have 100 MB, so it is read and decoded a piece at a time. Opening checks all of it. The cache keeps what
listings need, so that they do not parse the header again. Tensors are ranges of the file.

Any thread may call any function. A header that contradicts itself or the file raises Damaged on opening, before
anything is allocated by its numbers.
"""

from __future__ import annotations

import codecs
import marshal
import re
import struct
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice, pairwise
from json import JSONDecoder
from math import prod
from typing import Any, NamedTuple

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.content import Array, Blob, Container, Content, Document, Extent, Group, Member, Rendered, Stored, booleans
from glassfs.content.allowance import OBJECT, Allowance, held
from glassfs.content.dtypes import BFLOAT16, NARROW, WIDE, widened
from glassfs.errors import Damaged
from glassfs.formats.registry import BUILT_IN, Format, Head, Opening
from glassfs.source import Reader

LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000  # bytes (§1)
LONGEST_ITEM = 64 << 10  # characters of a tensor's name, and of its description
LONGEST_TEXT = 16 << 20  # characters of a key or a value of the metadata
MOST_AXES = 32  # of an array in the oldest NumPy that glassfs supports
LARGEST_ARRAY = 1 << 63  # bytes, those of empty axes counted as one
LARGEST_NUMBER = 1 << 64
METADATA = "__metadata__"
TENSORS, FILE = b"tensors", b"file"

WINDOW = 64 << 10
"""Bytes decoded at a time, if no value is longer."""
READ_AT_ONCE = 2 << 20
"""Bytes of the header in one read of the source."""
TEXT_COST = 8
"""The memory in bytes that text takes for each of its bytes: as bytes, as characters, and as a value."""
TENSOR_COST = 96
"""The memory in bytes that checking takes for each tensor."""
DOCUMENT_COST = 16 << 10
COPIES = 8
"""The memory that metadata take while they are written, as a multiple of what their values take."""
CHECKED_AT_ONCE = 1024
PACKING_COST = 4
"""The memory that packing the tensors takes, as a multiple of the header's bytes."""
LEAST_MEMORY = 64 << 20

_HEAD = re.compile(rb'.{4}\0{4}\{[ \t\r\n]*["}]', re.DOTALL)
_SIMILAR = re.compile(rb'.{6}\0\0([ \t\r\n]*)\{[ \t\r\n]*["}]', re.DOTALL)
_SPACES = " \t\r\n"
_SPACE = re.compile(f"[{_SPACES}]*")


class Type(NamedTuple):
    """The bits of an item, and what it becomes: NumPy's dtype, a kind of ``NARROW``, or nothing."""

    bits: int
    dtype: str = ""


TYPES = {
    "F64": Type(64, "<f8"), "F32": Type(32, "<f4"), "F16": Type(16, "<f2"), "BF16": Type(16, BFLOAT16),
    "I64": Type(64, "<i8"), "I32": Type(32, "<i4"), "I16": Type(16, "<i2"), "I8": Type(8, "|i1"),
    "U64": Type(64, "<u8"), "U32": Type(32, "<u4"), "U16": Type(16, "<u2"), "U8": Type(8, "|u1"),
    "BOOL": Type(8, "|b1"), "C64": Type(64, "<c8"),
    "F8_E4M3": Type(8, "float8_e4m3fn"), "F8_E5M2": Type(8, "float8_e5m2"), "F8_E8M0": Type(8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": Type(8, "float8_e4m3fnuz"), "F8_E5M2FNUZ": Type(8, "float8_e5m2fnuz"),
    "F4": Type(4), "F6_E2M3": Type(6), "F6_E3M2": Type(6),
}
"""By the names in the header (§4)."""


class Tensor(NamedTuple):
    """A tensor as its description says: bytes ``[begin, end)`` of the data."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Item(NamedTuple):
    """A tensor's name and description, or a key of the metadata and its value."""

    is_metadata: bool
    name: str
    value: Any


@dataclass(slots=True)
class Undecoded(Blob):
    """A tensor that is no array of NumPy: its bytes."""

    type_name: str
    shape: tuple[int, ...]

    def attributes(self) -> dict[str, str]:
        return {"dtype": self.type_name, "shape": str(list(self.shape))} | Stored.attributes(self)


class _Text:
    """The JSON of a header, decoded value by value. For one thread. Raises Damaged where it is no JSON.

    ``allowance`` has reserved the memory of values that are longer than a window.
    """

    def __init__(self, opening: Opening, end: int, allowance: Allowance) -> None:
        self.reader = Reader(opening.source, LENGTH.size, end, "the header", READ_AT_ONCE)
        self._allowance = allowance
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._index = 0
        self._largest = WINDOW

    def items(self) -> Iterator[Item]:
        """Yield all items in the order of the header. Keys may be repeated, except for ``METADATA``."""
        self._take("{")
        has_metadata = False
        for name in self._keys(LONGEST_ITEM):
            if name != METADATA:
                yield Item(False, name, self._value(LONGEST_ITEM))
                continue
            if has_metadata:
                raise self._damage(f"has {METADATA} twice")
            has_metadata = True
            if self._next() == "{":
                self._take("{")
                for key in self._keys(LONGEST_TEXT):
                    yield Item(True, key, self._value(LONGEST_TEXT))
            elif self._value(LONGEST_ITEM) is not None:
                raise self._damage(f"has {METADATA} that is no object of texts")
        if self._next():
            raise self._damage("continues after its object")

    def _keys(self, longest: int) -> Iterator[str]:
        """Yield the keys of an object whose brace was taken. The caller takes the value of each before the next."""
        if self._next() == "}":
            self._take("}")
            return
        while True:
            key = self._value(longest)
            if type(key) is not str:
                raise self._damage("has a key that is no text")
            self._take(":")
            yield key
            if self._take(",}") == "}":
                return

    def _take(self, expected: str) -> str:
        """Take one of these characters."""
        found = self._next()
        if not found or found not in expected:
            shown = repr(found) if found else "its end"
            raise self._damage(f"is not valid JSON: it has {shown} where {' or '.join(expected)} is expected")
        self._index += 1
        return found

    def _next(self) -> str:
        """Return the next character after white space, without taking it; empty at the end."""
        if self._index < len(self._text) and (found := self._text[self._index]) not in _SPACES:
            return found
        while True:
            self._index = _SPACE.match(self._text, self._index).end()  # type: ignore[union-attr]  # always matches
            if self._index < len(self._text):
                return self._text[self._index]
            if not self._go_on():
                return ""

    def _value(self, longest: int) -> Any:
        """Take a value of at most so many characters, or a window."""
        self._next()
        while True:
            try:
                value, end = _decode(self._text, self._index)
                break
            except RecursionError:
                raise self._damage("is JSON nested too deeply") from None
            except ValueError as error:
                # If this is no window, the value may be cut.
                is_long = len(self._text) - self._index > longest
                if is_long or not self._go_on():
                    more = f", or has a value of more than {longest} characters" if is_long else ""
                    reason = str(error).partition(": line ")[0]  # whose numbers are those of the window
                    raise self._damage(f"is not valid JSON{more}: {reason}") from None
        if end - self._index > max(longest, WINDOW):
            raise self._damage(f"has a value of {end - self._index} characters, more than {longest}")
        self._index = end
        return value

    def _go_on(self) -> bool:
        """Decode further bytes: a window, or as many as are left of the text. Return False at the end."""
        left = self._text[self._index :]
        size = min(max(WINDOW, len(left)), self.reader.remaining)
        if not size:
            return False
        if size > self._largest:
            self._allowance.take(TEXT_COST * (size - self._largest), "the header")
            self._largest = size
        try:
            self._text = left + self._decoder.decode(self.reader.take(size), final=not self.reader.remaining)
        except UnicodeDecodeError:
            raise self._damage("is not UTF-8") from None
        self._index = 0
        return True

    def _damage(self, reason: str) -> Damaged:
        return self.reader.damage(reason)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a description has a key twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _number(digits: str) -> int | float:
    """Return a number without a fraction; -0 is no integer to the library."""
    return -0.0 if digits == "-0" else int(digits)


_decode = JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant, parse_int=_number).raw_decode


class Header:
    """The header of an open file, checked (§2, §3). Raises Damaged.

    ``types`` counts the tensors by type; types that glassfs does not know count as ``other``. ``metadata_cost`` is the
    memory in bytes that the metadata take, None if there are none.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.source = source = opening.source
        (self.size,) = LENGTH.unpack(source.read(0, LENGTH.size))
        self.data_size = source.size - LENGTH.size - self.size
        if self.size > LONGEST_HEADER or self.data_size < 0:
            raise source.damage(f"has a header of {self.size} bytes, which is too long")
        self.start = LENGTH.size + self.size
        self.types: Counter[str] = Counter()
        self.metadata_cost: int | None = None
        cache, cost = opening.cache, PACKING_COST * self.size
        self._packed = Rendered(cache, (source.version, b"header"), self._pack, cost=cost) if (
            cost <= cache.largest_cached
        ) else None
        if self._packed is None:
            deque(self._parsed(), maxlen=0)
            return
        with cache.held(self._packed) as packed:
            types, self.metadata_cost = next(_unpacked(packed))
        self.types = Counter(types)

    def members(self) -> Iterator[Member]:
        """Yield the tensors in the order of the header."""
        for tensor in self._tensors():
            key = tensor.name.encode()
            yield Member((key,), self._content(key, tensor))

    def document(self) -> dict[str, Any]:
        """Return the facts of the file, and its metadata."""
        metadata: dict[str, str] | None = None if self.metadata_cost is None else {}
        if metadata is not None:
            with _allowance(self._opening.cache) as allowance:
                for is_metadata, name, value in self._items(allowance):
                    if is_metadata:
                        metadata[name] = value
                    elif metadata:  # they stand together, mostly in front
                        break
        return {"format": "safetensors", "tensors": self.count, "bytes": self.data_size, METADATA: metadata}

    @property
    def count(self) -> int:
        return self.types.total()

    def _items(self, allowance: Allowance) -> Iterator[Item]:
        """Read the header: yield tensors and metadata in its order."""
        return _Text(self._opening, self.start, allowance).items()

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the tensors in the order of the header, parsing it only if nothing packed is cached."""
        if self._packed is None:
            yield from self._parsed()
            return
        with self._opening.cache.held(self._packed) as packed:
            for tensors in islice(_unpacked(packed), 1, None):
                yield from map(Tensor._make, tensors)

    def _pack(self) -> bytes:
        """Return the sums, and then the tensors in parts of CHECKED_AT_ONCE, for ``_unpacked``."""
        tensors = map(tuple, self._parsed())
        with self._opening.cache.waiting():  # the source may be slow
            parts = [marshal.dumps(part) for part in iter(lambda: list(islice(tensors, CHECKED_AT_ONCE)), [])]
        parts.insert(0, marshal.dumps((dict(self.types), self.metadata_cost)))
        return b"".join(LENGTH.pack(len(part)) + part for part in parts)

    def _parsed(self) -> Iterator[Tensor]:
        """Parse the header and check all that it says, against itself and the size of the file. Sets the sums.

        Yields the tensors in its order; what contradicts itself may be found only after the last one.
        """
        begins, ends, hashes = array("Q"), array("Q"), array("q")
        is_in_order, reached = True, 0
        types: Counter[str] = Counter()
        metadata_cost: int | None = None
        with _allowance(self._opening.cache) as allowance:
            for number, (is_metadata, name, value) in enumerate(self._items(allowance)):
                if not number % CHECKED_AT_ONCE:
                    work.check()
                    allowance.take(CHECKED_AT_ONCE * TENSOR_COST, "the header")
                self._demand_encodable(name)
                hashes.append(hash((is_metadata, name)))
                if is_metadata:
                    metadata_cost = (metadata_cost or 0) + self._cost_of_metadata(name, value)
                    continue
                tensor = self._tensor(name, value)
                types[tensor.type_name if tensor.type_name in TYPES else "other"] += 1
                begins.append(tensor.begin)
                ends.append(tensor.end)
                is_in_order = is_in_order and tensor.begin == reached
                reached = tensor.end
                yield tensor
            self._demand_distinct(hashes, allowance)
            if not is_in_order or reached != self.data_size:
                self._demand_covered(begins, ends)
        self.types, self.metadata_cost = types, metadata_cost

    def _cost_of_metadata(self, name: str, value: Any) -> int:
        if type(value) is not str:
            raise self._damage(name, "is no text", METADATA)
        self._demand_encodable(value)
        return OBJECT + held(name) + held(value)

    def _tensor(self, name: str, value: Any) -> Tensor:
        """Return what a description says. Its size agrees with its shape, and its bytes lie in the data."""
        found: dict[str, Any] = value if type(value) is dict else {}
        type_name, shape, offsets = (found.get(key, ()) for key in ("dtype", "shape", "data_offsets"))
        if type(type_name) is not str or not _are_numbers(shape) or not _are_numbers(offsets) or len(offsets) != 2:
            raise self._damage(name, "has no description of dtype, shape and two data_offsets")
        begin, end = offsets
        if not begin <= end <= self.data_size:
            raise self._damage(name, f"has the bytes {begin} to {end}, but the data have {self.data_size}")
        known = TYPES.get(type_name)
        if known is not None:
            items = 1
            for length in shape:
                items *= length
                if items * known.bits >= LARGEST_NUMBER:
                    raise self._damage(name, f"has a shape that is too large, {shape[:MOST_AXES]}")
            if items * known.bits != 8 * (end - begin):
                what = f"{items} items of {type_name}"
                raise self._damage(name, f"has {end - begin} bytes, which is not the size of {what}")
        return Tensor(name, type_name, tuple(shape), begin, end)

    def _content(self, key: bytes, tensor: Tensor) -> Content:
        _, type_name, shape, begin, end = tensor
        data = Extent(self.source, self.start + begin, end - begin)
        dtype = TYPES[type_name].dtype if type_name in TYPES else ""
        width = 4 if dtype in NARROW else TYPES[type_name].bits // 8 if dtype else 0
        is_array = len(shape) <= MOST_AXES and width * prod(length or 1 for length in shape) < LARGEST_ARRAY
        if not dtype or not is_array:
            return Undecoded(key, data, type_name[:100], shape[:MOST_AXES])
        if dtype in NARROW:
            return Array(key, widened(data, dtype), WIDE, shape, type_name)
        return Array(key, booleans(data, data.size) if dtype == "|b1" else data, dtype, shape, type_name)

    def _demand_distinct(self, hashes: array[int], allowance: Allowance) -> None:
        """Raise Damaged if a name is repeated. Hashes take less memory than names, but may be equal by chance."""
        suspects = {first for first, second in pairwise(sorted(hashes)) if first == second}
        if not suspects:
            return
        seen: set[tuple[bool, str]] = set()
        for is_metadata, name, _ in self._items(allowance):
            key = (is_metadata, name)
            if key in seen:
                raise self._damage(name, "is there twice", METADATA if is_metadata else "tensors")
            if hash(key) in suspects:
                allowance.take(OBJECT + held(name), "the header")
                seen.add(key)

    def _demand_covered(self, begins: array[int], ends: array[int]) -> None:
        """Raise Damaged if tensors do not cover the data without holes and overlaps (§3)."""
        import numpy as np

        first, last = np.frombuffer(begins, np.uint64), np.frombuffer(ends, np.uint64)
        order = np.lexsort((last, first))
        first = np.append(first[order], np.uint64(self.data_size))
        reached = np.insert(last[order], 0, 0)
        (wrong,) = np.nonzero(first != reached)
        if len(wrong):
            here, before = int(first[wrong[0]]), int(reached[wrong[0]])
            if here > before:
                raise self.source.damage(f"bytes {before} to {here} of its data belong to no tensor")
            raise self.source.damage(f"bytes {here} to {before} of its data belong to more than one tensor")

    def _demand_encodable(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.source.damage("has a text with half a character (an unpaired surrogate)", "the header") from None

    def _damage(self, name: str, reason: str, place: str = "tensors") -> Damaged:
        return self.source.damage(reason, f"{place}/{name[:100]}")


def _unpacked(packed: bytes | bytearray) -> Iterator[Any]:
    """Yield the parts that ``Header._pack`` wrote in this process."""
    view, offset = memoryview(packed), 0
    while offset < len(view):
        start = offset + LENGTH.size
        offset = start + LENGTH.unpack_from(view, offset)[0]
        yield marshal.loads(view[start:offset])


def _are_numbers(values: Any) -> bool:
    """Return whether this is a list of integers that have 64 bits."""
    return type(values) is list and all(type(value) is int and 0 <= value < LARGEST_NUMBER for value in values)


def _allowance(cache: BlockCache) -> AbstractContextManager[Allowance]:
    return Allowance(max(LEAST_MEMORY, cache.budget // 2)).temporary(cache)


def _open(opening: Opening) -> Container:
    header = Header(opening)
    facts = {"tensors": header.count, "tensor_bytes": header.data_size, "types": dict(header.types.most_common())}
    cost = DOCUMENT_COST + COPIES * (header.metadata_cost or 0)

    def members() -> Iterator[Member]:
        yield Member((b"meta", FILE), Document(FILE, header.document, cost))
        yield Member((TENSORS,), Group(TENSORS, header.members))

    return Container("safetensors", "1", Group(b"", members), [opening.source], facts)


def _recognises(head: Head) -> bool:
    """Return whether a file has a header of a possible length that begins an object (§1)."""
    return _HEAD.match(head) is not None and LENGTH.unpack_from(head)[0] <= min(LONGEST_HEADER, head.size - LENGTH.size)


def _hint(head: Head) -> str | None:
    similar = _SIMILAR.match(head)
    if similar is None:
        return None
    (size,) = LENGTH.unpack_from(head)
    like = "starts like a safetensors file, but"
    if similar[1]:
        return f"{like} with white space before its header"
    if size > LONGEST_HEADER:
        return f"{like} with a header of {size} bytes, more than the {LONGEST_HEADER} of the format"
    return f"{like} is cut short: its header has {size} bytes, but only {head.size - LENGTH.size} follow"


FORMAT = Format("safetensors", _recognises, _open, _hint, BUILT_IN["safetensors"])
