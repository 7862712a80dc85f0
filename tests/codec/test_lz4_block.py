"""Raw LZ4 blocks as a stream, against a decoder written from the format's description."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.codec.compression import LZ4, decompress, decompress_stream
from glassfs.errors import Damaged


def length(nibble: int) -> tuple[int, bytes]:
    """Return a length as its nibble and the bytes that follow."""
    if nibble < 15:
        return nibble, b""
    rest = nibble - 15
    return 15, b"\xff" * (rest // 255) + bytes([rest % 255])


def sequence(literals: bytes, distance: int = 0, match: int = 0) -> bytes:
    """Return one sequence; without a match it is the last of a block."""
    high, more_literals = length(len(literals))
    low, more_match = length(match - 4) if match else (0, b"")
    tail = distance.to_bytes(2, "little") + more_match if match else b""
    return bytes([high << 4 | low]) + more_literals + literals + tail


def copied(raw: bytearray, distance: int, match: int) -> None:
    for _ in range(match):
        raw.append(raw[-distance])


STEPS = st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 70), st.integers(4, 600)), min_size=1, max_size=20)


@given(STEPS, st.sampled_from([b"", b"1", b"the end of it"]), st.integers(1, 50))
def test_any_sequences_decode(steps: list[tuple[bytes, int, int]], end: bytes, piece: int) -> None:
    """Overlapping matches, long ones, and blocks that end with a match or one literal, which liblz4 rejects."""
    block, raw = bytearray(), bytearray()
    for literals, distance, match in steps:
        raw += literals
        if not raw:
            raw += b"x"
            literals = b"x"
        distance = min(distance, len(raw))
        block += sequence(literals, distance, match)
        copied(raw, distance, match)
    if end:
        block += sequence(end)
        raw += end
    assert decompress(LZ4, bytes(block), len(raw)) == raw
    pieces = [bytes(block[start : start + piece]) for start in range(0, len(block), piece)]
    assert b"".join(decompress_stream(LZ4, pieces, len(raw))) == raw


@pytest.mark.parametrize(("block", "raw"), [
    (sequence(b"abc", 3, 12 << 20), b"abc" * (4 << 20) + b"abc"),
    (sequence(bytes(range(256)) * (12 << 12)), bytes(range(256)) * (12 << 12)),
], ids=["match", "literals"])
def test_long_sequence_comes_in_pieces(block: bytes, raw: bytes) -> None:
    pieces = list(decompress_stream(LZ4, [block], len(raw)))
    assert max(map(len, pieces)) <= 2 << 20
    assert b"".join(pieces) == raw


def test_matches_reach_back_64_kib_over_batches() -> None:
    unit = bytes(number * number % 251 for number in range(65_535))
    raw = bytearray(unit)
    block = bytearray(sequence(unit, 65_535, 1000))
    copied(raw, 65_535, 1000)
    for _ in range(2000):
        block += sequence(b"", 65_535, 2000)
        raw += raw[-65_535 : -65_535 + 2000]
    assert b"".join(decompress_stream(LZ4, [bytes(block)], len(raw))) == raw


@pytest.mark.parametrize("block", [
    sequence(b"abc", 4, 10), sequence(b"abc", 0, 10) + sequence(b"12345"), sequence(b"", 1, 4), b"\xf0", b"\xf0\xff",
    b"\x50ab", b"\x10a\x01", sequence(b"a", 1, 300)[:-1], sequence(b"a", 65_535, 8) + sequence(b"closing text"),
])
def test_bad_sequences_are_damage(block: bytes) -> None:
    for size in (0, 10, 300):
        with pytest.raises(Damaged):
            decompress(LZ4, block, size)
        with pytest.raises(Damaged):
            list(decompress_stream(LZ4, [block], size))
