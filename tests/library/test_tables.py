"""Tables: of episodes, of columns; what pandas, Arrow and polars get, and what is there without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kastore import KastoreWriter

import glassfs
from glassfs import content as contents
from glassfs.content.table import Column
from glassfs.errors import Damaged, TooLarge, Unsuited
from glassfs.library.table import Table
from tests.conftest import DATA
from tests.library.conftest import Recorded

INSTRUCTIONS = ["pick up the red block", "open the drawer", "stack the cups"]


def test_the_episodes_of_a_folder(data: glassfs.Library) -> None:
    table = data.episodes()
    robots = [row for row in table if row["container"].endswith(".kdb")]
    assert [(row["container"], row["position"]) for row in robots] == [
        (f"run{run}.kdb", number) for run in (1, 2) for number in range(3)
    ]
    assert [row["language_instruction"] for row in robots] == 2 * INSTRUCTIONS
    assert len(table) == len(list(table)) and table["container"] == [row["container"] for row in table]
    with pytest.raises(KeyError):
        table["nothing"]
    frame = table.to_pandas()
    assert list(frame.columns) == table.columns and frame["container"].tolist() == table["container"]
    assert table.to_arrow().to_pydict()["language_instruction"] == table["language_instruction"]
    assert table.to_polars()["num_frames"].to_list() == table["num_frames"]


def test_the_episodes_of_a_container(data: glassfs.Library, datasets: Path) -> None:
    table = data["run1.kdb"].episodes()
    assert table["language_instruction"] == INSTRUCTIONS and table["success"] == [True, False, True]
    assert len(table) == 3 and "container" not in table.columns
    assert list(data["run1.kdb/episodes"].table()) == list(table)
    with glassfs.open(datasets / "run1.kdb") as alone:
        assert list(alone.episodes()) == list(table)
        assert "3 rows" in repr(alone.episodes())
    with pytest.raises(Unsuited, match=r"table\.idv: has no table of episodes"):
        data["table.idv"].episodes()
    assert list(data["table.idv"].joined()) == ["tables"]
    (row,) = data["table.idv"].joined()["tables"]
    assert row["rows"] > 0 and row["columns"] == len(row["names"])


def test_all_tables_over_a_folder(data: glassfs.Library) -> None:
    tables = data.joined()
    assert list(tables) == ["episodes", "tables", "trees", "arrays"]
    assert list(tables["episodes"]) == list(data.episodes())
    (row,) = tables["trees"]
    rows = data["trees.trees"].joined()["trees"]
    assert len(rows) == 1 and rows["num_trees"] == [row["num_trees"]] and row["num_trees"] > 0
    frame = tables["trees"].to_pandas()
    assert list(frame.columns) == tables["trees"].columns and frame["container"].tolist() == ["trees.trees"]
    assert rows.to_polars()["num_samples"].to_list() == tables["trees"]["num_samples"]
    with pytest.raises(Unsuited, match="has no table of episodes, but of trees, arrays: use joined"):
        data["trees.trees"].episodes()
    assert list(data["store.kas"].joined()) == ["arrays"]


def test_the_arrays_of_a_folder_and_of_a_container(data: glassfs.Library) -> None:
    table, alone = data.arrays(), data["store.kas"].arrays()
    assert table.columns == alone.columns == ["container", "position", "name", "dtype", "shape", "stored_bytes"]
    assert list(alone) == [row for row in table if row["container"] == "store.kas"]
    assert list(alone) == list(data["store.kas"].joined()["arrays"])
    for row in table:
        array = data[f"{row['container']}/{row['name']}"]
        assert list(array.shape) == json.loads(row["shape"]) and row["stored_bytes"] == array.numpy().nbytes
    assert {row["container"] for row in table} == {"store.kas", "trees.trees"}
    with pytest.raises(Unsuited, match="has no table of arrays, but of episodes"):
        data["run1.kdb"].arrays()


def test_a_table_is_the_same_from_any_of_its_files(data: glassfs.Library) -> None:
    tables = [data[f"run1.kdb/episodes.{suffix}"].table() for suffix in ("parquet", "csv", "jsonl")]
    tables += [data[f"episodes.{suffix}"].table() for suffix in ("parquet", "csv", "jsonl")]
    for first, *others in (tables[:3], tables[3:]):
        for table in others:
            assert list(table) == list(first) and table.to_arrow() == first.to_arrow()


def test_the_steps_of_an_episode(data: glassfs.Library) -> None:
    steps = data["run1.kdb/episodes/0/steps"].table()
    assert len(steps) == 24 and steps["frame"] == list(range(24))
    state = data["run1.kdb/episodes/0/state"].numpy()
    assert all((row["state"] == state[row["frame"]]).all() for row in steps)
    assert (steps.to_pandas()["state.3"].to_numpy() == state[:, 3]).all()
    with pytest.raises(Unsuited, match="is not a table"):
        data["run1.kdb/episodes/0/state"].table()


def test_a_data_scientist_with_net(data: glassfs.Library) -> None:
    columns = data["table.idv/columns"].table()
    frame = columns.to_pandas()
    days = np.arange(20) * np.timedelta64(1, "D") + np.datetime64("1970-01-01")
    assert (frame["Time"].to_numpy().astype("M8[D]") == days).all()
    assert frame["Score"].tolist() == columns["Score"] == [number / 4 for number in range(20)]
    assert frame["Species"].tolist() == columns["Species"] == ["setosa", "virginica"] * 10
    times = data["table.idv/columns/Time"].numpy()
    assert times.dtype == "M8[100ns]" and (times.astype("M8[us]").astype("M8[D]") == days).all()
    assert columns.to_polars()["Time"].dt.date().to_list() == days.tolist()


def test_ragged_columns(tmp_path: Path) -> None:
    with KastoreWriter(tmp_path / "a.trees") as store:
        store.add_text("format/name", "tskit.trees", "int8")
        store.add("format/version", np.array([12, 7], np.uint32))
        store.add("individuals/flags", np.zeros(3, np.uint32))
        store.add("individuals/location", np.array([1.0, 2.0, 3.0]))
        store.add("individuals/location_offset", np.array([0, 2, 2, 3], np.uint32))
    with glassfs.open(tmp_path / "a.trees") as data:
        assert data["individuals"].table()["location"] == [[1.0, 2.0], [], [3.0]]


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("pandas", "pyarrow", "polars")))
import glassfs
table = glassfs.open(sys.argv[1])["run1.kdb"].episodes()
print(len(table), table["success"])
for method in ("to_pandas", "to_arrow", "to_polars"):
    try:
        getattr(table, method)()
    except ImportError as error:
        print(error)
"""


