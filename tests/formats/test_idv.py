"""ML.NET data views: single values, vectors, text (docs/formats/idv.md §7, §8)."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.idv import Codec, IdvWriter, Sparse, key, old_key, vector

from glassfs.errors import Damaged, TooLarge
from tests.formats.derived import whole
from tests.formats.idv_files import EPOCH, MIB, NAT, records, same_bits, schema
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


@pytest.mark.parametrize("codec, dtype, printed", [
    (key("Byte", 255), "|u1", "Key<Byte, 0-254>"), (key("UInt16", 1), "<u2", "Key<UInt16, 0-0>"),
    (key("UInt64", (1 << 64) - 1), "<u8", "Key<UInt64, 0-18446744073709551614>"),
    (old_key("UInt32", 5), "<u4", "Key<UInt32, 0-4>"), (old_key("UInt32", 0), "<u4", "Key<UInt32, 0-4294967294>"),
])
def test_keys_keep_their_integers(make: Callable[..., Path], codec: Codec, dtype: str, printed: str) -> None:
    container = open_path(make(lambda view: view.add("k", np.array([0, 1, 0, 1]), codec)))
    same_bits(array_of(container, "columns/k"), [0, 1, 0, 1], dtype)
    assert schema(container)["columns"][0]["type"] == printed


# -- vectors -------------------------------------------------------------------------------------

def spread(rows: list[Any], dtype: str) -> list[np.ndarray]:
    """Rows with all their elements, one by one."""
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
    """A row of that length, dense or sparse, with explicit zeros."""
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


def test_vectors_of_65536_slots_are_still_an_array(make: Callable[..., Path]) -> None:
    rows = [Sparse(65_536, [65_535], [1])]
    path = make(lambda view: view.add("v", rows, vector("Byte", 256, 256)))
    found = array_of(open_path(path), "columns/v")
    assert found.shape == (1, 256, 256)
    assert np.flatnonzero(found).tolist() == [65_535]


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
        }.items():
            view.add(name, [], codec)

    container = open_path(make(fill))
    assert [(column["type"], column["shape"]) for column in schema(container)["columns"]] == [
        ("Vector<Single>", None), ("Vector<Single>", None), ("Vector<Single, *, 3>", None),
        ("Vector<Single, 2, 3>", [2, 3]), ("Vector<Key<UInt32, 0-3>>", None), ("Vector<Key<Byte, 0-3>, 2>", [2]),
        ("Vector<Boolean, 1>", [1]), ("Single", None), ("Vector<Single, 262144>", [262_144]),
        ("Vector<String, 4>", [4]),
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
