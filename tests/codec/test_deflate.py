"""Deflate and its checksums by either library: the same bytes, errors and bounds."""

from __future__ import annotations

import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.codec import deflate
from glassfs.codec.compression import DEFLATE_PREFIX, decompress, decompress_stream
from glassfs.errors import Damaged
from tests.codec.test_compression import RAW, cut, deflated


@pytest.fixture(scope="module", params=["zlib_ng", "zlib"], autouse=True)
def library(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library in use: zlib-ng, or zlib as if the other were not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "zlib":
            patch.setitem(sys.modules, "zlib_ng", None)
        else:
            pytest.importorskip("zlib_ng")
        deflate.library.cache_clear()
        yield request.param
    deflate.library.cache_clear()


def test_the_library_is_the_expected_one(library: str) -> None:
    assert deflate.library().__name__.rpartition(".")[2] == library


def streamed(data: bytes, size: int, piece: int = 7) -> bytes:
    return b"".join(decompress_stream(DEFLATE_PREFIX, cut(data, piece), size))


def whole(data: bytes, size: int) -> bytes:
    return decompress(DEFLATE_PREFIX, data, size)


WAYS: list[Callable[[bytes, int], bytes]] = [whole, streamed]


@pytest.mark.parametrize("way", WAYS)
@given(raw=RAW, behind=st.binary(max_size=20))
def test_trailing_bytes_are_ignored_and_missing_ones_damage(
    way: Callable[[bytes, int], bytes], raw: bytes, behind: bytes,
) -> None:
    data = deflated(raw) + behind
    for size in {len(raw), len(raw) // 2}:
        assert way(data, size) == raw[:size]
    with pytest.raises(Damaged):
        way(data, len(raw) + 1)


@pytest.mark.parametrize("way", WAYS)
@given(data=st.binary(max_size=300), size=st.integers(1, 5000))
def test_garbage_is_decoded_or_rejected_as_by_zlib(
    way: Callable[[bytes, int], bytes], data: bytes, size: int,
) -> None:
    """Damage behind the declared size may be found or not."""
    try:
        expected = zlib.decompressobj(-15).decompress(data, size)
    except zlib.error:
        expected = b""
    if len(expected) < size:
        with pytest.raises(Damaged):
            way(data, size)
    else:
        try:
            assert way(data, size) == expected
        except Damaged:
            assert way is streamed


@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE])
def test_codes_that_zlib_rejects_are_rejected(strategy: int) -> None:
    """Flip each bit that describes codes. Other decoders accept incomplete codes and return the declared size."""
    generator = random.Random(4)
    raw = struct.pack("<2000f", *(round(generator.gauss(0, 1), 1) for _ in range(2000)))
    encoder = zlib.compressobj(6, wbits=-15, strategy=strategy)
    data = encoder.compress(raw) + encoder.flush()
    refused = 0
    for bit in range(800):
        stored = bytearray(data)
        stored[bit >> 3] ^= 1 << (bit & 7)
        try:
            expected = zlib.decompressobj(-15).decompress(stored, len(raw))
        except zlib.error as error:
            refused += "set" in str(error)
            expected = b""
        if len(expected) == len(raw):
            assert whole(bytes(stored), len(raw)) == expected
        else:
            with pytest.raises(Damaged):
                whole(bytes(stored), len(raw))
    assert refused > 100


@cache
def bomb_of(size: int) -> bytes:
    return deflated(bytes(size))


@pytest.mark.parametrize("way", [whole, lambda data, size: streamed(data, size, 4096)])
def test_bomb_stops_at_the_declared_size(way: Callable[[bytes, int], bytes]) -> None:
    bomb = bomb_of(100 << 20)
    tracemalloc.start()
    try:
        assert way(bomb, 1000) == bytes(1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_decoder_reports_unused_data() -> None:
    raw = bytes(range(256)) * 50
    decoder = deflate.inflater()
    data = deflated(raw) + b"behind"
    given, piece = b"", data
    while not decoder.eof:
        made = decoder.decompress(piece, 1000)
        assert 0 < len(made) <= 1000 or decoder.eof
        given, piece = given + made, decoder.unconsumed_tail
    assert given == raw
    assert decoder.unused_data == b"behind"


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_checksums_equal_those_of_zlib(parts: list[bytes]) -> None:
    raw, crc, adler = b"".join(parts), 0, 1
    for part in parts:
        crc, adler = deflate.crc32(part, crc), deflate.adler32(memoryview(part), adler)
    assert (crc, adler) == (zlib.crc32(raw), zlib.adler32(raw))


@given(st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, 255))
def test_adler32_of_adjacent_runs_is_combined(first: int, second: int, byte: int) -> None:
    """Also for runs longer than the modulus, and for the largest sums."""
    raw = bytes([byte, 255]) * ((first + second) // 2 + 1)
    one, two = raw[:first], raw[first : first + second]
    combined = deflate.adler32_combined(deflate.adler32(one), deflate.adler32(two), len(two))
    assert combined == zlib.adler32(one + two)


def test_lack_of_memory_is_no_damage() -> None:
    with pytest.raises(MemoryError), deflate.errors():
        raise deflate.library().error("Error -4 while decompressing data")
