"""ML.NET data views: damaged blocks, bombs, what check finds, samples and noise (docs/formats/idv.md §4, §5, §8)."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers.idv import Codec, IdvWriter, Sparse, key, vector

from glassfs.content import Array
from glassfs.errors import Damaged
from tests.formats.exercise import exercise, peak_memory
from tests.formats.idv_files import MIB, entry, raw_column, two_columns
from tests.helpers import array_of, contents_of, only, open_bytes, open_path

# -- blocks --------------------------------------------------------------------------------------

@pytest.mark.parametrize("field, layout, value", [
    (0, "<q", 0), (0, "<q", -5), (0, "<q", 1 << 60), (8, "<i", -1), (8, "<i", (1 << 31) - 1), (8, "<i", 0),
    (8, "<i", 5), (12, "<i", -1), (12, "<i", (1 << 31) - 1), (12, "<i", 63), (12, "<i", 200),
])
def test_a_damaged_block_costs_itself(make: Callable[..., Path], field: int, layout: str, value: int) -> None:
    data = bytearray(make(two_columns).read_bytes())
    place, _, _ = entry(data, 0, 1)
    struct.pack_into(layout, data, place + field, value)
    container = open_bytes(bytes(data))
    content = only(container, "columns/A").data
    assert content.size == 160
    assert content.read(0, 64) == np.arange(8.0).tobytes()
    assert content.read(128, 32) == np.arange(16.0, 20.0).tobytes()
    for start in (64, 120):
        with pytest.raises(Damaged, match=r"made: column 'A', block 1"):
            content.read(start, 8)
    assert array_of(container, "columns/B").tolist() == np.arange(40).reshape(20, 2).tolist()


def test_a_stream_may_go_on_behind_what_is_declared(make: Callable[..., Path]) -> None:
    data = bytearray(make(two_columns).read_bytes())
    place, _, _ = entry(data, 0, 2)
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = bomb.compress(np.arange(4.0).tobytes() + bytes(4 * MIB)) + bomb.flush() + b"slack"
    tail = struct.unpack_from("<q", data, 32)[0]
    data[tail:tail] = stream
    struct.pack_into("<q", data, 32, tail + len(stream))
    struct.pack_into("<qii", data, place, tail, len(stream), 32)
    container = open_bytes(bytes(data))
    assert array_of(container, "columns/A")[16:].tolist() == [0, 1, 2, 3]
    assert any("is longer than the declared 32 bytes" in fault.reason for fault in container.check())


def test_blocks_may_be_longer_than_their_values_and_shared(make: Callable[..., Path]) -> None:
    data = bytearray(make(two_columns, compression="none").read_bytes())
    place, offset, _ = entry(data, 0, 0)
    struct.pack_into("<qii", data, place, offset, 70, 66)
    struct.pack_into("<qii", data, place + 16, offset, 64, 64)
    container = open_bytes(bytes(data))
    assert array_of(container, "columns/A").tolist() == [*range(8), *range(8), *range(16, 20)]
    reasons = [fault.reason for fault in container.check()]
    assert "2 bytes follow its values" in reasons and "stores 70 bytes, but declares 66" in reasons


def vectors(length: int, lengths: list[int], counts: list[int], total: int, indices: list[int], values: int) -> bytes:
    head = struct.pack("<ii", 3, length)
    numbers = [*lengths, *counts, total, *indices]
    return head + struct.pack(f"<{len(numbers)}i", *numbers) + np.arange(values, dtype="<f4").tobytes()


@pytest.mark.parametrize("size, block", [
    (4, vectors(3, [], [-1, -1, -1], 0, [], 12)),  # another length than the type has
    (4, vectors(4, [], [-1, -1, -1], 0, [], 10)),  # too few values
    (4, vectors(4, [], [-1, -1, -2], 0, [], 12)),
    (4, vectors(4, [], [-1, -1, 4], 4, [0, 1, 2, 3], 12)),  # sparse, but all stored
    (4, vectors(4, [], [-1, -1, 2], 2, [1, 1], 10)),
    (4, vectors(4, [], [-1, -1, 2], 2, [2, 1], 10)),
    (4, vectors(4, [], [-1, -1, 2], 2, [-2, 1], 10)),
    (4, vectors(4, [], [1, -1, 2], 3, [3, 1, 4], 7)),
    (4, vectors(4, [], [-1, -1, 2], 1, [1], 10)),
    (4, vectors(4, [], [-1, -1, 2], 1, [0, 1], 10)),  # wrong in nothing but the total
    (4, vectors(4, [], [-1, -1, 2], -1, [1, 2], 10)),
    (4, vectors(4, [], [-1, -1, 2], (1 << 31) - 1, [1, 2], 10)),
    (4, struct.pack("<ii", 2, 4) + bytes(100)),  # another number of rows
    (0, vectors(0, [1, -1, 1], [-1, -1, -1], 0, [], 3)),
    (0, vectors((1 << 31) - 1, [], [-1, -1, -1], 0, [], 3)),
    (0, vectors(0, [1, 0, 1], [-1, 0, -1], 0, [], 3)),  # an empty row is dense
    (0, vectors(-1, [], [-1, -1, -1], 0, [], 3)),
    (0, b"\x03"), (4, b""),
])
def test_damaged_vectors_are_damage(make: Callable[..., Path], size: int, block: bytes) -> None:
    path = make(lambda view: raw_column(view, block, vector("Single", size)))
    names = ("values", "offsets") if size == 0 else ("",)
    for name in names:
        content = only(open_path(path), f"columns/v/{name}".rstrip("/"))
        with pytest.raises(Damaged, match=r"made.idv: column 'v'"):
            content.data.whole()


def test_surplus_indices_are_ignored_and_found(make: Callable[..., Path]) -> None:
    block = vectors(4, [], [-1, 1, 2], 5, [1, 0, 3, 77, 5], 7)
    container = open_path(make(lambda view: raw_column(view, block, vector("Single", 4))))
    assert array_of(container, "columns/v").tolist() == [[0, 1, 2, 3], [0, 4, 0, 0], [5, 0, 0, 6]]
    assert [fault.reason for fault in container.check()] == ["2 indices are used by no row"]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [True, False])
def test_a_huge_sparse_row_is_spread_a_piece_at_a_time(make: Callable[..., Path], sparse: bool) -> None:
    length, slots = (1 << 31) - 1, list(range(0, 1 << 20, 2)) if sparse else [1 << 30]
    rows = [[1.0], Sparse(length, slots, [3.0] * len(slots)), [2.0]]
    path = make(lambda view: view.add("v", rows, vector("Single")))
    content = only(open_path(path), "columns/v/values")

    def look() -> None:
        assert content.data.size == (length + 2) * 4
        for slot in (0, 1, slots[-1] - 1, slots[-1], length // 2, length - 1):
            expected = 3.0 if slot in slots[-1:] or slot in slots[:1] else 0.0
            assert np.frombuffer(content.data.read(4 + slot * 4, 4), "<f4") == expected
        assert content.data.read(content.data.size - 4, 4) == struct.pack("<f", 2)
        assert not any(content.data.read(5 << 30, 8 * MIB))

    assert peak_memory(look) < 80 * MIB


@pytest.mark.parametrize("codec", [
    vector("Single"), Codec("TextSpan"),
    *(pytest.param(codec, marks=pytest.mark.slow) for codec in (
        vector("Single", 3), vector("Boolean", 70_000), vector("TextSpan"), Codec("Boolean"),
    )),
])
def test_a_bomb_of_zeros_stays_small(make: Callable[..., Path], codec: Codec) -> None:
    size = 48 * MIB
    rows = size // 8 - 100
    block = struct.pack("<ii", rows, codec.size or 0) if codec.name == "VBuffer" else struct.pack("<i", rows)
    path = make(lambda view: raw_column(view, block + bytes(size - len(block)), codec, rows))
    assert peak_memory(lambda: exercise(path)) < 60 * MIB


# -- check ---------------------------------------------------------------------------------------


def test_check_finds_what_reading_ignores(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("K", np.array([0, 1, 9]), key("UInt32", 3), metadata={"KeyValues": ["a", "b"]})
        view.add("V", np.zeros((3, 2)), metadata={"SlotNames": ["a", "b", "c"]})

    container = open_bytes(make(fill).read_bytes() + b"1234567")
    found = {(fault.place, fault.reason) for fault in container.check()}
    assert {
        ("file", "7 bytes follow its tail"),
        ("columns/K", "1 keys exceed their count of 3"),
        ("meta/columns/K/KeyValues", "has 2 values, but keys go up to 3"),
        ("meta/columns/V/SlotNames", "names 3 slots, but a vector has 2"),
    } == found


# -- samples and fuzz ----------------------------------------------------------------------------


def test_digests_of_samples(samples: Path) -> None:
    import hashlib

    checked = 0
    for path in sorted((samples / "idv").glob("*.idv")):
        expected = json.loads(path.with_name(path.name + ".expected.json").read_text())
        container = open_path(path)
        assert path.name.startswith("crafted") or list(container.check()) == [], path.name
        for column in expected["columns"]:
            digest, name = column.get("digest"), f"columns/{column['name']}"
            if not digest or column["hidden"] or not column["readable"] or "\ufffd" in name:
                continue
            content = contents_of(container.root).get(name.encode("utf-8", "surrogatepass"), [None])[0]
            if isinstance(content, Array) and content.dtype[1] not in "mM":
                assert hashlib.sha256(content.data.whole()).hexdigest() == digest["sha256"], (path.name, name)
                checked += 1
    assert checked > 100


@settings(max_examples=150, deadline=None)
@given(noise=st.binary(max_size=400), codec=st.sampled_from([
    vector("Single"), vector("Boolean", 3), vector("TextSpan"), vector("TextSpan", 2), vector("DateTimeOffset", 2),
    vector("Byte", 70_000), Codec("TextSpan"), Codec("DvBool"), Codec("DateTimeOffset"),
]), head=st.lists(st.sampled_from([0, 1, 2, 3, 4, -1]), max_size=14))
def test_blocks_of_noise_raise_only_known_errors(
    make: Callable[..., Path], noise: bytes, codec: Codec, head: list[int],
) -> None:
    exercise(make(lambda view: raw_column(view, struct.pack(f"<i{len(head)}i", 3, *head) + noise, codec)))
