"""Variable-length integers: seven bits a byte, the lowest first, the high bit set where more follow (LEB128)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHORT = tuple(bytes((value,)) for value in range(0x80))


class TooLong(ValueError):
    """An integer of more bits than it may have."""


def read(byte: Callable[[], int], bits: int) -> int:
    """The next integer of at most ``bits`` bits; ``byte`` gives the bytes. Raises TooLong."""
    value = byte()
    if value < 0x80:
        return value
    value &= 0x7F
    for shift in range(7, bits, 7):
        found = byte()
        if found >> (bits - shift) and (shift + 7 > bits):
            break
        value |= (found & 0x7F) << shift
        if found < 0x80:
            return value
    raise TooLong(f"has a number of more than {bits} bits")


def read_at(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """The integer at ``position``, and where it ends. Raises TooLong, and IndexError where the data end before."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        if shift + 7 >= bits and byte >> (bits - shift):
            raise TooLong(f"has a number of more than {bits} bits")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def end_at(data: bytes, position: int, bits: int) -> int:
    """Where the integer at ``position`` ends. Raises the same."""
    last = position + (bits - 1) // 7
    for end in range(position, last):
        if data[end] < 0x80:
            return end + 1
    if data[last] >> (bits - 7 * (last - position)):
        raise TooLong(f"has a number of more than {bits} bits")
    return last + 1


def encode(value: int) -> bytes:
    """An integer that is not negative."""
    if value < 0x80:
        return _SHORT[value]
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def unpack(data: bytes, most: int) -> tuple[NDArray, int]:  # type: ignore[type-arg]
    """The integers that end in ``data``, at most so many of 64 bits, as uint64; and how many bytes they take."""
    import numpy as np

    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)[:most]
    if not len(ends):
        return np.zeros(0, np.uint64), 0
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    values = (raw[starts] & 0x7F).astype(np.uint64)
    for position in range(1, min(10, int(lengths.max()))):
        longer = np.flatnonzero(lengths > position)
        septets = (raw[starts[longer] + position] & 0x7F).astype(np.uint64)
        values[longer] |= septets << np.uint64(7 * position)
    return values, int(ends[-1]) + 1
