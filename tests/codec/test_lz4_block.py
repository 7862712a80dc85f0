"""The LZ4 block format as a stream, against liblz4's own compressor."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import lz4.block
import pytest

from glassfs.codec import compression
from glassfs.codec.lz4_block import BATCH
from glassfs.errors import Damaged


def mixed(size: int, seed: int = 3) -> bytes:
    """Noise, runs, and matches near and far, long and short."""
    random_bytes = random.Random(seed)
    made = bytearray()
    while len(made) < size:
        kind = random_bytes.random()
        if kind < 0.4 or not made:
            made += random_bytes.randbytes(random_bytes.randrange(1, 3000))
        elif kind < 0.9:
            start = random_bytes.randrange(max(0, len(made) - 70_000), len(made))
            made += made[start : start + random_bytes.randrange(4, 600)]
        elif kind < 0.95:
            made += bytes([random_bytes.randrange(256)]) * random_bytes.randrange(1, 2_500_000)
        else:
            made += random_bytes.randbytes(40_000)
    return bytes(made[:size])


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [0, 1, 12, 13, 70_000, BATCH, 3 * BATCH + 1, 9_000_000])
@pytest.mark.parametrize("mode", ["default", "high_compression"])
def test_the_stream_gives_what_was_compressed(size: int, mode: str) -> None:
    data = mixed(size)
    stored = lz4.block.compress(data, mode=mode, store_size=False)
    for piece in (3, 50_000) if len(stored) < 10_000 else (50_000, BATCH):
        assert b"".join(compression.decompress_stream(compression.LZ4, pieces(stored, piece), size)) == data


def test_noise_and_long_runs_larger_than_a_batch() -> None:
    data = random.Random(1).randbytes(3 * BATCH) + b"ab" * (2 * BATCH) + b"end of this"
    stored = lz4.block.compress(data, store_size=False)
    found = list(compression.decompress_stream(compression.LZ4, pieces(stored, 100_000), len(data)))
    assert b"".join(found) == data
    assert max(map(len, found)) <= 2 * BATCH


@pytest.mark.parametrize("stored", [b"\x10a\x01\x00", b"\x31abc\x03\x00\x20xy"])
def test_blocks_without_their_closing_literals_are_read(stored: bytes) -> None:
    expected = {b"\x10a\x01\x00": b"aaaaa", b"\x31abc\x03\x00\x20xy": b"abcabcabxy"}[stored]
    assert compression.decompress(compression.LZ4, stored, len(expected)) == expected
    with pytest.raises(Damaged):
        compression.decompress(compression.LZ4, stored, len(expected) + 1)


@pytest.mark.parametrize(
    "stored", [b"\x10", b"\xf0", b"\x10a\x00\x00", b"\x10a\x02\x00", b"\x10a\x01", b"\x1fa\x01\x00", b"\x50abc"],
)
def test_cut_blocks_and_matches_that_reach_back_too_far(stored: bytes) -> None:
    with pytest.raises(Damaged):
        b"".join(compression.decompress_stream(compression.LZ4, [stored], 20))


def test_a_stream_that_gives_more_than_declared_ends_at_once() -> None:
    bomb = b"\x1fa\x01\x00" + b"\xff" * 100_000  # 25 MB of one byte
    tracemalloc.start()
    with pytest.raises(Damaged, match="more than"):
        list(compression.decompress_stream(compression.LZ4, [bomb + b"\x00"], 1000))
    assert tracemalloc.get_traced_memory()[1] < 8 * BATCH
    tracemalloc.stop()
