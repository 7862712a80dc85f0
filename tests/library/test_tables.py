"""Tables: of episodes, of columns; what pandas, Arrow and polars get, and what is there without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tskit
from writers.kastore import KastoreWriter

import glassfs
from glassfs.errors import Unsuited

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
        assert "pick up the red block" in alone.episodes()._repr_html_() and "3 rows" in repr(alone.episodes())
    with pytest.raises(Unsuited, match=r"table\.idv: has no table of episodes"):
        data["table.idv"].episodes()


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


def test_a_population_geneticist(tmp_path: Path) -> None:
    """What tskit wrote, by pandas, as text, and with arrays that are not copied."""
    tables = tskit.TableCollection(sequence_length=100)
    tables.populations.add_row()
    for time in (0, 0, 12.5):
        tables.nodes.add_row(time=time, population=0)
    for child in (0, 1):
        tables.edges.add_row(0, 100, 2, child)
    for position, state in ((3, "A"), (41, "G"), (77, "ACGT")):
        tables.sites.add_row(position, state)
    tables.sort()
    tables.tree_sequence().dump(tmp_path / "ancestry.trees")
    with glassfs.open(tmp_path) as data:
        trees = data["ancestry.trees"]
        nodes = trees["nodes"].table().to_pandas()
        assert nodes["time"].tolist() == [0, 0, 12.5]
        assert trees["sites/ancestral_state.txt"].text().splitlines() == ["A", "G", "ACGT"]
        assert list(trees["sites"].table())[2]["ancestral_state"] == "ACGT"
        assert trees["sites/position"].numpy().tolist() == [3, 41, 77]


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
        "to_pandas() needs pandas and pyarrow: pip install 'glassfs[pandas]'",
        "to_arrow() needs pyarrow: pip install 'glassfs[arrow]'",
        "to_polars() needs polars: pip install 'glassfs[polars]'",
    ]


def test_names_of_columns_stay_text(tmp_path: Path) -> None:
    from writers.kinodb import KinoWriter

    zeros = np.zeros((1, 1), np.float32)
    with KinoWriter(tmp_path / "a.kdb") as writer:
        writer.add_episode(zeros, zeros, task="</table><script>alert(1)</script>\u202e", embodiment="arm")
    with glassfs.open(tmp_path) as data:
        page = data.episodes()._repr_html_()
    assert "<script" not in page and page.count("</table>") == 1 and "\u202e" not in page
