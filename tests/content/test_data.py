"""Data of all kinds: any range equals the slice of a model in plain bytes."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassfs import work
from glassfs.cache import BlockCache
from glassfs.codec.checksum import CRC32, CRC32C, Algorithm, Checksum, Covers, crc32, crc32c
from glassfs.content import (
    Blocked,
    Concatenated,
    Converted,
    Counted,
    Data,
    Decoded,
    Extent,
    Gathered,
    Memory,
    Regular,
    Rendered,
    Slice,
    Unreadable,
    booleans,
)
from glassfs.content.blocks import CHECKED_AT_ONCE
from glassfs.errors import Damaged
from glassfs.sizes import PIECE
from tests.codec import test_compression
from tests.helpers import CountingSource, local

Model = tuple[Data, bytes]


def check_ranges(data: Data, expected: bytes, chance: random.Random, count: int = 20) -> None:
    """The size, the whole, the pieces, and ranges of all lengths."""
    assert data.size == len(expected)
    assert data.whole() == expected
    assert b"".join(data.pieces()) == expected
    assert data.read(0, 0) == b""
    assert data.read(len(expected), 0) == b""
    for _ in range(count if expected else 0):
        start = chance.randrange(len(expected))
        size = min(len(expected) - start, chance.choice((1, 2, 5, 100, len(expected))))
        assert data.read(start, size) == expected[start : start + size]
        buffer = memoryview(bytearray(size))
        data.read_into(buffer, start)
        assert buffer == expected[start : start + size]


CACHES = st.sampled_from([0, 60, 1 << 20]).map(BlockCache)


@st.composite
def blocked(draw: st.DrawFn) -> Model:
    """Blocks of rising bounds, empty ones among them, or of one size, small enough for the cache or spooled."""
    parts = draw(st.lists(st.binary(max_size=70), min_size=1, max_size=6))
    bounds: Sequence[int] = list(accumulate(map(len, parts), initial=0))
    if draw(st.booleans()):
        raw, step = b"".join(parts), draw(st.integers(1, 40))
        parts, bounds = [raw[start : start + step] for start in range(0, len(raw), step)], Regular(step, len(raw))
        assert list(bounds) == [*range(0, len(raw), step), len(raw)]
    cache = draw(CACHES)
    is_sized = draw(st.booleans())
    blocks = [Rendered(cache, ("block", number, id(parts)), lambda part=part: part, len(part))
              for number, part in enumerate(parts)]
    return Blocked(cache, lambda: bounds, lambda number: blocks[number], is_sized), b"".join(parts)


@st.composite
def converted(draw: st.DrawFn) -> Model:
    """Each stored pair becomes three bytes; the last unit may be cut."""
    stored = draw(st.binary(max_size=200))
    whole = b"".join(bytes((b, a, a ^ b)) for a, b in zip(stored[::2], stored[1::2], strict=False))
    if len(stored) % 2:
        whole += bytes((0, stored[-1]))

    def convert(raw: bytes) -> bytes:
        padded = raw + bytes(len(raw) % 2)
        return b"".join(bytes((b, a, a ^ b)) for a, b in zip(padded[::2], padded[1::2], strict=True))

    size = draw(st.integers(max(0, len(whole) - 2), len(whole)))
    return Converted(Memory(stored), 2, 3, size, convert), whole[:size]


@st.composite
def gathered(draw: st.DrawFn) -> Model:
    """One field of interleaved records."""
    width, count = draw(st.integers(1, 9)), draw(st.integers(1, 30))
    offset, after = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    stride = offset + width + after
    records = draw(st.binary(min_size=stride * count, max_size=stride * count))[: stride * count - after]
    expected = b"".join(records[row * stride + offset : row * stride + offset + width] for row in range(count))
    return Gathered(Memory(records), offset, width, stride, count), expected


def rendered(raw: bytes, cache: BlockCache, is_given: bool) -> Model:
    return Rendered(cache, object(), lambda: raw, len(raw) if is_given else None), raw


def truths(raw: bytes) -> Model:
    return booleans(Memory(raw), len(raw)), bytes(byte != 0 for byte in raw)


LEAVES: dict[str, st.SearchStrategy[Model]] = {
    "counted": st.integers(0, 30).map(lambda count: (Counted(count), struct.pack(f"<{count}q", *range(count)))),
    "truths": st.binary(max_size=80).map(truths),
    "stored": st.binary(max_size=80).map(lambda raw: (Memory(raw), raw)),
    "rendered": st.builds(rendered, st.binary(max_size=80), CACHES, st.booleans()),
    "blocked": blocked(), "converted": converted(), "gathered": gathered(),
}


def concatenated(parts: list[Model]) -> Model:
    return Concatenated([data for data, _ in parts]), b"".join(raw for _, raw in parts)


def sliced(part: Model, a: float, b: float) -> Model:
    data, raw = part
    start, end = sorted((int(a * len(raw)), int(b * len(raw))))
    return Slice(data, start, end - start), raw[start:end]


COMPOSITIONS = st.recursive(
    st.one_of(*LEAVES.values()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(concatenated), st.builds(sliced, inner, st.floats(0, 1), st.floats(0, 1)),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", [*LEAVES, "compositions"])
@given(st.data(), st.integers(0, 1 << 30), st.sampled_from([10, PIECE]))
@settings(deadline=None)
def test_data_are_their_bytes(kind: str, drawn: st.DataObject, seed: int, piece: int) -> None:
    """Also if a part is longer than a piece, of which it is then made."""
    data, expected = drawn.draw(LEAVES.get(kind, COMPOSITIONS))
    with patch("glassfs.content.data.PIECE", piece):
        check_ranges(data, expected, random.Random(seed))


def test_records_are_the_same_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random.Random(3).randbytes(9 * 50)
    field = b"".join(raw[row * 9 + 3 : row * 9 + 8] for row in range(50))
    for is_loaded in (True, False):
        if not is_loaded:
            monkeypatch.delitem(sys.modules, "numpy")
        check_ranges(Gathered(Memory(raw[:-1]), 3, 5, 9, 50), field, random.Random(4))


def test_a_conversion_that_gives_too_little_is_damage() -> None:
    data = Converted(Memory(bytes(8)), 2, 3, 12, lambda raw: b"")
    with pytest.raises(Damaged):
        data.read(0, 5)


@pytest.fixture
def source(tmp_path: Path) -> CountingSource:
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(range(256)) * 16)
    return CountingSource(path)


def test_extent_reads_only_its_range(source: CountingSource) -> None:
    extent = Extent(source, 100, 1000)
    check_ranges(extent, (bytes(range(256)) * 16)[100:1100], random.Random(3))
    source.reads.clear()
    assert extent.read(10, 3) == bytes((110, 111, 112))
    assert source.reads == [(110, 3)]
    assert extent.location() == (100, 1000, "none", None, extent.source)


def test_unreadable_data_has_a_size_and_a_reason() -> None:
    data = Unreadable(1 << 43, Damaged("is missing", "file", "block 7"))
    assert data.size == 1 << 43
    for _ in range(2):
        with pytest.raises(Damaged, match=r"^file: block 7: is missing$") as caught:
            data.read(1 << 42, 1)
        assert caught.value.part == "block 7"
        assert len(caught.traceback) < 6, "an exception that is raised again and again grows"


def test_concatenation_fails_only_in_its_failing_part() -> None:
    data = Concatenated([Memory(b"abc"), Unreadable(3, Damaged("gone")), Memory(b"xyz")])
    assert data.read(0, 3) + data.read(6, 3) == b"abcxyz"
    with pytest.raises(Damaged, match="gone"):
        data.read(2, 2)


def test_range_beyond_the_parts_is_damage() -> None:
    """The source may change after its size was read."""
    with pytest.raises(Damaged):
        Concatenated([Memory(b"abc")]).read(2, 2)


def test_only_blocks_of_a_range_are_made() -> None:
    made: list[int] = []

    def block(number: int) -> Rendered:
        def make() -> bytes:
            made.append(number)
            return bytes([number]) * 10

        return Rendered(cache, number, make, 10)

    cache = BlockCache(1 << 20)
    data = Blocked(cache, lambda: range(0, 101, 10), block)
    assert not data.is_sized
    assert data.read(35, 10) == b"\3" * 5 + b"\4" * 5
    assert data.is_sized
    assert set(made) <= {3, 4, 5}  # 5: the next of a sequential reader
    assert data.read(70, 1) == b"\7"
    assert made.count(3) == made.count(4) == 1


def test_bounds_are_found_once_by_many_threads() -> None:
    calls: list[int] = []

    def bounds() -> list[int]:
        calls.append(1)
        return [0, 4]

    data = Blocked(BlockCache(), bounds, lambda number: Rendered(BlockCache(), 1, lambda: b"abcd", 4))
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: data.size, range(32))) == [4] * 32
    assert len(calls) == 1


def test_rendered_data_of_another_size_are_damage() -> None:
    for budget in (0, 1 << 20):
        with pytest.raises(Damaged):
            Rendered(BlockCache(budget), "k", lambda: b"abc", 4).read(0, 3)


ENCODERS = {name: encode for name, (codec, encode) in test_compression.ENCODERS.items() if name == codec}
RAW = struct.pack("<9000I", *(number * number % 9973 for number in range(9000)))


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], Extent]:
    def store(data: bytes) -> Extent:
        path = tmp_path / "block.bin"
        path.write_bytes(b"head" + data + b"tail")
        return Extent(local(path), 4, len(data))

    return store


EITHER = Covers.RAW | Covers.STORED
CHECKS = [
    (CRC32C, Covers.RAW, RAW), (CRC32C, Covers.STORED, None), (CRC32C, EITHER, RAW), (CRC32C, EITHER, None),
    (CRC32, Covers.RAW, RAW),
]
"""Checksums: of what they may be, and of which bytes they are; None stands for those that are stored."""


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("budget", [1 << 20, 1000], ids=["kept", "spooled"])
@pytest.mark.parametrize("check", [None, *CHECKS])
def test_a_block_decodes_in_any_range(
    stored: Callable[[bytes], Extent], codec: str, budget: int, check: tuple[Algorithm, Covers, bytes | None] | None,
) -> None:
    data = ENCODERS[codec](RAW)
    checksum = None
    if check is not None:
        algorithm, covers, checked = check
        checksum = Checksum(algorithm, algorithm.update(checked or data, 0), covers)
    block = Decoded(BlockCache(budget), stored(data), codec, len(RAW), "block 7", checksum)
    check_ranges(block, RAW, random.Random(4))
    location = block.location()
    assert (location.offset, location.stored, location.codec) == (4, len(data), codec)
    assert location.checksum == (None if checksum is None else f"{checksum.algorithm.name}:{checksum.value:08x}")


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("budget", [1 << 20, 1000], ids=["kept", "spooled"])
@pytest.mark.parametrize(("algorithm", "covers"), [
    (CRC32C, Covers.RAW), (CRC32C, Covers.STORED), (CRC32C, EITHER), (CRC32, Covers.RAW),
])
def test_a_wrong_checksum_names_file_and_block(
    stored: Callable[[bytes], Extent], codec: str, budget: int, algorithm: Algorithm, covers: Covers,
) -> None:
    wrong = Checksum(algorithm, algorithm.update(RAW, 0) ^ 1, covers)
    block = Decoded(BlockCache(budget), stored(ENCODERS[codec](RAW)), codec, len(RAW), "block 7", wrong)
    for offset in (0, len(RAW) - 4):
        with pytest.raises(Damaged, match=r"/block\.bin: block 7: its checksum does not match$"):
            block.read(offset, 4)


@pytest.mark.parametrize("is_right", [True, False])
def test_passed_checksum_is_not_computed_again(tmp_path: Path, is_right: bool) -> None:
    """It is remembered for the next opening of the container, until the cache forgets the version."""
    (tmp_path / "block.bin").write_bytes(RAW)
    cache, check = BlockCache(), Checksum(CRC32C, crc32c(RAW) ^ (not is_right))
    costs = []
    for _ in range(3):
        source = CountingSource(tmp_path / "block.bin")
        block = Decoded(cache, Extent(source, 0, len(RAW)), "none", len(RAW), "block 7", check)
        if is_right:
            assert block.read(5, 4) == RAW[5:9]
        else:
            with pytest.raises(Damaged, match="checksum"):
                block.read(5, 4)
        costs.append(source.bytes_read)
        if len(costs) == 2:
            cache.forget(source.version)
    once = len(RAW) + 4
    assert costs == ([once, 4, once] if is_right else [len(RAW)] * 3)


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("budget", [1 << 20, 1000], ids=["kept", "spooled"])
@pytest.mark.parametrize("lie", [-1, 1, 1 << 40])
def test_false_size_is_damage(stored: Callable[[bytes], Extent], codec: str, budget: int, lie: int) -> None:
    data = ENCODERS[codec](RAW)
    block = Decoded(BlockCache(budget), stored(data), codec, len(RAW) + lie, "block 7")
    with pytest.raises(Damaged, match=r"/block\.bin: block 7: "):
        for offset in (0, block.size - 4):
            block.read(offset, 4)


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_damaged_large_block_is_never_returned_whole(stored: Callable[[bytes], Extent], codec: str) -> None:
    """Its first bytes come before the checksum is known; its last ones only when it is right."""
    raw = bytes(range(256)) * (80 << 10)
    data = bytearray(ENCODERS[codec](raw))
    size = len(raw)
    block = Decoded(BlockCache(1 << 20), stored(bytes(data)), codec, size, "block 7", Checksum(CRC32C, crc32c(raw) ^ 1))
    with pytest.raises(Damaged, match="checksum"):
        for offset in range(0, size, PIECE):
            part = block.read(offset, min(PIECE, size - offset))
            assert part == raw[offset : offset + PIECE]


def test_check_of_a_large_block_keeps_up_with_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when there is no further read, so a block of any size costs in proportion to what is read."""
    size = 4 * CHECKED_AT_ONCE
    with open(tmp_path / "block.bin", "wb") as file:
        file.truncate(size)
    source, cache = CountingSource(tmp_path / "block.bin"), BlockCache()
    monkeypatch.setattr("glassfs.work.run_ahead", lambda task: task())
    whole = 0
    for _ in range(size // PIECE):
        whole = crc32c(bytes(PIECE), whole)
    block = Decoded(cache, Extent(source, 0, size), "none", size, "block 7", Checksum(CRC32C, whole))
    for reads in (1, 2):
        assert block.read(5, 4) == bytes(4)
        assert source.bytes_read == reads * (CHECKED_AT_ONCE + 4)
    assert block.read(size - 4, 4) == bytes(4)
    assert source.bytes_read == size + 12  # each byte was checked once


def test_partial_reads_are_unchecked_if_the_check_is_at_the_end(tmp_path: Path) -> None:
    """They cost what they read. A reader of everything gets the last bytes only if the checksum is right."""
    raw = random.Random(1).randbytes(12 << 20)
    (tmp_path / "block.bin").write_bytes(raw)
    for is_right in (True, False):
        source = CountingSource(tmp_path / "block.bin")
        checksum = Checksum(CRC32, crc32(raw) ^ (not is_right))
        block = Decoded(BlockCache(), Extent(source, 0, len(raw)), "none", len(raw), "block 7", checksum, True)
        assert block.read(len(raw) - 10, 10) == raw[-10:] and block.read(9 << 20, 5) == raw[9 << 20 :][:5]
        assert block.read(0, 100) == raw[:100]
        assert source.bytes_read == 115
        assert block.mapped() == raw
        starts = [*range(0, len(raw), PIECE)]
        starts[3], starts[4] = starts[4], starts[3]  # the kernel may ask out of order
        for start in starts[:-1]:
            assert block.read(start, PIECE) == raw[start : start + PIECE]
        if is_right:
            assert block.read(starts[-1], PIECE) == raw[starts[-1] :]
            assert str(block.location().checksum) == f"crc32:{crc32(raw):08x}"
        else:
            for start, size in ((starts[-1], PIECE), (5, 5), (len(raw) - 5, 5)):
                with pytest.raises(Damaged, match="block 7: its checksum does not match"):
                    block.read(start, size)
            with pytest.raises(Damaged, match="checksum"):
                block.mapped()
    small = Extent(source, 0, 3 << 20)  # whatever was read before: the kernel may ask for its end first
    with pytest.raises(Damaged, match="checksum"):
        Decoded(BlockCache(), small, "none", small.size, "block 8", checksum, True).read(small.size - 10, 10)


def test_stopped_check_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "block.bin").write_bytes(RAW * 64)
    size = len(RAW) * 64
    source = CountingSource(tmp_path / "block.bin")
    block = Decoded(BlockCache(), Extent(source, 0, size), "none", size, "block 7", Checksum(CRC32C, crc32c(RAW * 64)))
    with pytest.raises(work.OverBudget):
        work.limited(PIECE + 1, 60, lambda: block.read(0, 4))
    before = source.bytes_read
    assert block.read(0, 4) == RAW[:4]
    assert source.bytes_read - before < size


def test_a_block_is_decoded_once(stored: Callable[[bytes], Extent]) -> None:
    cache = BlockCache(1 << 20)
    extent = stored(ENCODERS["deflate"](RAW))
    for _ in range(3):  # other objects for the same block
        Decoded(cache, extent, "deflate", len(RAW), "block 7").read(0, 100)
    assert (cache.misses, cache.hits) == (1, 2)
