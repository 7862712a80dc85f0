"""safetensors: tensors of a model under labels, described by JSON in front of them (docs/formats/safetensors.md, as §).

The header is parsed and checked once, within the allowance of the container. A block of the cache has what listings
need of it, so that they do not parse it again. Tensors are ranges of the file.

Any thread may call any function. A header that contradicts itself or the file raises Damaged on opening, before
anything is allocated by its numbers.
"""

from __future__ import annotations

import marshal
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecoder
from math import prod
from sys import getsizeof
from typing import Any, NamedTuple

from glassfs import work
from glassfs.content import Array, Blob, Container, Content, Document, Extent, Group, Member, Rendered, Stored, booleans
from glassfs.content.allowance import OBJECT
from glassfs.content.dtypes import BFLOAT16, NARROW, WIDE, widened
from glassfs.errors import Damaged
from glassfs.formats.registry import BUILT_IN, Format, Head, Opening
from glassfs.source import Source

LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000
"""Bytes (§1)."""
LONGEST_DESCRIPTION = 64 << 10
"""Characters of a tensor's description: keys that the format does not have may hold any JSON."""
MOST_AXES = 32
"""Axes of an array in the oldest NumPy that glassfs supports."""
METADATA = "__metadata__"
TENSORS, FILE = b"tensors", b"file"

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


@dataclass(slots=True)
class Undecoded(Blob):
    """A tensor that is no array of NumPy: its bytes."""

    type_name: str
    shape: tuple[int, ...]

    def attributes(self) -> dict[str, str]:
        return {"dtype": self.type_name, "shape": str(list(self.shape))} | Stored.attributes(self)


class _Text:
    """The JSON of a header, decoded value by value. Raises Damaged where it is no JSON."""

    def __init__(self, source: Source, text: str) -> None:
        self._source, self._text = source, text
        self._index = 0

    def items(self) -> Iterator[tuple[bool, str, Any]]:
        """Yield whether an item is one of the metadata, its key and its value, in the order of the header.

        Keys may be repeated, except for ``METADATA``. The value of a tensor is an object, or None for anything else.
        """
        self._take("{")
        has_metadata = False
        for name in self._keys():
            if name != METADATA:
                yield False, name, self._object()
                continue
            if has_metadata:
                raise self._damage(f"has {METADATA} twice")
            has_metadata = True
            if self._text.startswith("null", self._start()):
                self._index += len("null")
            elif self._next() == "{":
                self._take("{")
                for key in self._keys():
                    yield True, key, self._string()
            else:
                raise self._damage(f"has {METADATA} that is no object of texts")
        if self._next():
            raise self._damage("continues after its object")

    def _keys(self) -> Iterator[str]:
        """Yield the keys of an object whose brace was taken. The caller takes the value of each before the next."""
        if self._next() == "}":
            self._take("}")
            return
        while True:
            key = self._string()
            if key is None:
                raise self._damage("is not valid JSON: it has a key that is no text")
            self._take(":")
            yield key
            if self._take(",}") == "}":
                return

    def _start(self) -> int:
        """Skip white space, and return where the next character is."""
        self._index = _SPACE.match(self._text, self._index).end()  # type: ignore[union-attr]  # always matches
        return self._index

    def _next(self) -> str:
        """Return the next character after white space, without taking it; empty at the end."""
        start = self._start()
        return self._text[start : start + 1]

    def _take(self, expected: str) -> str:
        """Take one of these characters."""
        character = self._next()
        if not character or character not in expected:
            shown = repr(character) if character else "its end"
            raise self._damage(f"is not valid JSON: it has {shown} where {' or '.join(expected)} is expected")
        self._index += 1
        return character

    def _string(self) -> str | None:
        """Take a string; None, and nothing is taken, if the next value is none."""
        if self._next() != '"':
            return None
        value, self._index = self._decoded(self._text, self._index)
        return str(value)

    def _object(self) -> dict[str, Any] | None:
        """Take an object of limited length; None, and nothing is taken, if the next value is none."""
        if self._next() != "{":
            return None
        # Only so many characters are given to the decoder: a few of them may become an object of Python each.
        for length in (LONGEST_DESCRIPTION >> 6, LONGEST_DESCRIPTION):
            piece = self._text[self._index : self._index + length]
            is_last = length == LONGEST_DESCRIPTION or len(piece) < length
            try:
                value, end = self._decoded(piece, 0)
            except Damaged as error:
                if not is_last:
                    continue
                if len(piece) == length:
                    reason = f"{error.reason}, or has a description of more than {length} characters"
                    raise self._damage(reason) from None
                raise
            break
        self._index += end
        described: dict[str, Any] = value
        return described

    def _decoded(self, text: str, index: int) -> tuple[Any, int]:
        try:
            return _decode(text, index)
        except RecursionError:
            raise self._damage("is JSON nested too deeply") from None
        except ValueError as error:
            raise self._damage(f"is not valid JSON: {str(error).partition(': line ')[0]}") from None

    def _damage(self, reason: str) -> Damaged:
        return self._source.damage(reason, "the header")


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


