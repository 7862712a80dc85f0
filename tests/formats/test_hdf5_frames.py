"""Groups in HDF5 that are tables: data frames of pandas and AnnData, dynamic tables of NWB."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassfs.errors import Damaged, NoSuchEntry
from glassfs.formats.hdf5.frames import unpickled
from tests.formats.hdf5_files import h5py
from tests.formats.test_hdf5_tables import ROWS, frame_of, parquet, views_of
from tests.optional import package

pd: Any = package("pandas", "test")
pytestmark = pytest.mark.filterwarnings("ignore")


# pandas


def a_frame() -> Any:
    return pd.DataFrame({
        "number": np.arange(ROWS), "float": [0.5, np.nan, -1.0, 2.0, 1e300], "text": ["x", "yy", None, "é", ""],
        "time": pd.to_datetime(["2020-01-01T00:00", None, "1969-12-31T23:59", "2100-01-01T00:00", "2020-02-29T00:00"]),
        "zoned": pd.date_range("2020-03-29", periods=ROWS, freq="h", tz="Europe/Berlin"),
        "category": pd.Categorical(["u", "v", None, "u", "w"], categories=["w", "v", "u"]),
        "codes": pd.Categorical([5, 3, None, 5, 3]), "truth": [True, False, True, True, False],
        "span": pd.to_timedelta(np.arange(ROWS), "h"), "small": np.arange(ROWS, dtype="u1"), "other": np.arange(ROWS),
    })


def write_hdf(path: Path, frame: Any, **options: Any) -> None:
    package("tables")
    frame.to_hdf(path, **options)


def comparable(frame: Any) -> Any:
    """Return a frame as its index and columns, categories as texts and numbers as numbers, without exact types."""
    frame = frame.reset_index()
    for name in frame:
        if frame[name].dtype == "category":
            frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    frame.columns = [str(name) for name in frame.columns]
    return frame


def assert_shows(entry: Any, expected: Any) -> None:
    found, expected = frame_of(entry), comparable(expected)
    assert list(found) == list(expected)
    for name in found:
        values, wanted = found[name], expected[name]
        assert values.isna().tolist() == wanted.isna().tolist(), name
        if str(wanted.dtype).startswith(("datetime", "timedelta")):
            assert str(getattr(values.dtype, "tz", None)) == str(getattr(wanted.dtype, "tz", None)), name
            assert values.dtype.kind == wanted.dtype.kind
        assert values.dropna().tolist() == wanted.dropna().tolist(), name


FRAMES = {
    "plain": a_frame, "index of times": lambda: a_frame().set_index("time"),
    "index of texts": lambda: a_frame().dropna().set_index("text"),
    "numbers as names": lambda: pd.DataFrame(np.arange(6.0).reshape(3, 2)),
    "no rows": lambda: a_frame()[:0], "one row": lambda: a_frame()[:1],
    "levels": lambda: a_frame().dropna().set_index(["number", "text"]),
    "strange names": lambda: pd.DataFrame({"é": [1], "a\\x41": [2], "€ 'b'\n": [3], "\u00c3\u00a9": [4], "p1": [5]}),
    "one name in two types": lambda: pd.DataFrame({"a": [1], "b": [0.5]}),
}


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("name", sorted(FRAMES.keys() - {"no rows"}))
def test_frames_of_pandas_are_tables_with_their_names(tmp_path: Path, name: str, is_indexed: bool) -> None:
    frame = FRAMES[name]()
    if is_indexed and frame.columns.dtype == "int64":
        pytest.skip("pandas does not write it")
    write_hdf(tmp_path / "made.h5", frame, key="a/frame", format="table", data_columns=is_indexed or None)
    with views_of(tmp_path / "made.h5") as opened:
        assert_shows(opened["a/frame.parquet"], pd.read_hdf(tmp_path / "made.h5", "a/frame"))


@pytest.mark.parametrize("name", FRAMES)
def test_fixed_frames_of_pandas_are_tables_but_for_pickled_texts(tmp_path: Path, name: str) -> None:
    frame = FRAMES[name]()
    frame = frame.drop(columns=["category", "codes"], errors="ignore")
    write_hdf(tmp_path / "made.h5", frame, key="frame", format="fixed")
    expected = pd.read_hdf(tmp_path / "made.h5", "frame")
    has_text = "text" in expected
    with views_of(tmp_path / "made.h5") as opened:
        assert_shows(opened["frame.parquet"], expected.drop(columns="text", errors="ignore"))
        hidden = opened["frame"].attributes.get("omitted", "")
        assert hidden.count("are no column of frame") == has_text and hidden.startswith("block" * has_text)


@pytest.mark.parametrize(("zone", "shown"), [("US/Eastern", "US/Eastern"), ("UTC", "UTC"), ("+02:00", "UTC")])
def test_an_index_of_regular_times_has_its_name_and_zone(tmp_path: Path, zone: str, shown: str) -> None:
    index = pd.date_range("2020-01-31", periods=3, tz=zone, freq="ME", name="when")
    write_hdf(tmp_path / "made.h5", pd.DataFrame({"v": [1, 2, 3]}, index), key="frame", format="table")
    with views_of(tmp_path / "made.h5") as opened:
        found = parquet.read_table(io.BytesIO(opened["frame.parquet"].bytes()))
    assert found.column_names == ["when", "v"] and found.schema.field("when").type.tz == shown
    assert found["when"].to_pylist() == list(index)


@pytest.mark.parametrize("layout", ["table", "fixed"])
def test_names_that_are_no_texts_cost_no_table(tmp_path: Path, layout: str) -> None:
    numbers = np.arange(4.0).reshape(2, 2)
    levels = pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])
    for name, columns in {"levels": levels, "mixed": ["a", 1], "floats": [0.5, 1.5]}.items():
        write_hdf(tmp_path / "made.h5", pd.DataFrame(numbers, columns=columns), key=name, format=layout)
    by_place = ["block0_values.0", "block0_values.1"]
    expected = {"levels": ["('a', 'x')", "('a', 'y')"], "mixed": ["a", "1"], "floats": ["0.5", "1.5"]}
    if layout == "fixed":
        expected |= {"levels": by_place, "mixed": by_place}
    with views_of(tmp_path / "made.h5") as opened:
        for name, columns in expected.items():
            found = frame_of(opened[f"{name}.parquet"])
            assert list(found.columns) == ["index", *columns], name
            assert found.iloc[:, 1:].to_numpy().tolist() == numbers.tolist()


def test_a_categorical_index_has_its_categories_in_fixed_frames(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": [1, 2, 3]}, pd.CategoricalIndex(["a", "b", "a"]))
    try:
        write_hdf(tmp_path / "made.h5", frame, key="frame", format="fixed")
    except AssertionError:
        pytest.skip("releases of pandas before 3 do not write it")
    with views_of(tmp_path / "made.h5") as opened:
        assert frame_of(opened["frame.parquet"])["index"].tolist() == ["a", "b", "a"]


def test_missing_texts_are_what_the_writer_said_and_categories_may_all_be_missing(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["nan", None, "x"], "none": pd.Categorical([None] * 3)})
    write_hdf(tmp_path / "made.h5", frame, key="frame", format="table", nan_rep="-")
    with views_of(tmp_path / "made.h5") as opened:
        found = parquet.read_table(io.BytesIO(opened["frame.parquet"].bytes()))
    assert found["text"].to_pylist() == ["nan", None, "x"] and found["none"].to_pylist() == [None] * 3


def test_times_of_a_zone_end_with_z_in_csv(tmp_path: Path) -> None:
    write_hdf(tmp_path / "made.h5", a_frame()[["time", "zoned", "span"]], key="frame", format="table")
    with views_of(tmp_path / "made.h5") as opened:
        lines = opened["frame.csv"].text().splitlines()
    assert lines[0] == "index,time,zoned,span"
    assert [line.split(",")[1:] for line in lines[1:3]] == [
        ["2020-01-01T00:00:00.000000", "2020-03-28T23:00:00.000000Z", "0.000000"],
        ["", "2020-03-29T00:00:00.000000Z", "3600.000000"],
    ]


@pytest.mark.parametrize("layout", ["fixed", "table"])
def test_an_index_of_periods_is_called_ordinals(tmp_path: Path, layout: str) -> None:
    frame = pd.DataFrame({"x": [0.5, 1.5]}, pd.period_range("2020-01", periods=2, freq="M", name="month"))
    write_hdf(tmp_path / "made.h5", frame, key="df", format=layout)
    with views_of(tmp_path / "made.h5") as opened:
        assert frame_of(opened["df.parquet"]).to_dict("list") == {"month.ordinal": [600, 601], "x": [0.5, 1.5]}


@pytest.mark.parametrize("layout", ["table", "fixed"])
def test_series_of_pandas_are_tables(tmp_path: Path, layout: str) -> None:
    for name in ("number", "zoned"):
        write_hdf(tmp_path / "made.h5", a_frame()[name], key=name, format=layout)
    with views_of(tmp_path / "made.h5") as opened:
        for name in ("number", "zoned"):
            expected = pd.read_hdf(tmp_path / "made.h5", name).to_frame()
            found = frame_of(opened[f"{name}.parquet"])
            assert found.iloc[:, 1].tolist() == expected[name].tolist()


def test_an_order_of_columns_that_nests_without_end_is_none(tmp_path: Path) -> None:
    deep = f"(l({'(l' * 9_000}{'a' * 8_999}ta."
    with h5py.File(tmp_path / "made.h5", "w") as file:
        group = file.create_group("frame")
        group.attrs.update({"pandas_type": "frame_table", "levels": np.bytes_(deep)})
        group["table"] = np.zeros(2, [("index", "i8"), ("x", "f8")])
    with views_of(tmp_path / "made.h5") as opened:
        assert list(frame_of(opened["frame.parquet"])) == ["x"]


def test_names_of_pandas_are_read_and_never_unpickled() -> None:
    for value in (
        ["a", "b"], [], ["é", "€", "\u00c3\u00a9", "\\x41", "'", "\n", "\U0001f600"], [1, -5, True], (0, ["x", None]),
        {"index": {"tz": "UTC", "names": [None]}, 1: {}}, ["same", "same", "same"],
    ):
        raw = pickle.dumps(value, 0)
        assert unpickled(raw.decode("utf-8", "backslashreplace")) == value
    for hostile in (
        "cos\nsystem\n(S'true'\ntR.", "(lp0\n", ".", "a.", "(((((.", "g5\n.", "(lp0\ng0\na", "I1\nI2\n.", "Vx\nsa.",
        "c__builtin__\neval\n.", pickle.dumps(["a"], 2).decode("latin-1"), "I1_\n.",
        "(I1\nd.", "(lI1\nd.", "(Va\n(l(dtp1\n",
    ):
        assert unpickled(hostile) is None, hostile
    assert unpickled(5) is None
    long = "x" * 2000
    for multiplied in (
        "(lp0\ng0\na.", "((lp0\ng0\nt.", f"(V{long}\np0\ng0\nt.",
        # Python would end with the hash of this key.
        f"(d{'(' * 200_000}{'t' * 200_000}Ns.",
    ):
        assert unpickled(multiplied) is None
    assert unpickled(f"(V{long}\nt.") == (long,)
    # Instead of an object there is the text that it is made of.
    assert unpickled(pickle.dumps([b"x"], 0).decode()) == ["x"]
    assert unpickled("cos\nsystem\n(Vtrue\ntR.") == "true"


# AnnData and NWB


def write_anndata(path: Path) -> None:
    """Write what AnnData writes, by its description of the format."""
    with h5py.File(path, "w") as file:
        obs = file.create_group("obs")
        obs.attrs.update({"encoding-type": "dataframe", "_index": "cell", "column-order": ["kind", "n", "x", "y"]})
        obs["cell"] = [f"c{row}" for row in range(ROWS)]
        kind = obs.create_group("kind")
        kind.attrs["encoding-type"] = "categorical"
        kind["categories"], kind["codes"] = ["a", "b"], np.array([0, 1, -1, 0, 1], "i1")
        numbers = obs.create_group("n")
        numbers.attrs["encoding-type"] = "nullable-integer"
        numbers["values"], numbers["mask"] = np.arange(ROWS), np.arange(ROWS) == 2
        texts = obs.create_group("y")
        texts["values"], texts["mask"] = ["q", "r", "", "s", "t"], np.arange(ROWS) == 2
        obs["x"] = np.arange(ROWS) / 2
        var = file.create_group("var")
        var.attrs.update({"encoding-type": "dataframe", "_index": "gene", "column-order": np.zeros(0)})
        var["gene"] = ["g1", "g2"]
        sparse = file.create_group("X")
        sparse.attrs.update({"encoding-type": "csr_matrix", "shape": [ROWS, 2]})
        for name, values in {"data": [1.5, 2.5], "indices": [0, 1], "indptr": [0, 1, 2, 2, 2, 2]}.items():
            sparse[name] = values


def test_frames_of_anndata_are_tables(tmp_path: Path) -> None:
    write_anndata(tmp_path / "made.h5ad.h5")
    with views_of(tmp_path / "made.h5ad.h5") as opened:
        assert parquet.read_table(io.BytesIO(opened["obs.parquet"].bytes())).to_pydict() == {
            "cell": ["c0", "c1", "c2", "c3", "c4"], "kind": ["a", "b", None, "a", "b"], "n": [0, 1, None, 3, 4],
            "x": [0.0, 0.5, 1.0, 1.5, 2.0], "y": ["q", "r", None, "s", "t"],
        }
        assert frame_of(opened["var.parquet"]).to_dict("list") == {"gene": ["g1", "g2"]}
        assert opened["X/data"].numpy().tolist() == [1.5, 2.5]
        assert "X.parquet" not in opened
        assert opened["obs.csv"].text().splitlines()[3] == "c2,,,1.0,"
        assert list(opened["obs.parquet"].table())[2] == {"cell": "c2", "kind": None, "n": None, "x": 1.0, "y": None}


def test_real_anndata_is_read_as_it_reads_it(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="anndata is not installed: pip install anndata")
    anndata.settings.allow_write_nullable_strings = True
    obs = pd.DataFrame({
        "kind": pd.Categorical(["a", "b", None]), "n": pd.array([1, None, 3], "Int64"), "x": [0.5, 1.0, np.nan],
        "truth": pd.array([True, None, False], "boolean"), "text": ["q", "r", "s"], "codes": pd.Categorical([5, 7, 5]),
    }, index=["c0", "c1", "c2"])
    anndata.AnnData(X=np.eye(3, dtype="f4"), obs=obs).write_h5ad(tmp_path / "made.h5ad")
    expected = anndata.read_h5ad(tmp_path / "made.h5ad").obs
    expected.index.name = "_index"
    with views_of(tmp_path / "made.h5ad") as opened:
        assert_shows(opened["obs.parquet"], expected)
        assert opened["X"].numpy().tolist() == np.eye(3).tolist()


def test_dynamic_tables_of_nwb_are_tables(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.nwb", "w") as file:
        units = file.create_group("units")
        units.attrs["colnames"] = ["spike_times", "quality", "electrodes"]
        units["id"] = np.arange(3)
        units["spike_times"], units["spike_times_index"] = [0.1, 0.2, 0.3], np.array([2, 2, 3], "u1")
        units["quality"] = ["good", "bad", "é"]
        units.create_dataset("electrodes", (3,), h5py.ref_dtype)
    with views_of(tmp_path / "made.nwb") as opened:
        frame = frame_of(opened["units.parquet"])
        assert list(frame) == ["id", "spike_times", "quality"]
        assert [one.tolist() for one in frame["spike_times"]] == [[0.1, 0.2], [], [0.3]]
        assert frame["quality"].tolist() == ["good", "bad", "é"]
        assert "electrodes: column: " in opened["units"].attributes["omitted"]


# Descriptions that lie


def written_obs(path: Path) -> Any:
    write_anndata(path)
    file = h5py.File(path, "a")
    return file, file["obs"]


def replaced(group: Any, name: str, values: Any) -> None:
    del group[name]
    group[name] = values


@pytest.mark.parametrize(("change", "reason"), [
    (lambda obs: replaced(obs, "x", np.arange(9)), "its column x has 9 rows, and the table 5"),
    (lambda obs: replaced(obs["kind"], "codes", np.array([0, 1, 2, 0, 0], "i1")), "codes from 0 to 2, and 2"),
    (lambda obs: replaced(obs["kind"], "codes", np.array([0, -2, 0, 0, 0], "i1")), "codes from -2 to 0"),
    (lambda obs: replaced(obs["kind"], "codes", np.zeros(ROWS)), "no categories for kind"),
    (lambda obs: replaced(obs["n"], "mask", np.zeros(3, "?")), "its column n has 3 rows, and the table 5"),
    (lambda obs: obs.attrs.update({"_index": "nothing"}), "has no column nothing"),
    (lambda obs: obs.attrs.update({"column-order": ["x", "gone"]}), "has no column gone"),
    (lambda obs: replaced(obs, "cell", 5), "no values for its index cell"),
    (lambda obs: replaced(obs["kind"], "categories", np.zeros(2, "V3")), "no categories for kind"),
])
def test_table_that_its_group_contradicts_costs_that_table_only(tmp_path: Path, change: Any, reason: str) -> None:
    file, obs = written_obs(tmp_path / "made.h5")
    change(obs)
    file.close()
    with views_of(tmp_path / "made.h5") as opened:
        with pytest.raises((Damaged, NoSuchEntry), match=reason):
            opened["obs.parquet"].bytes()
        assert frame_of(opened["var.parquet"]).to_dict("list") == {"gene": ["g1", "g2"]}
        assert opened["obs/cell" if "cell" not in reason else "obs/kind/codes"]


def test_names_that_repeat_are_numbered(tmp_path: Path) -> None:
    file, obs = written_obs(tmp_path / "made.h5")
    obs.attrs["column-order"] = ["x", "x", "cell", "x"]
    file.close()
    with views_of(tmp_path / "made.h5") as opened:
        assert list(frame_of(opened["obs.parquet"])) == ["cell", "x"]


def test_groups_that_contain_themselves_are_no_endless_tables(tmp_path: Path) -> None:
    file, obs = written_obs(tmp_path / "made.h5")
    obs["self"] = obs
    obs["kind/deeper"] = obs["kind"]
    obs.attrs["column-order"] = ["self", "kind"]
    file.close()
    with views_of(tmp_path / "made.h5") as opened:
        assert list(frame_of(opened["obs.parquet"])) == ["cell", "kind"]
        assert "self: column: " in opened["obs"].attributes["omitted"]


@pytest.mark.parametrize(("count", "reason"), [(10_001, "columns is too wide"), (100_000, "no list of names")])
@pytest.mark.slow
def test_group_of_very_many_columns_is_no_table_and_says_so(tmp_path: Path, count: int, reason: str) -> None:
    write_anndata(tmp_path / "made.h5")
    with h5py.File(tmp_path / "made.h5", "a", libver="latest") as file:
        wide = file.create_group("wide")
        wide["x"] = np.arange(ROWS)
        names = [f"column {number}" for number in range(count)]
        for name in names[:10_001]:
            wide[name] = wide["x"]
        wide.attrs.update({"encoding-type": "dataframe", "_index": "x"})
        wide.attrs.create("column-order", np.array(names, "S"))
    with views_of(tmp_path / "made.h5") as opened:
        with pytest.raises(NoSuchEntry, match=reason):
            opened["wide.parquet"]
        assert opened["obs.parquet"]
