"""Variable-length integers (LEB128): seven bits a byte, lowest first, high bit set if more bytes follow."""

from __future__ import annotations

from collections.abc import Callable

from glassfs.lazy import NDArray, np


class TooLong(ValueError):
    """An integer has more bits than allowed."""


def read(byte: Callable[[], int], bits: int) -> int:
    """Return the next integer of at most ``bits`` bits; ``byte`` returns the next byte. Raises TooLong."""
    taken = bytearray([byte()])
    while taken[-1] >= 0x80 and 7 * len(taken) < bits:
        taken.append(byte())
    return read_at(taken, 0, bits)[0]


def read_at(data: bytes | bytearray, position: int, bits: int) -> tuple[int, int]:
    """Return the integer at ``position`` and its end. Raises TooLong, and IndexError if the data end first."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        # The last byte of the longest number has room for fewer than seven bits.
        if shift + 7 >= bits and byte >> (bits - shift):
            raise TooLong(f"has a number of more than {bits} bits")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def encode(value: int) -> bytes:
    """Encode an integer that is not negative."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def unpack(data: bytes, most: int) -> tuple[NDArray, int]:  # type: ignore[type-arg]
    """Decode up to ``most`` integers of 64 bits to uint64; return them and the bytes that they take.

    An integer that ``data`` cut off is left out.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)[:most]
    if not len(ends):
        return np.zeros(0, np.uint64), 0
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    values = (raw[starts] & 0x7F).astype(np.uint64)
    for position in range(1, min(10, int(lengths.max()))):
        longer = np.flatnonzero(lengths > position)
        values[longer] |= (raw[starts[longer] + position] & 0x7F).astype(np.uint64) << np.uint64(7 * position)
    return values, int(ends[-1]) + 1