class TensorHeader:
    """The header of an open file, checked (§2, §3). Raises Damaged, and TooLarge beyond the container's allowance.

    ``types`` counts the tensors by type; types that glassfs does not know count as ``other``. ``metadata_cost`` is the
    memory in bytes that the metadata take.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.source = source = opening.source
        (self.size,) = LENGTH.unpack(source.read(0, LENGTH.size))
        self.data_size = source.size - LENGTH.size - self.size
        if self.size > LONGEST_HEADER or self.data_size < 0:
            raise source.damage(f"has a header of {self.size} bytes, which is too long")
        self.start = LENGTH.size + self.size
        # The text may take four bytes a character, and the block is written beside it.
        self._packed = Rendered(opening.cache, (source.version, b"header"), self._pack, cost=8 * self.size)
        metadata, tensors = self._unpacked()
        self.types = Counter(one[1] if one[1] in TYPES else "other" for one in tensors)
        self.metadata_cost = sum(OBJECT + getsizeof(key) + getsizeof(value) for key, value in (metadata or {}).items())

    def members(self) -> Iterator[Member]:
        """Yield the tensors in the order of the header."""
        for tensor in map(Tensor._make, self._unpacked()[1]):
            key = tensor.name.encode()
            yield Member((key,), self._content(key, tensor))

    def document(self) -> dict[str, Any]:
        """Return the facts of the file, and its metadata."""
        metadata, _ = self._unpacked()
        return {"format": "safetensors", "tensors": self.count, "bytes": self.data_size, METADATA: metadata}

    @property
    def count(self) -> int:
        return self.types.total()

    def _unpacked(self) -> tuple[dict[str, str] | None, list[tuple[Any, ...]]]:
        """Return the metadata and the tensors, parsing the header only if the cache does not have them."""
        with self._opening.cache.held(self._packed) as packed:
            metadata, tensors = marshal.loads(packed)
        return metadata, tensors

    def _pack(self) -> bytes:
        """Parse the header, and check all that it says, against itself and the size of the file."""
        allowance = self._opening.allowance.part()
        allowance.take(self.size, "the header")
        with self._opening.cache.waiting():  # the source may be slow
            raw = self.source.buffer(LENGTH.size, self.size)
        # A text in which one character needs four bytes takes four for each of them.
        allowance.take(self.size * (1 if raw.isascii() else 4), "the header")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise self.source.damage("is not UTF-8", "the header") from None
        metadata: dict[str, str] = {}
        tensors: dict[str, tuple[Any, ...]] = {}
        for number, (is_metadata, name, value) in enumerate(_Text(self.source, text).items()):
            if not number % 1024:
                work.check()
            self._demand_encodable(name)
            if name in (metadata if is_metadata else tensors):
                raise self._damage(name, "is there twice", METADATA if is_metadata else "tensors")
            if not is_metadata:
                # A tuple with a name, a shape and four numbers, here and when the block is read.
                allowance.take(4 * OBJECT + getsizeof(name), "tensors")
                tensors[name] = tuple(self._tensor(name, value))
                continue
            if value is None:
                raise self._damage(name, "is no text", METADATA)
            self._demand_encodable(value)
            allowance.take(OBJECT + getsizeof(name) + getsizeof(value), "metadata")
            metadata[name] = value
        self._demand_covered([(one[3], one[4]) for one in tensors.values()])
        return marshal.dumps((metadata or None, list(tensors.values())))

    def _tensor(self, name: str, value: dict[str, Any] | None) -> Tensor:
        """Return what a description says. Its size agrees with its shape, and its bytes lie in the data."""
        type_name, shape, offsets = ((value or {}).get(key, ()) for key in ("dtype", "shape", "data_offsets"))
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
                if items * known.bits >= 1 << 64:
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
        # NumPy counts the bytes of an array in 63 bits, those of empty axes as if they had one item.
        is_array = len(shape) <= MOST_AXES and width * prod(length or 1 for length in shape) < 1 << 63
        if not dtype or not is_array:
            return Undecoded(key, data, type_name[:100], shape[:MOST_AXES])
        if dtype in NARROW:
            return Array(key, widened(data, dtype), WIDE, shape, type_name)
        return Array(key, booleans(data, data.size) if dtype == "|b1" else data, dtype, shape, type_name)

    def _demand_covered(self, extents: list[tuple[int, int]]) -> None:
        """Raise Damaged if tensors do not cover the data without holes and overlaps (§3)."""
        reached = 0
        for begin, end in [*sorted(extents), (self.data_size, self.data_size)]:
            if begin > reached:
                raise self.source.damage(f"bytes {reached} to {begin} of its data belong to no tensor")
            if begin < reached:
                raise self.source.damage(f"bytes {begin} to {reached} of its data belong to more than one tensor")
            reached = end

    def _demand_encodable(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.source.damage("has a text with half a character (an unpaired surrogate)", "the header") from None

    def _damage(self, name: str, reason: str, place: str = "tensors") -> Damaged:
        return self.source.damage(reason, f"{place}/{name[:100]}")


def _are_numbers(values: Any) -> bool:
    """Return whether this is a list of integers that have 64 bits."""
    return type(values) is list and all(type(value) is int and 0 <= value < 1 << 64 for value in values)


def _open(opening: Opening) -> Container:
    header = TensorHeader(opening)
    facts = {"tensors": header.count, "tensor_bytes": header.data_size, "types": dict(header.types.most_common())}
    # Metadata are written as JSON and as text, in which a character may take six.
    cost = (16 << 10) + 8 * header.metadata_cost

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