def test_without_any_library_for_tables(datasets: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, datasets], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "3 [True, False, True]",
        "to_pandas() needs pandas and pyarrow: install glassfs[pandas]",
        "to_arrow() needs pyarrow: install glassfs[arrow]",
        "to_polars() needs polars: install glassfs[polars]",
    ]


UNREAD: Any = None
"""In place of a file that no test reads."""


def table_of(rows: int, *columns: Column) -> Table:
    return Table(contents.Table(b"t", rows, lambda: list(columns)), UNREAD, "t")


def vectors(shape: tuple[int, ...], dtype: str = "<f4") -> tuple[Recorded, Column]:
    data = Recorded(int(np.dtype(dtype).itemsize * np.prod(shape, dtype=object)))
    return data, Column(b"x", contents.Array(b"x", data, dtype, shape, "f32"))


def test_wide_rows_are_taken_a_few_at_a_time() -> None:
    data, column = vectors((1024, 10_000))
    rows = iter(table_of(1024, column))
    assert next(rows) == {"x": [0.0] * 10_000} and data.count <= 1 << 20
    assert sum(1 for _ in rows) == 1023 and data.most <= 1 << 20 and data.count == data.size


@pytest.mark.slow
def test_rows_of_many_columns_are_read_a_few_at_a_time() -> None:
    made = [vectors((5000, 25)) for _ in range(1000)]
    next(iter(table_of(5000, *(column._replace(name=b"%d" % n) for n, (_, column) in enumerate(made)))))
    assert sum(data.count for data, _ in made) <= 16 << 20


def test_too_large_a_row_says_so() -> None:
    for shape, dtype in (((2, 1 << 40), "<f4"), ((2, 1 << 40, 0), "<f4"), ((2, 1 << 40), "|V0")):
        data, column = vectors(shape, dtype)
        for use in (lambda: table_of(2, column)["x"], lambda: list(table_of(2, column))):  # noqa: B023
            with pytest.raises(TooLarge, match="too large to be a value in a list"):
                use()
        assert not data.ranges


def test_a_damaged_table_is_shown_with_its_error() -> None:
    def columns() -> list[Column]:
        raise Damaged("is \x1b[31m<b>broken</b>", "a.kdb")

    table = Table(contents.Table(b"t", 3, columns), UNREAD, "t")
    assert "broken" in repr(table) and "\x1b" not in repr(table)


def test_of_many_columns_some_are_named() -> None:
    columns = [column._replace(name=b"c%d" % number) for number in range(5000) for _, column in [vectors((1,))]]
    table = table_of(1, *columns)
    assert len(repr(table)) < 1000 and repr(table).endswith(", …>")


def test_a_wrong_number_of_steps_is_not_used() -> None:
    """The index says that there are four billion of them."""
    with glassfs.open(DATA / "kinodb/malformed/num_frames_huge.kdb") as data:
        table = data["episodes/0/steps"].table()
        for use in (lambda: table["frame"], lambda: table.columns, lambda: next(iter(table)), table.to_arrow):
            with pytest.raises(Damaged, match=r"the state/action section of episode 0: is .* bytes too short"):
                use()
        assert "bytes too short" in repr(table)
