"""ML.NET data views: names, schema, metadata, laziness, and what is refused (docs/formats/idv.md §2, §3, §6)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.idv import Codec, IdvWriter, Sparse, key, old_key, string, vector

from glassfs.cache import BlockCache
from glassfs.content import Omitted
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import Opening, open_container
from tests.formats.idv_files import EPOCH, records, same_bits, schema, two_columns
from tests.helpers import CountingSource, array_of, contents_of, only, open_bytes, open_path, opening, walk

# -- names, schema and metadata ------------------------------------------------------------------

def test_the_last_of_equal_names_keeps_it(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("F", np.array([1.0]))
        view.add("F", ["text"], metadata={"IsNormalized": np.bool_(True)})
        view.add("G", np.array([2.0]))
        view.add("F", [[3.0]], vector("Double"), metadata={"IsNormalized": np.bool_(False)})

    container = open_path(make(fill))
    names = [name for name, _ in walk(container.root)]
    assert names == [
        b"meta/schema", b"meta/columns/F/IsNormalized", b"meta/columns/F~3/IsNormalized",
        b"columns/G", b"columns/F/values", b"columns/F/offsets", b"columns/F~2", b"columns/F~3",
    ]
    assert only(container, "columns/F~3").key == b"F"
    assert array_of(container, "meta/columns/F~3/IsNormalized")[()]
    assert [column["hidden"] for column in schema(container)["columns"]] == [True, True, False, False]


def test_names_are_single_components(make: Callable[..., Path]) -> None:
    names = [b"a/b", b"..", b"\xff", b"", b"n" * 300]

    def fill(view: IdvWriter) -> None:
        for name in names:
            view.add(name, np.zeros(1), metadata={"of/it": 1.0})

    root = open_path(make(fill)).root
    columns = next(member.content for member in root.members() if member.name == (b"columns",))
    assert [member.name for member in columns.members()] == [(name,) for name in names]
    meta = {member.name: member.content for member in root.members()}[(b"meta",)]
    assert {member.name[2] for member in meta.members() if len(member.name) == 3} == {b"of/it"}


def test_the_schema_lists_every_column(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("A", np.zeros(5), metadata={"IsNormalized": np.bool_(True), "Note": "x"}, compression="none")
        view.add("B", np.zeros(5, "u4"), key("UInt32", 9))

    found = schema(open_path(make(fill, rows_per_block=3)))
    assert json.loads(json.dumps(found, default=bytes.decode)) == {"version": "1.1.1.6", "rows": 5, "columns": [
        {
            "name": "A", "type": "Double", "shape": None, "codec": "Double", "compression": "None", "rows_per_block": 3,
            "hidden": False, "readable": True, "metadata": ["IsNormalized", "Note"],
        },
        {
            "name": "B", "type": "Key<UInt32, 0-8>", "shape": None, "codec": "Key2", "compression": "Deflate",
            "rows_per_block": 3, "hidden": False, "readable": True, "metadata": [],
        },
    ]}


@pytest.mark.parametrize("compression", ["none", "deflate"])
def test_metadata_are_values_of_their_own(make: Callable[..., Path], compression: str) -> None:
    names = [f"slot {number}" for number in range(300)]

    def fill(view: IdvWriter) -> None:
        view.add("F", np.zeros((2, 300)), compression=compression, metadata={
            "SlotNames": names, "Ranges": np.arange(4, dtype="i4").reshape(2, 2), "IsNormalized": np.bool_(True),
            "Kind": "Score", "Set": (7, key("UInt32", 99)), "Free": ([1.0, 2.0], vector("Double")),
            "When": ((EPOCH, 60), "DateTimeOffset"), "Id": ((3, 4), "DataViewRowId"),
            "Sparse": (Sparse(70_000, [3], [1.5]), vector("Single", 70_000)),
            "Words": (["a", "b"], vector("TextSpan")),
        })

    container = open_path(make(fill))
    place = "meta/columns/F/"
    assert records(container, place + "SlotNames") == names
    assert records(container, place + "Kind") == ["Score"]
    assert records(container, place + "Words") == ["a", "b"]
    same_bits(array_of(container, place + "Ranges"), [[0, 1], [2, 3]], "<i4")
    same_bits(array_of(container, place + "IsNormalized"), True, "|b1")
    same_bits(array_of(container, place + "Set"), 7, "<u4")
    same_bits(array_of(container, place + "Free"), [1.0, 2.0], "<f8")
    same_bits(array_of(container, place + "Id"), [3, 4], "<u8")
    assert array_of(container, place + "When").view("<i8") == -60 * 600_000_000
    same_bits(array_of(container, place + "When", ".offset_minutes"), 60, "<i2")
    sparse = array_of(container, place + "Sparse")
    assert sparse.shape == (70_000,) and np.flatnonzero(sparse).tolist() == [3]
    assert list(container.check()) == []


def test_damaged_metadata_cost_themselves(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("F", np.arange(3.0), metadata={"A": ["first", "second"], "B": 5.0})

    path = make(fill, compression="none")
    container = open_bytes(path.read_bytes().replace(b"firstsecond", b"firs\xc3\xa9econd"))
    with pytest.raises(Damaged, match="metadata 'A' of column 'F'"):
        records(container, "meta/columns/F/A")
    assert array_of(container, "meta/columns/F/B") == 5
    assert array_of(container, "columns/F").tolist() == [0, 1, 2]


def test_a_metadata_table_that_breaks_off_keeps_what_came_before(make: Callable[..., Path]) -> None:
    path = make(lambda view: view.add("F", np.arange(3.0), metadata={"A": 1.0, "B": 5.0}))
    data = path.read_bytes()
    container = open_bytes(data.replace(b"\x01B" + string("Double"), b"\x01B" + b"\xfeouble\0"))
    names = [name for name, _ in walk(container.root)]
    assert names == [b"meta/schema", b"meta/columns/F/A", b"columns/F"]
    assert schema(container)["columns"][0]["metadata"] == [b"A"]
    assert next(fault.place for fault in container.check()) == "meta/columns/F"


# -- what cannot be read -------------------------------------------------------------------------

@pytest.mark.parametrize("codec", [
    Codec("Foo", b"\x01\x02"), Codec("UInt128"), Codec("RowId"), Codec(""), Codec("Single", b"abc"),
    vector("Foo", 2), vector(vector("Single", 2), 2), vector("Single", -3), vector("Single", 65536, 65536),
    key("UInt32", 0), key("Byte", 256), key("Int32", 5), key("Foo", 5), old_key("UInt32", -1),
    Codec("Key", Codec("UInt32").described() + struct.pack("<BQi", 0, 0, 5)),  # not contiguous
    Codec("Key", Codec("UInt32").described() + struct.pack("<BQi", 1, 3, 5)),  # not from 0 on
    Codec("VBuffer", b"\x06Single"), Codec("Key2", b"\xff\xff\xff\xff\xff\xff"), Codec("VBuffer", b""),
    vector("Single", *[1] * 2000), 2, 7, 255,
])
def test_a_column_of_unknown_codec_or_compression_has_no_file(make: Callable[..., Path], codec: Codec | int) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("Good", np.arange(3.0))
        view.add("Bad", np.zeros(3, "f4"), "Single", metadata={"Note": "x"})
        single = Codec("Single").described()
        new = single + bytes([codec]) if isinstance(codec, int) else codec.described() + b"\x01"
        view.toc[1] = view.toc[1].replace(single + b"\x01", new)
        view.add("Last", np.arange(3.0))

    container = open_path(make(fill))
    assert list(contents_of(container.root)) == [b"meta/schema", b"columns/Good", b"columns/Last"]
    assert array_of(container, "columns/Last").tolist() == [0, 1, 2]
    _, bad, _ = columns = schema(container)["columns"]
    assert [column["readable"] for column in columns] == [True, False, True]
    assert bad["compression"] == (str(codec) if isinstance(codec, int) else "Deflate")
    assert bad["type"] == ("Single" if isinstance(codec, int) else None)
    assert container.facts["unreadable_columns"] == 1
    (omitted,) = (member for member in container.root.members() if isinstance(member.content, Omitted))
    is_supported = omitted.content.is_damage
    assert omitted.name == (b"columns", b"Bad") and is_supported != ("unknown " in omitted.content.reason)
    assert is_supported == ("columns/Bad" in [fault.place for fault in container.check()])


HEADER = {"signature": (0, "<Q"), "version": (8, "<Q"), "compatible": (16, "<Q"), "toc": (24, "<q"), "tail": (32, "<q"),
          "rows": (40, "<q"), "columns": (48, "<i")}


@pytest.mark.parametrize("field, value", [
    ("version", 0x1000100010003), ("compatible", 0x1000100010003), ("compatible", 0x1000100010007), ("toc", -1),
    ("toc", 16), ("toc", 1 << 40), ("tail", -8), ("tail", 0), ("tail", 1 << 40), ("tail", 300), ("rows", -1),
    ("rows", 1 << 62), ("columns", -1), ("columns", 3), ("columns", (1 << 31) - 1),
])
def test_a_wrong_header_is_refused(make: Callable[..., Path], field: str, value: int) -> None:
    data = bytearray(make(two_columns).read_bytes())
    place, layout = HEADER[field]
    struct.pack_into(layout, data, place, value)
    with pytest.raises(Refused, match=r"^/[^\n]*/made: [^\n]+$"):
        open_bytes(bytes(data))


@pytest.mark.parametrize("version, compatible", [
    (0x1000100010004, 0x1000100010004), (0x1000100010007, 0x1000100010006), (0x2000000000000, 0x1000100010004),
])
def test_what_mlnet_opens_is_opened(make: Callable[..., Path], version: int, compatible: int) -> None:
    data = bytearray(make(two_columns).read_bytes())
    struct.pack_into("<QQ", data, 8, version, compatible)
    data[52:256] = bytes(range(204))  # unused, content undefined
    assert array_of(open_bytes(bytes(data) + b"behind the tail"), "columns/A").tolist() == list(range(20))


@pytest.mark.parametrize("lookup", [-1, 16, 1 << 40, "tail"])
@pytest.mark.parametrize("rows", [0, 20])
def test_lookup_tables_lie_before_the_tail(make: Callable[..., Path], lookup: Any, rows: int) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("A", np.arange(float(rows)))
        end = len(view.toc[0]) - 16
        place = 256 + 1000 if lookup == "tail" else lookup
        view.toc[0] = view.toc[0][:end] + struct.pack("<q", place) + view.toc[0][end + 8 :]

    if rows:
        with pytest.raises(Refused, match="lookup table of column 'A'"):
            open_path(make(fill))
    else:  # the lookup table is not used
        assert array_of(open_path(make(fill)), "columns/A").shape == (0,)


@pytest.mark.parametrize("cut", [0, 100, 256, 300, -100, -9, -3])
def test_a_cut_file_is_refused(make: Callable[..., Path], cut: int) -> None:
    with pytest.raises(Refused, match=r"^/[^\n]*/made: "):
        open_bytes(make(two_columns).read_bytes()[:cut])


def test_no_columns_and_no_rows(make: Callable[..., Path]) -> None:
    container = open_path(make(lambda view: None, rows=6))
    assert schema(container) == {"version": "1.1.1.6", "rows": 6, "columns": []}
    assert [member.name for member in container.root.members()] == [(b"meta",)]
    assert list(container.check()) == []

    def fill(view: IdvWriter) -> None:
        view.add("N", np.zeros(0))
        view.add("T", [], "TextSpan")

    container = open_path(make(fill))
    assert array_of(container, "columns/N").shape == (0,)
    assert records(container, "columns/T") == []


# -- laziness and memory -------------------------------------------------------------------------

def test_a_row_costs_one_block(make: Callable[..., Path]) -> None:
    values = np.random.default_rng(0).random((100_000, 4))
    source = CountingSource(make(lambda view: view.add("V", values), rows_per_block=1000))
    content = only(open_container(opening(source)), "columns/V")
    source.reads.clear()
    assert content.data.read(77_777 * 32, 32) == values[77_777].tobytes()
    assert len(source.reads) == 2  # a window of the lookup table and the block
    assert max(size for _, size in source.reads) < 60_000


def test_uncompressed_numbers_are_read_in_place(make: Callable[..., Path]) -> None:
    values = np.arange(100_000.0)
    path = make(lambda view: view.add("A", values), rows_per_block=50_000, compression="none")
    source = CountingSource(path)
    content = only(open_container(opening(source)), "columns/A")
    content.data.read(0, 8)
    source.reads.clear()
    assert content.data.read(80_000, 16) == values[10_000:10_002].tobytes()
    assert source.reads == [(256 + 80_000, 16)]


def test_a_size_by_pass_reads_the_beginnings_of_blocks(make: Callable[..., Path]) -> None:
    rows = [np.full(2000, float(row)) for row in range(400)]
    source = CountingSource(make(lambda view: view.add("v", rows, vector("Double")), rows_per_block=100))
    cache = BlockCache()
    content = only(open_container(Opening(source, cache)), "columns/v/values")
    assert not content.data.is_sized
    assert content.data.size == 400 * 2000 * 8
    assert cache.used < 10_000
