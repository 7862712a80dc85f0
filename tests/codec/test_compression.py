"""Codecs: round trips whole and streamed, wrong sizes, bombs, and garbage."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from glassfs.codec.checksum import CRC32, CRC32C, Algorithm, Checksum, Covers, RunningChecksum, crc32c
from glassfs.codec.compression import (
    DEFLATE,
    DEFLATE_PREFIX,
    LZ4,
    NONE,
    ZSTD,
    decompress,
    decompress_stream,
    name_of,
    reach,
)
from glassfs.errors import Damaged
from tests.formats.exercise import peak_memory


def deflated(raw: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(raw) + encoder.flush()


def zstd_without_size(raw: bytes) -> bytes:
    encoder = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return encoder.compress(raw) + encoder.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": (NONE, lambda raw: raw),
    "zstd": (ZSTD, lambda raw: zstandard.ZstdCompressor().compress(raw)),
    "zstd without size": (ZSTD, zstd_without_size),
    "lz4": (LZ4, lambda raw: lz4.block.compress(raw, store_size=False)),
    "deflate": (DEFLATE, deflated),
    "deflate prefix": (DEFLATE_PREFIX, deflated),
}
COMPRESSED = {name: encoder for name, encoder in ENCODERS.items() if name != "none"}
COVERS = [Covers.RAW, Covers.STORED, Covers.RAW | Covers.STORED]
CODECS = [NONE, ZSTD, LZ4, DEFLATE, DEFLATE_PREFIX]

RAW = st.one_of(
    st.binary(max_size=2000),
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 6000)).map(lambda unit: unit[0] * unit[1]),
)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def streamed(codec: str, data: bytes, size: int, piece: int = 4096) -> bytes:
    return b"".join(decompress_stream(codec, cut(data, piece), size))


WAYS = (decompress, streamed)


@pytest.mark.parametrize("name", ENCODERS)
@given(RAW, st.sampled_from([1, 7, 1000, 1 << 20]))
def test_round_trip(name: str, raw: bytes, piece: int) -> None:
    """Whole, and as a stream of pieces of any size."""
    codec, encode = ENCODERS[name]
    data = encode(raw)
    assert decompress(codec, data, len(raw)) == raw
    assert streamed(codec, data, len(raw), piece) == raw


@pytest.mark.parametrize("name", ENCODERS)
def test_large_blocks_stream_in_bounded_pieces(name: str) -> None:
    codec, encode = ENCODERS[name]
    chance = random.Random(5)
    raw = b"".join(chance.choice((bytes(70_000), chance.randbytes(50_000), b"pattern" * 9000)) for _ in range(120))
    pieces = list(decompress_stream(codec, cut(encode(raw), 1 << 18), len(raw)))
    assert b"".join(pieces) == raw
    assert max(map(len, pieces)) <= 3 << 20


@pytest.mark.parametrize("name", ENCODERS)
@given(st.binary(min_size=2, max_size=500), st.sampled_from([-2, -1, 1, 1000]))
def test_wrong_declared_size_is_damage(name: str, raw: bytes, lie: int) -> None:
    """Except that of a prefix only the declared bytes are taken."""
    codec, encode = ENCODERS[name]
    declared = len(raw) + lie
    for decode in WAYS:
        if codec == DEFLATE_PREFIX and lie < 0:
            assert decode(codec, encode(raw), declared) == raw[:declared]
        else:
            with pytest.raises(Damaged):
                decode(codec, encode(raw), declared)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMPRESSED))
def test_bombs_stop_at_the_declared_size(name: str) -> None:
    """100 MiB of zeros declared as 1000 bytes cost no memory."""
    codec, encode = COMPRESSED[name]
    bomb = encode(bytes(100 << 20))

    def stop() -> None:
        for decode in WAYS:
            if codec == DEFLATE_PREFIX:  # of which the first bytes count
                assert decode(codec, bomb, 1000) == bytes(1000)
            else:
                with pytest.raises(Damaged):
                    decode(codec, bomb, 1000)

    assert peak_memory(stop) < 8 << 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1 << 31, 1 << 43, 1 << 62])
def test_impossible_sizes_allocate_nothing(codec: str, size: int) -> None:
    data = zstd_without_size(b"abc") if codec == ZSTD else b"abc"

    def refuse() -> None:
        for decode in WAYS:
            with pytest.raises(Damaged):
                decode(codec, data, size)

    assert peak_memory(refuse) < 8 << 20


@pytest.mark.parametrize("codec", CODECS)
@given(st.binary(max_size=300), st.integers(1, 5000))
def test_garbage_raises_only_damaged(codec: str, data: bytes, size: int) -> None:
    """Both ways agree, except that a stream may also find damage behind the declared size of deflate data."""
    found: list[bytes | None] = []
    for decode in (decompress, lambda *given: streamed(*given, piece=11)):
        try:
            found.append(decode(codec, data, size))
        except Damaged:
            found.append(None)
    assert found[0] is None or len(found[0]) == size
    assert found[0] == found[1] or (codec == DEFLATE_PREFIX and found[1] is None)


@pytest.mark.parametrize("name", ENCODERS)
@given(RAW, st.integers(0, 1 << 20))
def test_reach_bounds_the_raw_size(name: str, raw: bytes, zeros: int) -> None:
    """Also for data that compress best. Larger sizes are rejected without decoding."""
    codec, encode = ENCODERS[name]
    for found in (raw, bytes(zeros)):
        assert len(found) <= reach(codec, len(encode(found)))
    data = encode(raw)
    with pytest.raises(Damaged, match=f"{len(data)} bytes of {name_of(codec)} data cannot give"):
        decompress(codec, data, reach(codec, len(data)) + 1)


@pytest.mark.parametrize("covers", COVERS, ids=str)
@pytest.mark.parametrize("value", [b"raw", b"stored", b"other"])
def test_checksum_covers_raw_or_stored_bytes(covers: Covers, value: bytes) -> None:
    check = Checksum(CRC32C, crc32c(value), covers)
    running = RunningChecksum(check)
    for part in (b"ra", b"w"):
        running.add(part, Covers.RAW)
    running.add(b"stored", Covers.STORED)
    assert running.is_right == (value in {Covers.RAW: b"raw", Covers.STORED: b"stored"}.get(covers, b"raw stored"))
    assert str(Checksum(CRC32C, 0xABC)) == "crc32c:00000abc"


@pytest.mark.parametrize(("algorithm", "value"), [(CRC32, 0xCBF43926), (CRC32C, 0xE3069283)])
def test_algorithms_have_their_check_values(algorithm: Algorithm, value: int) -> None:
    assert algorithm.update(b"123456789", 0) == value
    assert algorithm.update(b"6789", algorithm.update(b"12345", 0)) == value
