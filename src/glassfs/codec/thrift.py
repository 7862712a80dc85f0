"""An encoder of Thrift's compact protocol, in which page headers and footers of Parquet files are written.

Pure functions. An integer can be padded to a number of bytes, which every decoder accepts, so that its value does not
change the length of the structure that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from glassfs.codec import leb128


class TypeCode(IntEnum):
    """The types of values."""

    TRUE = 1
    FALSE = 2
    I8 = 3
    I32 = 5
    I64 = 6
    BINARY = 8
    LIST = 9
    STRUCT = 12


class Value(NamedTuple):
    """A value and its type, encoded."""

    type: TypeCode
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
    return Value(TypeCode.TRUE if value else TypeCode.FALSE, b"")


def i8(value: int) -> Value:
    return Value(TypeCode.I8, value.to_bytes(1, "little", signed=True))


@lru_cache(1024)
def i32(value: int, digits: int = 0) -> Value:
    return Value(TypeCode.I32, varint(_zigzag(value), digits))


@lru_cache(1024)
def i64(value: int, digits: int = 0) -> Value:
    return Value(TypeCode.I64, varint(_zigzag(value), digits))


def binary(value: bytes) -> Value:
    return Value(TypeCode.BINARY, varint(len(value)) + value)


def sequence(kind: TypeCode, values: Sequence[Value]) -> Value:
    """Encode a list of values of one type."""
    count = len(values)
    # Up to 14 values are counted in four bits of the byte that has the type; 15 there says that the count follows.
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return Value(TypeCode.LIST, head + b"".join(value.payload for value in values))


def struct(fields: Mapping[int, Value]) -> Value:
    """Encode a struct from its fields, in ascending order of their ids."""
    written = []
    last = 0
    for number, value in fields.items():
        # The step from the last field's id has four bits beside the type, else the id itself follows.
        step = number - last
        if 0 < step <= 15:
            written.append(bytes([step << 4 | value.type]))
        else:
            written.append(bytes([value.type]) + varint(_zigzag(number)))
        written.append(value.payload)
        last = number
    return Value(TypeCode.STRUCT, b"".join(written) + b"\0")


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
