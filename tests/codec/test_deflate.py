"""Deflate and its checksums by either library: the same bytes, errors and bounds."""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.codec import deflate
from glassfs.codec.compression import DEFLATE_PREFIX, decompress
from glassfs.errors import Damaged


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


def whole(data: bytes, size: int) -> bytes:
    return decompress(DEFLATE_PREFIX, data, size)


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
