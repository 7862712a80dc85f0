"""ML.NET data views: values, vectors, text, damage, bombs, and what check finds (docs/formats/idv.md §4 to §8)."""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers.idv import Codec, IdvWriter, Sparse, key, old_key, vector

from glassfs.errors import Damaged, TooLarge
from tests.formats.derived import whole
from tests.formats.exercise import exercise, peak_memory
from tests.formats.idv_files import EPOCH, MIB, NAT, entry, raw_column, records, same_bits, schema, two_columns
from tests.helpers import array_of, contents_of, only, open_bytes, open_path

# -- single values -------------------------------------------------------------------------------

NUMBERS = {
    "SByte": ("|i1", [-128, 127, 0]), "Byte": ("|u1", [0, 255, 7]), "Int16": ("<i2", [-(1 << 15), (1 << 15) - 1, 0]),
    "UInt16": ("<u2", [0, 65535, 1]), "Int32": ("<i4", [-(1 << 31), (1 << 31) - 1, 0]),
    "UInt32": ("<u4", [0, (1 << 32) - 1, 1]), "Int64": ("<i8", [NAT, (1 << 63) - 1, 0]),
    "UInt64": ("<u8", [0, (1 << 64) - 1, 1]),
    "Single": ("<f4", [-0.0, math.inf, 1e-45, *np.array([0x7FC01234, 0xFF800001], "<u4").view("<f4")]),
    "Double": ("<f8", [-0.0, math.nan, 5e-324]), "DataViewRowId": ("<u8", [[0, 1], [1 << 63, 7], [5, 5]]),
    "TimeSpan": ("<m8[100ns]", [0, -5, NAT]), "DvTimeSpan": ("<m8[100ns]", [0, -5, NAT]),
}


@pytest.mark.parametrize("compression", ["none", "deflate"])
@pytest.mark.parametrize("codec", NUMBERS)
def test_numbers_are_shown_as_stored(make: Callable[..., Path], codec: str, compression: str) -> None:
    dtype, values = NUMBERS[codec]
    values = values * 5
    path = make(
        lambda view: view.add("x", np.array(values, dtype), codec), rows_per_block=4, compression=compression,
    )
    container = open_path(path)
    same_bits(array_of(container, "columns/x"), values, dtype)
    whole(only(container, "columns/x").data)
    assert schema(container)["columns"][0]["type"] == codec.removeprefix("Dv")


@pytest.mark.parametrize("codec", ["Boolean", "DvBool"])
@pytest.mark.parametrize("rows_per_block", [1, 3, 17, 100])
def test_booleans_are_bits(make: Callable[..., Path], rows_per_block: int, codec: str) -> None:
    stored = np.random.default_rng(1).integers(0, 3 if codec == "DvBool" else 2, 67)  # 2 is missing
    values = stored if codec == "DvBool" else stored == 1
    container = open_path(make(lambda view: view.add("b", values, codec), rows_per_block=rows_per_block))
    same_bits(array_of(container, "columns/b"), stored == 1, "|b1")
    whole(only(container, "columns/b").data)


@pytest.mark.parametrize("codec", ["DateTime", "DvDateTime"])
def test_times_count_from_1970_and_missing_ones_are_nat(make: Callable[..., Path], codec: str) -> None:
    ticks = [0, EPOCH, EPOCH - 1, NAT, 3_155_378_975_999_999_999]
    path = make(lambda view: view.add("t", np.array(ticks), codec))
    found = array_of(open_path(path), "columns/t")
    assert found.dtype == np.dtype("<M8[100ns]")
    assert np.isnat(found).tolist() == [False, False, False, True, False]
    assert found[[0, 1, 2, 4]].view("<i8").tolist() == [-EPOCH, 0, -1, ticks[-1] - EPOCH]


@pytest.mark.parametrize("codec", ["DateTimeOffset", "DvDateTimeZone"])
def test_zoned_times_are_utc_and_an_offset(make: Callable[..., Path], codec: str) -> None:
    rows = [(EPOCH + 36_000_000_000, 60), (EPOCH, -840), (NAT, 0), (EPOCH, -32768), (EPOCH + 7, 0)]
    container = open_path(make(lambda view: view.add("z", rows, codec), rows_per_block=2))
    utc = array_of(container, "columns/z")
    assert utc.dtype == np.dtype("<M8[100ns]")
    assert utc.view("<i8").tolist() == [0, 840 * 600_000_000, NAT, NAT, 7]
    same_bits(array_of(container, "columns/z", ".offset_minutes"), [60, -840, 0, -32768, 0], "<i2")
    whole(only(container, "columns/z").data)


YEARS, ZONE = "years 1 to 9999", "more than 840 minutes"


