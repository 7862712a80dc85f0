"""An encoder of Thrift's compact protocol, in which page headers and footers of Parquet files are written.

Pure functions. An integer can be padded to a number of bytes, which every decoder accepts, so that its value does not
change the length of the structure that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from glassfs.codec import leb128

TRUE, FALSE, I8, I32, I64, BINARY, LIST, STRUCT = 1, 2, 3, 5, 6, 8, 9, 12
_LONGEST_SHORT_LIST = 14
_LARGEST_STEP = 15


class Value(NamedTuple):
    """A value: type code and encoded bytes."""

    type: int
    payload: bytes


def varint(value: int, digits: int = 0) -> bytes:
    """Encode ``value`` in seven bits a byte, padded to ``digits`` bytes if given. Raises OverflowError."""
    if not digits:
        return leb128.encode(value)
    if value >> 7 * digits:
        raise OverflowError(f"{value} does not fit into {digits} bytes of 7 bits")
    return bytes([value >> 7 * place & 0x7F | 0x80 for place in range(digits - 1)] + [value >> 7 * (digits - 1)])


def boolean(value: bool) -> Value:
    """Encode a boolean field of a struct."""
    return Value(TRUE if value else FALSE, b"")


def i8(value: int) -> Value:
    return Value(I8, value.to_bytes(1, "little", signed=True))


@lru_cache(1024)
def i32(value: int, digits: int = 0) -> Value:
    return Value(I32, varint(_zigzag(value), digits))


@lru_cache(1024)
def i64(value: int, digits: int = 0) -> Value:
    return Value(I64, varint(_zigzag(value), digits))


def binary(value: bytes) -> Value:
    return Value(BINARY, varint(len(value)) + value)


def sequence(kind: int, values: Sequence[Value]) -> Value:
    """Encode a list of values of one type."""
    count = len(values)
    head = bytes([count << 4 | kind]) if count <= _LONGEST_SHORT_LIST else bytes([0xF0 | kind]) + varint(count)
    return Value(LIST, head + b"".join(value.payload for value in values))


def struct(fields: Mapping[int, Value]) -> Value:
    """Encode a struct from its fields, in ascending order of their ids."""
    written = []
    last = 0
    for number, value in fields.items():
        step = number - last
        if 0 < step <= _LARGEST_STEP:
            written.append(bytes([step << 4 | value.type]))
        else:
            written.append(bytes([value.type]) + varint(_zigzag(number)))
        written.append(value.payload)
        last = number
    return Value(STRUCT, b"".join(written) + b"\0")


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
