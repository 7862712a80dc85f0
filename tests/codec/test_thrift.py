"""Thrift's compact protocol: values are read back by a decoder written from its specification."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.codec.thrift import (
    TypeCode,
    Value,
    binary,
    boolean,
    i8,
    i32,
    i64,
    sequence,
    struct,
    varint,
)

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


class Decoder:
    """A decoder; structs become dictionaries by field ids."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return int.from_bytes(bytes([self.byte()]), "little", signed=True)
        if kind in (4, 5, 6):
            value = self.varint()
            return value >> 1 ^ -(value & 1)
        if kind == 8:
            size = self.varint()
            self.position += size
            return self.data[self.position - size : self.position]
        if kind == 9:
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.value(head & 15) for _ in range(count)]
        assert kind == 12
        return self.struct()

    def struct(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.value(4)
            found[number] = self.value(head & 15)
        return found


def decoded(value: Value) -> Any:
    decoder = Decoder(value.payload)
    found = decoder.value(value.type)
    assert decoder.position == len(value.payload)
    return found


VALUES = st.one_of(
    st.booleans().map(lambda value: (boolean(value), value)),
    st.integers(-128, 127).map(lambda value: (i8(value), value)),
    INT32.map(lambda value: (i32(value), value)),
    INT64.map(lambda value: (i64(value), value)),
    st.binary(max_size=300).map(lambda value: (binary(value), value)),
    st.lists(INT64, max_size=40).map(lambda values: (sequence(TypeCode.I64, list(map(i64, values))), values)),
    st.lists(st.binary(max_size=5), max_size=20).map(
        lambda values: (sequence(TypeCode.BINARY, list(map(binary, values))), values)
    ),
)


@given(st.dictionaries(st.integers(1, 2000), VALUES, max_size=12))
def test_structs_are_read_back(fields: dict[int, tuple[Value, Any]]) -> None:
    ordered = dict(sorted(fields.items()))
    made = struct({number: value for number, (value, _) in ordered.items()})
    assert decoded(made) == {number: expected for number, (_, expected) in ordered.items()}
    assert decoded(sequence(TypeCode.STRUCT, [made, made])) == [decoded(made)] * 2


@given(INT32)
def test_padding_keeps_the_value(value: int) -> None:
    padded = i32(value, 5)
    assert len(padded.payload) == 5
    assert decoded(padded) == decoded(i32(value)) == value


def test_known_bytes() -> None:
    """Zigzag, a short field header and the stop byte, as the specification has them."""
    assert [i32(value).payload for value in (0, -1, 1, -2, 150)] == [b"\0", b"\1", b"\2", b"\3", b"\xac\2"]
    assert struct({1: i32(1), 3: binary(b"ab")}).payload == b"\x15\2\x28\2ab\0"
    assert sequence(TypeCode.I32, [i32(1)] * 15).payload[:2] == b"\xf5\x0f"


def test_number_beyond_its_padding_raises_overflow_error() -> None:
    assert varint(127, 1) == b"\x7f"
    with pytest.raises(OverflowError):
        varint(128, 1)
    with pytest.raises(OverflowError):
        i64(1 << 62, 9)