@pytest.mark.parametrize("codec, value, reason", [
    *(("DateTime", ticks, YEARS) for ticks in (-1, 3_155_378_976_000_000_000, NAT + 1, (1 << 63) - 1)),
    ("DateTimeOffset", (EPOCH, 841), ZONE), ("DateTimeOffset", (EPOCH, -841), ZONE), ("DateTimeOffset", (-1, 0), YEARS),
    ("DateTimeOffset", (0, 1), YEARS), ("DateTimeOffset", (1 << 62, 0), YEARS), ("DvBool", 3, "not false, true or"),
])
def test_impossible_values_are_damage(make: Callable[..., Path], codec: str, value: Any, reason: str) -> None:
    is_zoned = codec == "DateTimeOffset"
    container = open_path(make(lambda view: view.add("x", [(EPOCH, 0) if is_zoned else 0, value], codec)))
    for label in ("", ".offset_minutes") if is_zoned else ("",):
        with pytest.raises(Damaged, match=f"made.idv: column 'x': .*{reason}"):
            only(container, "columns/x", label).data.whole()


# -- vectors -------------------------------------------------------------------------------------

def spread(rows: list[Any], dtype: str) -> list[np.ndarray]:
    found = []
    for row in rows:
        if isinstance(row, Sparse):
            full = np.zeros(row.length, dtype)
            for slot, value in zip(row.indices, row.values, strict=True):
                full[slot] = value
            found.append(full)
        else:
            found.append(np.asarray(row, dtype))
    return found


def mixed(random_: random.Random, length: int) -> Any:
    if length and random_.random() < 0.6:
        indices = sorted(random_.sample(range(length), random_.randrange(length)))
        return Sparse(length, indices, [random_.choice((0.0, -0.0, 1.5, float(slot))) for slot in indices])
    return [float(random_.randrange(9)) for _ in range(length)]


@pytest.mark.parametrize("item, dtype", [("Single", "<f4"), ("Double", "<f8"), ("Boolean", "|b1"), ("UInt16", "<u2")])
@pytest.mark.parametrize("rows_per_block", [1, 7, 100])
def test_sparse_and_dense_rows_mix(make: Callable[..., Path], item: str, dtype: str, rows_per_block: int) -> None:
    random_ = random.Random(rows_per_block)
    rows = [mixed(random_, 13) for _ in range(100)]
    container = open_path(make(lambda view: view.add("v", rows, vector(item, 13)), rows_per_block=rows_per_block))
    same_bits(array_of(container, "columns/v"), np.stack(spread(rows, dtype)), dtype)
    whole(only(container, "columns/v").data)


@pytest.mark.parametrize("rows_per_block", [1, 7, 100])
def test_rows_of_any_length_are_values_and_offsets(make: Callable[..., Path], rows_per_block: int) -> None:
    random_ = random.Random(rows_per_block)
    rows = [mixed(random_, random_.choice((0, 0, 1, 3, 50))) for _ in range(100)]
    container = open_path(make(lambda view: view.add("v", rows, vector("Double", 0)), rows_per_block=rows_per_block))
    expected = spread(rows, "<f8")
    same_bits(array_of(container, "columns/v/values"), np.concatenate(expected), "<f8")
    same_bits(array_of(container, "columns/v/offsets"), np.cumsum([0, *map(len, expected)]), "<i8")
    whole(only(container, "columns/v/values").data)
    whole(only(container, "columns/v/offsets").data)


@pytest.mark.parametrize("rows_per_block", [1, 4, 100])
def test_wide_vectors_are_compressed_rows(make: Callable[..., Path], rows_per_block: int) -> None:
    size, random_ = 70_000, random.Random(3)
    rows: list[Any] = [
        Sparse(size, slots := sorted(random_.sample(range(size), 20)), [float(slot) for slot in slots])
        for _ in range(9)
    ]
    rows[4] = np.arange(size, dtype="<f4")
    container = open_path(make(lambda view: view.add("v", rows, vector("Single", size)), rows_per_block=rows_per_block))
    assert array_of(container, "columns/v/indptr").tolist() == np.cumsum([0, *[20] * 4, size, *[20] * 4]).tolist()
    indices = [np.arange(size) if row is rows[4] else row.indices for row in rows]
    same_bits(array_of(container, "columns/v/indices"), np.concatenate(indices), "<i4")
    same_bits(array_of(container, "columns/v/data"), np.concatenate(indices), "<f4")
    for name in ("data", "indices", "indptr"):
        whole(only(container, f"columns/v/{name}").data)
    assert b"columns/v" not in contents_of(container.root)


