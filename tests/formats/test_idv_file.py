"""ML.NET data views: names, schema, metadata, refusals, and columns as a table (docs/formats/idv.md §2, §3, §6)."""

from __future__ import annotations

import gc
import json
import logging
import struct
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.idv import Codec, IdvWriter, Sparse, key, old_key, string, vector

import glassfs
from glassfs.cache import BlockCache, Recipe
from glassfs.content import Array, Container, Omitted, Records, Table
from glassfs.content.table import Ragged
from glassfs.errors import Damaged, Refused
from glassfs.formats.registry import Opening, open_container
from glassfs.view.json import line
from tests.formats.derived import table_file, tables_of
from tests.formats.exercise import peak_memory, visit
from tests.formats.idv_files import EPOCH, MIB, raw_column, records, same_bits, schema, two_columns
from tests.formats.sound import idv
from tests.helpers import CountingSource, array_of, contents_of, only, open_bytes, open_path, opening, walk
from tests.waiting import wait_until

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
    assert "columns/Bad" not in [fault.place for fault in container.check()]  # the listing has said it


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


# -- lifetime ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_damaged", [False, True])
def test_nothing_of_a_closed_container_is_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_damaged: bool,
) -> None:
    """Without the garbage collector: no cache of a module and no cycle of references keeps it."""
    caplog.set_level(logging.CRITICAL, "glassfs")  # a captured record keeps its error and the frames of its traceback
    path = tmp_path / "made.idv"
    data = idv(tmp_path)
    path.write_bytes(data[:300] + bytes(300) + data[600:] if is_damaged else data)
    cache = BlockCache(MIB)
    gc.disable()
    try:
        source = CountingSource(path)
        container = open_container(Opening(source, cache))
        contents = [content for found in contents_of(container.root).values() for content in found]
        alive = [weakref.ref(content.data) for content in contents if isinstance(content, Array)]
        alive.append(weakref.ref(source))
        for content in contents:
            visit(content)
        list(container.check())
        container.close()
        del source, container, contents, content
        assert len(alive) > 5
        # Blocks may still be being made ahead.
        wait_until(lambda: all(found() is None for found in alive), what="the end of everything that was opened")
    finally:
        gc.enable()


# -- read-ahead -----------------------------------------------------

BLOCKS, ROWS = 12, 1024
BLOCK = ROWS * 16 * 4


