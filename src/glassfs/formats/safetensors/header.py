"""The header of a safetensors file: JSON that describes the tensors after it (§1 to §4). Any thread.

A header that contradicts itself or the file raises Damaged, before anything is allocated by its numbers.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from sys import getsizeof, intern
from typing import Any, NamedTuple

from glassfs.content import Array, Container, Document, Extent, Group, Member, Undecoded, booleans
from glassfs.content.allowance import OBJECT, Allowance
from glassfs.content.dtypes import BFLOAT16, NARROW, WIDE, widened
from glassfs.errors import Damaged
from glassfs.formats.registry import Head
from glassfs.source import Source

LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000
"""Bytes (§1)."""
MOST_AXES = 32
"""Axes of an array in the oldest NumPy that glassfs supports."""
METADATA = "__metadata__"
TENSORS, FILE = b"tensors", b"file"

_HEAD = re.compile(rb'.{4}\0{4}\{[ \t\r\n]*["}]', re.DOTALL)
_SIMILAR = re.compile(rb'.{6}\0\0([ \t\r\n]*)\{[ \t\r\n]*["}]', re.DOTALL)


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


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys are distinct."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


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
            raw.decode(), object_pairs_hook=_checked, parse_constant=_no_constant, parse_int=_number,
        )
        if b"\\u" in raw:
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise source.damage("is JSON nested too deeply", what) from None
    except UnicodeDecodeError:
        raise source.damage("is not UTF-8", what) from None
    except UnicodeEncodeError:
        raise source.damage("has a text with half a character (an unpaired surrogate)", what) from None
    except ValueError as error:
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
                raise self._damage(name, "is no text", METADATA)
            self.metadata_cost += OBJECT + getsizeof(name) + getsizeof(value)
        allowance.take(self.metadata_cost, "metadata")
        self.tensors: list[Tensor] = []
        for name, value in described.items():
            tensor = self._tensor(known.get(name, name), value)
            # Two tuples and their numbers.
            cost = 2 * OBJECT + 40 * len(tensor.shape)
            allowance.take(cost if name in known else cost + getsizeof(name), "tensors")
            self.tensors.append(tensor)
        # Tensors may be in any order, and one that overlaps another would show bytes under two names.
        self._demand_covered()

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
        value = value if type(value) is dict else {}
        type_name, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
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
        return Tensor(name, intern(type_name), tuple(shape), begin, end)

    def _content(self, key: bytes, tensor: Tensor) -> Array | Undecoded:
        _, type_name, shape, begin, end = tensor
        data = Extent(self.source, LENGTH.size + self.size + begin, end - begin)
        dtype = TYPES[type_name].dtype if type_name in TYPES else ""
        width = 4 if dtype in NARROW else TYPES[type_name].bits // 8 if dtype else 0
        # NumPy counts the bytes of an array in 63 bits, those of empty axes as if they had one item.
        is_array = len(shape) <= MOST_AXES and width * prod(length or 1 for length in shape) < 1 << 63
        if not dtype or not is_array:
            return Undecoded(key, data, type_name[:100], shape[:MOST_AXES])
        if dtype in NARROW:
            return Array(key, widened(data, dtype), WIDE, shape, type_name)
        return Array(key, booleans(data, data.size) if dtype == "|b1" else data, dtype, shape, type_name)

    def _demand_covered(self) -> None:
        """Raise Damaged if tensors do not cover the data without holes and overlaps (§3)."""
        reached = 0
        for begin, end in [*sorted(tensor[3:] for tensor in self.tensors), (self.data_size, self.data_size)]:
            if begin > reached:
                raise self.source.damage(f"bytes {reached} to {begin} of its data belong to no tensor")
            if begin < reached:
                raise self.source.damage(f"bytes {begin} to {reached} of its data belong to more than one tensor")
            reached = end

    def _damage(self, name: str, reason: str, place: str = "tensors") -> Damaged:
        return self.source.damage(reason, f"{place}/{name[:100]}")


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
