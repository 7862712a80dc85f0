"""Variable-length integers: all ways to read them agree, limits in bits, and cut data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.codec.leb128 import TooLong, encode, read, read_at, unpack

VALUES = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1), st.integers(0, 63).map(lambda bit: 1 << bit))


def read_one(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Do what ``read_at`` does with ``read``."""
    places = iter(range(position, len(data)))
    end = position

    def byte() -> int:
        nonlocal end
        end = next(places) + 1
        return data[end - 1]

    return read(byte, bits), end


WAYS = [read_one, read_at]


@given(st.lists(VALUES, max_size=40), st.binary(max_size=3))
def test_encoded_integers_are_read(values: list[int], before: bytes) -> None:
    data = before + b"".join(map(encode, values))
    for way in WAYS:
        position = len(before)
        for value in values:
            found, position = way(data, position, 64)
            assert found == value
        assert position == len(data)
    numbers, used = unpack(data[len(before) :], len(values))
    assert numbers.tolist() == values
    assert used == len(data) - len(before)


def test_encoding_is_that_of_the_standard() -> None:
    """The example of the DWARF specification, and the limits of one byte."""
    assert [encode(value) for value in (0, 127, 128, 624485)] == [b"\0", b"\x7f", b"\x80\1", b"\xe5\x8e\x26"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [32, 63, 64])
def test_limits_are_in_bits(way: Callable[[bytes, int, int], tuple[int, int]], bits: int) -> None:
    most = encode((1 << bits) - 1)
    assert way(most, 0, bits) == ((1 << bits) - 1, len(most))
    padded = b"\x81" + b"\x80" * (len(most) - 2) + b"\0"  # longer than needed, but no longer than allowed
    assert way(padded, 0, bits) == (1, len(most))
    for data in (encode(1 << bits), b"\x80" * len(most) + b"\0", b"\xff" * 100):
        with pytest.raises(TooLong, match=f"more than {bits} bits"):
            way(data + bytes(10), 0, bits)


@given(st.lists(VALUES, min_size=1, max_size=30), st.integers(0, 400), st.integers(1, 40))
def test_whole_integers_of_a_cut_run_are_unpacked(values: list[int], size: int, most: int) -> None:
    data = b"".join(map(encode, values))[:size]
    numbers, used = unpack(data, most)
    assert numbers.tolist() == values[: len(numbers)]
    assert used == len(b"".join(map(encode, values[: len(numbers)])))
    assert len(numbers) == most or len(data) - used < 10


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_cut_data_raise_index_error(data: bytes) -> None:
    with pytest.raises(IndexError):
        read_at(data, 0, 64)