class PrefetchLog(BlockCache):
    """A cache that logs requested prefetches and performs none."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.ahead: list[Hashable] = []

    def prefetch(self, recipe: Recipe) -> bool:
        self.ahead.append(recipe.key)
        return True


@pytest.mark.parametrize("is_vector", [False, True])
def test_sequential_reads_decode_blocks_ahead(make: Callable[..., Path], is_vector: bool) -> None:
    values = np.arange(BLOCKS * ROWS * 16, dtype="<f4").reshape((-1, 16) if is_vector else -1)
    path = make(lambda view: view.add("v", values), rows_per_block=ROWS if is_vector else ROWS * 16)

    def ahead_of(*ranges: tuple[int, int]) -> int:
        cache = PrefetchLog(64 << 20)
        data = only(open_container(Opening(CountingSource(path), cache)), "columns/v").data
        for start, size in ranges:
            assert data.read(start, size) == values.tobytes()[start : start + size]
        return len(set(cache.ahead))

    assert ahead_of((0, 64)) == ahead_of((5 * BLOCK, BLOCK)) == 0
    assert ahead_of((0, BLOCK)) == ahead_of((0, 64), (64, 64), (BLOCK, 64)) == 2
    assert ahead_of((5 * BLOCK, 64), (9 * BLOCK, 64), (BLOCK, 64), (7 * BLOCK, 64)) == 0


# -- memory ----------------------------------------------------------------------------------------

TEXTS = {
    "plain": ["plain text " * 30] * 500, "escapes": ["\1" * (2 * MIB)], "wide": ["\U0001f600é" * MIB],
    "wide and escapes": ["\U0001f600" + "\1" * (2 * MIB)], "short": ["a", "", "é"] * 300,
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("is_vector", [False, True], ids=["texts", "vectors"])
def test_text_rows_take_no_more_memory_than_declared(make: Callable[..., Path], name: str, is_vector: bool) -> None:
    """With the line of one of them beside."""
    texts = TEXTS[name]
    rows, codec = ([texts] * 2, vector("TextSpan")) if is_vector else (texts, None)
    path = make(lambda view: view.add("t", rows, *filter(None, (codec,))))
    content = only(open_path(path), "columns/t")
    for number in range(content.blocks):
        cost = content.cost(number)
        peak = peak_memory(lambda number=number: [line(value) and None for value in content.block(number)])
        assert peak <= cost + (1 << 20)  # what is read of a block at once


def test_a_table_of_contents_longer_than_any_is_refused(make: Callable[..., Path]) -> None:
    path = make(lambda view: view.add(b"n" * (33 * MIB), np.zeros(1)))
    with pytest.raises(Refused, match="the table of contents: needs"):
        open_path(path)


def test_a_number_of_too_many_bits_names_its_place(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("F", np.zeros(1))
        view.toc[0] = b"\xff\xff\xff\xff\x08" + view.toc[0]

    with pytest.raises(Refused, match=r"made.idv: the table of contents: has a number of more than 31 bits"):
        open_path(make(fill))
    block = struct.pack("<ii", 1, 0) + b"\xff\xff\xff\xff\x08"
    container = open_path(make(lambda view: raw_column(view, block, Codec("TextSpan"), rows=1)))
    with pytest.raises(Damaged, match=r"made.idv: column 'v': has a number of more than 31 bits"):
        only(container, "columns/v").block(0)


# -- all columns as a table

def assert_is_all(container: Container) -> Table:
    """The table has the same bytes and texts as the files of all columns, and nothing else."""
    table = tables_of(container)[b"columns"]
    columns = {column.name: column.content for column in table.columns()}
    for path, contents in contents_of(container.root).items():
        folder, _, name = path.partition(b"/")
        name, _, part = name.partition(b"/")
        if folder != b"columns" or part in (b"offsets", b"indptr"):
            continue
        for content in contents:
            title = name if part in (b"", b"values") else name + b"." + part
            if isinstance(content, Records):
                found = columns.pop(title)
                assert isinstance(found, Records) and found.blocks == content.blocks
                assert all(found.block(number) == content.block(number) for number in range(content.blocks))
                continue
            assert isinstance(content, Array)
            found = columns.pop(title + content.label.encode())
            if isinstance(found, Ragged):
                ends = only(container, f"columns/{name.decode()}/{'offsets' if part == b'values' else 'indptr'}").data
                assert found.offsets.whole() == ends.whole() and found.values.whole() == content.data.whole()
            else:
                assert isinstance(found, Array) and (found.dtype, found.shape) == (content.dtype, content.shape)
                assert found.data.whole() == content.data.whole()
    assert not columns
    return table


def every_type(view: IdvWriter) -> None:
    chance = np.random.default_rng(3)
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
        view.add(dtype, chance.integers(0, 100, 20).astype(dtype))
    view.add("flags", np.arange(20) % 3 == 0)
    view.add("text", ["a", "", "длинно\n", None, "\U0001F41F"] * 4, Codec("TextSpan"))
    view.add("kind", np.arange(20, dtype="u4") % 4, key("UInt32", 3))
    times = np.array(["2020-02-29T12:34:56.7891234", "0001-01-01", "NaT", "1969-12-31T23:59:59.9999999"], "M8[100ns]")
    view.add("when", np.arange(20) * 10**15 + EPOCH, "DateTime")
    view.add("since", np.tile(times, 5), "DvDateTime")
    view.add("took", np.tile(np.array([7, -25, 0, 10**12], "m8[100ns]"), 5), "TimeSpan")
    view.add("zoned", [(EPOCH + 10**9 * row, 60 - row) for row in range(20)], "DateTimeOffset")
    view.add("id", chance.integers(0, 1 << 60, (20, 2)).astype("u8").tolist(), "DataViewRowId")
    view.add("dense", chance.normal(size=(20, 3, 2)).astype("f4"))
    view.add("long", chance.normal(size=(20, 70)))
    few = [Sparse(100_000, [row, 90_000 + row], [1.0 * row, 2.0]) for row in range(20)]
    view.add("sparse", few, vector("Double", 100_000))
    view.add("far", [Sparse(70_000, [row], [(EPOCH, row)]) for row in range(20)], vector("DateTimeOffset", 70_000))
    view.add("ragged", [np.arange(row % 4, dtype="i2") for row in range(20)], vector("Int16"))
    view.add("words", [["x", "é"][: row % 3] for row in range(20)], vector("TextSpan"))
    view.add("ids", [[(row, 1)] * (row % 2) for row in range(20)], vector("DataViewRowId"))
    view.add("zones", [[(EPOCH + row, 5)] * (row % 3) for row in range(20)], vector("DateTimeOffset"))


@pytest.mark.parametrize("compression, rows_per_block", [("none", 4), ("deflate", 4), ("deflate", 8192)])
def test_every_type(make: Callable[..., Path], compression: str, rows_per_block: int) -> None:
    table = assert_is_all(open_path(make(every_type, rows_per_block=rows_per_block, compression=compression)))
    dtypes = {column.name: column.content.dtype for column in table.columns() if isinstance(column.content, Ragged)}
    assert dtypes == {
        b"sparse.data": "<f8", b"sparse.indices": "<i4", b"ragged": "<i2", b"ids": "|V16", b"zones": "<M8[100ns]",
        b"zones.offset_minutes": "<i2", b"far.data": "<M8[100ns]", b"far.data.offset_minutes": "<i2",
        b"far.indices": "<i4",
    }
    assert [column.name for column in table.columns() if column.is_list] == [b"words"]


def test_the_hidden_come_last_and_the_unreadable_not_at_all(make: Callable[..., Path]) -> None:
    def fill(view: IdvWriter) -> None:
        view.add("F", np.array([1.0, 2.0]))
        view.add("strange", np.zeros(2), Codec("Double"))
        view.add("F", ["a", "b"])
        view.add("G", np.array([3, 4], "i4"))
        view.add("F", np.array([5.0, 6.0]))
        view.toc[1] = view.toc[1].replace(b"\x06Double", b"\x06Triple")

    path = make(fill)
    assert_is_all(open_path(path))
    table = table_file(path, "columns.parquet")
    assert table.to_pydict() == {"G": [3, 4], "F": [5.0, 6.0], "F~2": [1.0, 2.0], "F~3": ["a", "b"]}
    assert table.column_names == ["G", "F", "F~2", "F~3"]


def test_a_table_reads_nothing_before_its_columns_are_asked_for(make: Callable[..., Path]) -> None:
    source = CountingSource(make(every_type))
    container = open_container(opening(source))
    before = source.bytes_read
    table = tables_of(container)[b"columns"]
    assert source.bytes_read == before
    table.columns()
    assert source.bytes_read - before < source.size // 4


def names_of(path: Path) -> list[str]:
    found = table_file(path, "columns.parquet").column_names
    assert isinstance(found, list)
    return found


def test_elements_of_vectors_are_called_by_their_slot_names(make: Callable[..., Path]) -> None:
    values = np.arange(12, dtype="f4").reshape(3, 4)
    names = ["sepal length", "sepal width", "petal/length", "petal width"]
    path = make(lambda view: view.add("Features", values, metadata={"SlotNames": names}))
    assert names_of(path) == [f"Features.{name}" for name in names]
    with glassfs.open(path) as data:
        frame = data["columns"].table().to_pandas()
        assert frame["Features.petal/length"].tolist() == values[:, 2].tolist()
        assert data["columns"].table().columns == ["Features"]


@pytest.mark.parametrize(("slots", "shown"), [
    (["a", "", "a", "b"], ["0", "1", "2", "b"]),
    (["1", "x", "2019", "2020"], ["0", "x", "2019", "2020"]),
    (["0", "1", "2", "3"], ["0", "1", "2", "3"]),
    (["x" * 201, "x" * 200, "\0", "c.d"], ["0", "x" * 200, "\\x00", "c.d"]),
    (["a", "b", "c"], ["0", "1", "2", "3"]),
    ([str(number) for number in range(100)], ["0", "1", "2", "3"]),
    (["x" * 50_000] * 4, ["0", "1", "2", "3"]),
    ([1.0, 2.0, 3.0, 4.0], ["0", "1", "2", "3"]),
])
def test_slots_without_a_unique_name_have_their_number(
    make: Callable[..., Path], slots: list[str], shown: list[str],
) -> None:
    values = np.arange(12, dtype="f4").reshape(3, 4)
    path = make(lambda view: view.add("F", values, metadata={"IsNormalized": True, "SlotNames": slots}))
    assert names_of(path) == [f"F.{name}" for name in shown]


def test_names_that_meet_are_numbered_and_damaged_ones_not_used(make: Callable[..., Path]) -> None:
    values = np.arange(6, dtype="f4").reshape(3, 2)

    def fill(view: IdvWriter) -> None:
        view.add("F.a", np.zeros(3))
        view.add("F", values, metadata={"SlotNames": ["a", "b"]})

    path = make(fill, compression="none")
    assert names_of(path) == ["F.a", "F.a~2", "F.b"]
    raw = path.read_bytes()
    place = raw.index(b"\x02ab")
    path.write_bytes(raw[: place - 4] + b"\xff\xff\xff\x7f" + raw[place:])
    assert names_of(path) == ["F.a", "F.0", "F.1"]


def test_very_many_slots_are_a_list_whatever_their_names(make: Callable[..., Path]) -> None:
    names = [f"word {number}" for number in range(5000)]
    values = np.zeros((2, 5000), "f4")
    path = make(lambda view: view.add("F", values, metadata={"SlotNames": names}))
    assert names_of(path) == ["F"]
