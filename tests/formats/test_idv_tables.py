"""All columns of an IDV file as one table: its columns are the contents of the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from writers.idv import Codec, IdvWriter, Sparse, key, vector

import glassfs
from glassfs.content import Array, Container, Records, Table
from glassfs.content.table import Ragged
from glassfs.formats.registry import open_container
from tests.formats.derived import table_file, tables_of
from tests.formats.idv_files import EPOCH
from tests.helpers import CountingSource, contents_of, only, open_path, opening


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