@pytest.mark.parametrize("item, dtype, rows, expected", [
    ("DateTime", "<M8[100ns]", [Sparse(3, [1], [NAT])], [[-EPOCH, NAT, -EPOCH]]),
    ("TimeSpan", "<m8[100ns]", [Sparse(3, [1], [NAT])], [[0, NAT, 0]]),
    ("DateTimeOffset", "<M8[100ns]", [Sparse(3, [1], [(EPOCH, 1)])], [[-EPOCH, -600_000_000, -EPOCH]]),
    ("DvBool", "|b1", [Sparse(3, [0, 2], [1, 2])], [[1, 0, 0]]),
    ("DataViewRowId", "<u8", [Sparse(3, [1], [(7, 8)])], [[[0, 0], [7, 8], [0, 0]]]),
])
def test_elements_not_stored_have_the_default(
    make: Callable[..., Path], item: str, dtype: str, rows: list[Sparse], expected: list[Any],
) -> None:
    path = make(lambda view: view.add("v", rows, vector(item, 3)))
    found = array_of(open_path(path), "columns/v")
    assert found.dtype == np.dtype(dtype)
    integers = found.view("<i8") if found.dtype.itemsize == 8 else found
    assert integers.tolist() == expected


def test_the_schema_has_types_as_mlnet_prints_them_and_shapes(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        for name, codec in {
            "a": vector("Single"), "b": vector("Single", 0), "c": vector("Single", 0, 3), "d": vector("Single", 2, 3),
            "e": vector(key("UInt32", 4)), "f": vector(old_key("Byte", 4), 2), "g": vector("DvBool", 1),
            "h": Codec("Single"), "i": vector("Single", 262_144), "j": vector("TextSpan", 4),
            "k": key("UInt64", (1 << 64) - 1), "l": old_key("UInt32", 5), "m": old_key("UInt32", 0),
        }.items():
            view.add(name, [], codec)

    container = open_path(make(fill))
    assert [(column["type"], column["shape"]) for column in schema(container)["columns"]] == [
        ("Vector<Single>", None), ("Vector<Single>", None), ("Vector<Single, *, 3>", None),
        ("Vector<Single, 2, 3>", [2, 3]), ("Vector<Key<UInt32, 0-3>>", None), ("Vector<Key<Byte, 0-3>, 2>", [2]),
        ("Vector<Boolean, 1>", [1]), ("Single", None), ("Vector<Single, 262144>", [262_144]),
        ("Vector<String, 4>", [4]), ("Key<UInt64, 0-18446744073709551614>", None), ("Key<UInt32, 0-4>", None),
        ("Key<UInt32, 0-4294967294>", None),
    ]
    assert only(container, "columns/d").shape == (0, 2, 3)
    assert array_of(container, "columns/a/offsets").tolist() == [0]


# -- text ----------------------------------------------------------------------------------------

TEXTS = ["", None, "plain", "two\nlines\0", "é", "日本語", "\U0001f600!", "a" * 5000, "\ufeffbom", "x" * 3]


@pytest.mark.parametrize("rows_per_block", [1, 4, 100, 100_000])
def test_text_positions_count_utf16_units(make: Callable[..., Path], rows_per_block: int) -> None:
    texts = TEXTS * 40
    path = make(lambda view: view.add("t", texts), rows_per_block=rows_per_block)
    assert records(open_path(path), "columns/t") == texts


@pytest.mark.parametrize("unit", ["z", "é", "日", "\U0001f600", "日z\U0001f600é"])
def test_long_text_is_cut_between_characters(make: Callable[..., Path], unit: str) -> None:
    random_ = random.Random(unit)
    texts = ["z" * random_.randrange(3) + unit * random_.randrange(400) for _ in range(2000)]
    path = make(lambda view: view.add("t", texts))
    assert records(open_path(path), "columns/t") == texts


def test_a_split_surrogate_pair_leaves_two_halves(make: Callable[..., Path]) -> None:
    path = make(lambda view: view.add("t", ["a\ud83d", "\ude00b", "c"]))
    assert records(open_path(path), "columns/t") == ["a\ud83d", "\ude00b", "c"]


def test_vectors_of_text_are_lists(make: Callable[..., Path]) -> None:
    rows = [["a", "é"], Sparse(3, [1], ["\U0001f600"]), [], [None]]
    path = make(lambda view: view.add("t", rows, vector("TextSpan")), rows_per_block=3)
    assert records(open_path(path), "columns/t") == [["a", "é"], ["", "\U0001f600", ""], [], [None]]


def test_wide_vectors_of_text_take_few_rows_at_a_time(make: Callable[..., Path]) -> None:
    rows = [Sparse(100_000, [row], ["x"]) for row in range(5)]
    path = make(lambda view: view.add("t", rows, vector("TextSpan", 100_000)))
    content = only(open_path(path), "columns/t")
    assert content.blocks == 5
    assert [block[0].index("x") for block in map(content.block, range(5))] == [0, 1, 2, 3, 4]
    assert len(content.block(0)[0]) == 100_000


def test_invalid_utf8_is_replaced_and_found(make: Callable[..., Path]) -> None:
    path = make(lambda view: view.add("t", ["ab", "c?d"]), compression="none")
    path.write_bytes(path.read_bytes().replace(b"abc?d", b"abc\xffd"))
    container = open_path(path)
    assert records(container, "columns/t") == ["ab", "c\ufffdd"]
    assert [fault.reason for fault in container.check()] == ["has text that is not UTF-8"]


@pytest.mark.parametrize("rows, codec", [
    ([Sparse(1 << 21, [5], ["x"])], vector("TextSpan")), (["short", "x" * (25 * MIB)], Codec("TextSpan")),
], ids=["many", "long"])
def test_texts_too_large_to_hold_are_refused(make: Callable[..., Path], rows: list[Any], codec: Codec) -> None:
    path = make(lambda view: view.add("t", rows, codec))
    with pytest.raises(TooLarge):
        records(open_path(path), "columns/t")


@pytest.mark.parametrize("old, new", [
    (struct.pack("<i3i", 3, 1, 2, 3), struct.pack("<i3i", 2, 1, 2, 3)),  # another number of texts
    (struct.pack("<i3i", 3, 1, 2, 3), struct.pack("<i3i", 3, 2, 1, 3)),  # falling ends
    (struct.pack("<i3i", 3, 1, 2, 3), struct.pack("<i3i", 3, 1, 2, 4)),  # past the string
    (struct.pack("<i3i", 3, 1, 2, 3), struct.pack("<i3i", 3, 1, 2, 2)),  # before its end
    (struct.pack("<i3i", 3, 1, 2, 3), struct.pack("<iiIi", 3, 1, 2 | 1 << 31, 3)),  # missing, but not empty
    (b"\x03xyz", b"\x7fxyz"),  # a string longer than the block
    (b"\x03xyz", b"\x03x\xc3\xa9"),  # ends that count bytes
])
def test_damaged_text_is_damage(make: Callable[..., Path], old: bytes, new: bytes) -> None:
    path = make(lambda view: view.add("t", ["x", "y", "z"]), compression="none")
    data = path.read_bytes()
    assert data.count(old) == 1
    content = only(open_bytes(data.replace(old, new), "cut.idv"), "columns/t")
    with pytest.raises(Damaged, match=r"cut\.idv: column 't'"):
        content.block(0)


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


def test_blocks_may_be_longer_than_their_values_and_shared(make: Callable[..., Path]) -> None:
    data = bytearray(make(two_columns, compression="none").read_bytes())
    place, offset, _ = entry(data, 0, 0)
    struct.pack_into("<qii", data, place, offset, 70, 66)
    struct.pack_into("<qii", data, place + 16, offset, 64, 64)
    container = open_bytes(bytes(data))
    assert array_of(container, "columns/A").tolist() == [*range(8), *range(8), *range(16, 20)]


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


def test_surplus_indices_are_ignored(make: Callable[..., Path]) -> None:
    block = vectors(4, [], [-1, 1, 2], 5, [1, 0, 3, 77, 5], 7)
    container = open_path(make(lambda view: raw_column(view, block, vector("Single", 4))))
    assert array_of(container, "columns/v").tolist() == [[0, 1, 2, 3], [0, 4, 0, 0], [5, 0, 0, 6]]
    assert list(container.check()) == []


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

    whole = make(fill).read_bytes()
    container = open_bytes(whole + b"1234567")
    found = {(fault.place, fault.reason) for fault in container.check()}
    assert {
        ("file", f"7 bytes at {len(whole)}, after the tail, belong to nothing"),
        ("columns/K", "1 keys exceed their count of 3"),
        ("meta/columns/K/KeyValues", "has 2 values, but keys go up to 3"),
        ("meta/columns/V/SlotNames", "names 3 slots, but a vector has 2"),
    } == found


# -- samples and fuzz ----------------------------------------------------------------------------


def test_samples_have_no_faults(samples: Path) -> None:
    paths = [path for path in (samples / "idv").glob("*.idv") if not path.name.startswith("crafted")]
    assert len(paths) > 20
    assert [path.name for path in paths if list(open_path(path).check())] == []


@settings(max_examples=150, deadline=None)
@given(noise=st.binary(max_size=400), codec=st.sampled_from([
    vector("Single"), vector("Boolean", 3), vector("TextSpan"), vector("TextSpan", 2), vector("DateTimeOffset", 2),
    vector("Byte", 70_000), Codec("TextSpan"), Codec("DvBool"), Codec("DateTimeOffset"),
]), head=st.lists(st.sampled_from([0, 1, 2, 3, 4, -1]), max_size=14))
def test_blocks_of_noise_raise_only_known_errors(
    make: Callable[..., Path], noise: bytes, codec: Codec, head: list[int],
) -> None:
    exercise(make(lambda view: raw_column(view, struct.pack(f"<i{len(head)}i", 3, *head) + noise, codec)))
