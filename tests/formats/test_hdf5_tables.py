"""Tables in HDF5: compounds of any fields, and what pandas, PyTables, AnnData and NWB write."""

from __future__ import annotations

import csv
import io
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassfs
from glassfs.errors import Damaged, NoSuchEntry
from glassfs.formats.hdf5.frames import unpickled
from tests.formats.hdf5_files import h5py, nested
from tests.optional import package

pd: Any = package("pandas", "test")
parquet: Any = package("pyarrow.parquet", "test")
ROWS = 5


def frame_of(entry: Any) -> Any:
    """Return a table as pandas reads its Parquet file."""
    return parquet.read_table(io.BytesIO(entry.bytes())).to_pandas()


def views_of(path: Path) -> Any:
    return glassfs.open(path, views="parquet+csv")


# Compounds

NUMBERS = st.sampled_from(
    ["i1", "u1", "<i2", ">i2", "<u4", ">u4", "<i8", ">u8", "<f2", ">f4", "<f8", ">f8", "<c8", "?"]
)
ENUMERATIONS = st.sampled_from([
    h5py.enum_dtype({"RED": 1, "GREEN": 2}, "u1"), h5py.enum_dtype({"RED": 1, "GREEN": 2}, ">i4"),
    h5py.enum_dtype({"FALSE": 0, "TRUE": 1}, "<i4"),
])
LEAVES = st.one_of(NUMBERS.map(np.dtype), ENUMERATIONS, st.sampled_from(["S1", "S4", "V3"]).map(np.dtype))
NAMES = st.lists(st.text("abcxyzé", min_size=1, max_size=3), min_size=1, max_size=4, unique=True)
DIMS = st.sampled_from([(), (), (1,), (2,), (2, 3)])


@st.composite
def compounds(draw: Any, depth: int = 2) -> np.dtype[Any]:
    inner = st.one_of(LEAVES, compounds(depth - 1)) if depth else LEAVES
    fields = [(name, draw(inner), draw(DIMS)) for name in draw(NAMES)]
    return np.dtype(fields, align=draw(st.booleans()))


def filled(dtype: np.dtype[Any], count: int, chance: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return values that each field can have."""
    made = np.zeros(count, dtype)
    if dtype.names:
        for name in dtype.names:
            base, shape = dtype[name].base, dtype[name].shape
            made[name] = filled(base, count * int(np.prod(shape)), chance).reshape(count, *shape)
        return made
    if dtype.kind == "S":
        texts = np.array([b"", b"a", b"\xc3\xa9", b"ab", b"abcd"])
        return texts[chance.integers(0, len(texts), count)].astype(dtype)
    if dtype.kind == "V":
        return chance.integers(0, 256, (count, dtype.itemsize), "u1").view(dtype)[:, 0]
    enumeration = h5py.check_enum_dtype(dtype)
    if enumeration or dtype.kind == "b":
        return chance.integers(1 if enumeration and "RED" in enumeration else 0, 2, count, endpoint=True).astype(dtype)
    return chance.integers(0, 100, count).astype(dtype)


def leaves(name: str, dtype: np.dtype[Any], values: np.ndarray[Any, Any]) -> dict[str, list[Any]]:
    """Return the columns of compounds, as views show them, whose names are joined by dots."""
    if dtype.names:
        found: dict[str, list[Any]] = {}
        for inner in dtype.names:
            found |= leaves(f"{name}.{inner}" if name else inner, dtype[inner].base, values[inner])
        return found
    names = {value: key for key, value in (h5py.check_enum_dtype(dtype) or {}).items()}
    is_text = dtype.kind == "S" or "RED" in names.values()
    count = int(np.prod(values.shape[1:]))

    def shown(value: Any) -> Any:
        if "RED" in names.values():
            return names[value.item()]
        if dtype.kind == "S":
            return value.decode("utf-8", "backslashreplace")
        if dtype.kind in "Vc":  # which Parquet shows as bytes
            return value.tobytes()
        return bool(value) if names else value.item()

    rows = [[shown(value) for value in row] for row in values.reshape(len(values), count)]
    if is_text and count > 1:
        return {name: rows}
    if values.ndim == 1 or is_text:
        return {name: [row[0] for row in rows]}
    return {f"{name}.{slot}": [row[slot] for row in rows] for slot in range(count)}


@given(compounds(), st.integers(0, 7), st.sampled_from([{}, {"chunks": (2,), "compression": "gzip"}]), st.integers(0))
@settings(deadline=None, max_examples=20)
def test_any_compound_is_a_structure_and_a_table(dtype: Any, rows: int, options: Any, seed: int) -> None:
    structures = filled(dtype, rows, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.h5")
        with h5py.File(path, "w") as file:
            file.create_dataset("made", data=structures, **(options if rows > 1 else {}))
            file["all"] = structures[:0].reshape(0, 1)
            expected = file["made"][()]
        with views_of(path) as opened:
            found = opened["made.npy"].numpy()
            assert found.dtype.isbuiltin == 0 and found.dtype.itemsize == size_of(dtype)
            assert_equal(found, expected)
            frame = frame_of(opened["made.parquet"])
            columns = leaves("", dtype, structures)
            assert list(frame) == list(columns)
            for name, values in columns.items():
                shown = [one.tolist() if isinstance(one, np.ndarray) else one for one in frame[name].tolist()]
                assert shown == values, name
            lines = list(csv.reader(io.StringIO(opened["made.csv"].text())))
            assert lines[0] == list(columns) and len(lines) == 1 + rows
            assert "all.parquet" not in opened


def assert_equal(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Compare structures whose gaps differ."""
    for name in expected.dtype.names or ():
        assert_equal(found[name], expected[name])
    if not expected.dtype.names:
        assert found.shape == expected.shape and found.tolist() == expected.tolist()


def size_of(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a structure without gaps, in which booleans have one byte."""
    base, count = dtype.base, int(np.prod(dtype.shape))
    if base.names:
        return count * sum(size_of(base[name]) for name in base.names)
    is_truth = "TRUE" in (h5py.check_enum_dtype(base) or {})
    return count * (1 if is_truth else base.itemsize)


MIXED = np.dtype([
    ("number", ">i4"), ("text", h5py.string_dtype()), ("run", h5py.vlen_dtype("<f4")),
    ("inner", [("x", "<f8"), ("name", h5py.string_dtype())]), ("texts", h5py.string_dtype(), (2,)),
])


def write_mixed(path: Path) -> list[dict[str, Any]]:
    """Write compounds with texts and runs of any length, and return their rows."""
    rows = [
        {"number": -row, "text": "é" * row, "run": [0.5] * row, "inner": {"x": row / 4, "name": f"n{row}"},
         "texts": [str(row), ""]}
        for row in range(ROWS)
    ]
    with h5py.File(path, "w") as file:
        for name, shape in {"rows": (ROWS,), "one": (), "grid": (1, ROWS)}.items():
            made = file.create_dataset(name, shape, MIXED)
            for number, row in enumerate(rows[:1] if name == "one" else rows):
                inner = row["inner"]["x"], row["inner"]["name"]
                value = row["number"], row["text"], np.array(row["run"], "<f4"), inner, row["texts"]
                made[(number,) if name == "rows" else (0, number) if name == "grid" else ()] = value
    return rows


def test_compounds_that_no_structure_can_have_are_lines_of_json_and_a_table(tmp_path: Path) -> None:
    rows = write_mixed(tmp_path / "made.h5")
    with views_of(tmp_path / "made.h5") as opened:
        assert [json.loads(line) for line in opened["rows.jsonl"].text().splitlines()] == rows
        assert opened["one.json"].json() == rows[0]
        assert opened["grid.json"].json() == [rows]
        frame = frame_of(opened["rows.parquet"])
        assert list(frame) == ["number", "text", "run", "inner.x", "inner.name", "texts"]
        assert frame["number"].dtype == "int32"
        for name in ("number", "text"):
            assert frame[name].tolist() == [row[name] for row in rows]
        for name in ("run", "texts"):
            assert [one.tolist() for one in frame[name]] == [row[name] for row in rows]
        assert frame["inner.x"].tolist() == [row["inner"]["x"] for row in rows]
        assert frame["inner.name"].tolist() == [row["inner"]["name"] for row in rows]
        assert not {"one.parquet", "grid.parquet"} & set(opened)


def test_value_without_a_name_in_its_enumeration_is_its_digits(tmp_path: Path) -> None:
    dtype = np.dtype([("color", h5py.enum_dtype({"RED": 1}, "u1"))])
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["made"] = np.array([(1,), (7,)], dtype)
    with views_of(tmp_path / "made.h5") as opened:
        assert opened["made.npy"].numpy()["color"].tolist() == [1, 7]
        assert frame_of(opened["made.parquet"])["color"].tolist() == ["RED", "7"]


@pytest.mark.parametrize("padding", ["NULLTERM", "NULLPAD", "SPACEPAD"])
def test_padding_is_no_part_of_texts(tmp_path: Path, padding: str) -> None:
    text, kind = h5py.h5t.C_S1.copy(), h5py.h5t.create(h5py.h5t.COMPOUND, 4)
    text.set_size(4)
    text.set_strpad(getattr(h5py.h5t, f"STR_{padding}"))
    kind.insert(b"text", 0, text)
    stored = [b"ab\0\0", b"a\0b\0", b"a b ", b"    ", b"\0\0\0\0", b"abcd", b"\xff\0\0 "]
    with h5py.File(tmp_path / "made.h5", "w") as file:
        made = h5py.h5d.create(file.id, b"made", kind, h5py.h5s.create_simple((len(stored),)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(stored, "V4"), kind)
    cut = {
        "NULLTERM": lambda raw: raw.partition(b"\0")[0], "NULLPAD": lambda raw: raw.rstrip(b"\0"),
        "SPACEPAD": lambda raw: raw.rstrip(b" \0"),
    }[padding]
    with views_of(tmp_path / "made.h5") as opened:
        assert opened["made.npy"].numpy()["text"].tobytes() == b"".join(stored)
        found = frame_of(opened["made.parquet"])["text"].tolist()
        assert found == [cut(raw).decode("utf-8", "backslashreplace") for raw in stored]


def test_types_that_nest_too_deep_cost_their_dataset_only(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["sound"] = np.zeros(2, [("x", "i4")])
        for depth in (8, 9, 1000):
            kind, space = nested(depth), h5py.h5s.create_simple((2,))
            h5py.h5d.create(file.id, b"deep%d" % depth, kind, space)
    with views_of(tmp_path / "made.h5") as opened:
        assert frame_of(opened["deep8.parquet"]).to_dict("list") == {".".join("n" * 8): [0, 0]}
        for name in ("deep9", "deep1000"):
            with pytest.raises(NoSuchEntry, match="deeply nested type"):
                opened[name]
        assert frame_of(opened["sound.parquet"])["x"].tolist() == [0, 0]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("name", FRAMES)
def test_frames_of_pandas_are_tables_with_their_names(tmp_path: Path, name: str, is_indexed: bool) -> None:
    package("tables")
    frame = FRAMES[name]()
    frame.to_hdf(tmp_path / "made.h5", key="a/frame", format="table", data_columns=is_indexed or None)
    with views_of(tmp_path / "made.h5") as opened:
        assert_shows(opened["a/frame.parquet"], pd.read_hdf(tmp_path / "made.h5", "a/frame"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FRAMES)
def test_fixed_frames_of_pandas_are_tables_but_for_pickled_texts(tmp_path: Path, name: str) -> None:
    package("tables")
    frame = FRAMES[name]()
    frame = frame.drop(columns=["category", "codes"], errors="ignore")
    frame.to_hdf(tmp_path / "made.h5", key="frame", format="fixed")
    expected = pd.read_hdf(tmp_path / "made.h5", "frame")
    has_text = "text" in expected
    with views_of(tmp_path / "made.h5") as opened:
        assert_shows(opened["frame.parquet"], expected.drop(columns="text", errors="ignore"))
        hidden = opened["frame"].attributes.get("omitted", "")
        assert hidden.count("are no column of frame") == has_text and hidden.startswith("block" * has_text)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["table", "fixed"])
def test_series_of_pandas_are_tables(tmp_path: Path, layout: str) -> None:
    package("tables")
    for name in ("number", "zoned"):
        a_frame()[name].to_hdf(tmp_path / "made.h5", key=name, format=layout)
    with views_of(tmp_path / "made.h5") as opened:
        for name in ("number", "zoned"):
            expected = pd.read_hdf(tmp_path / "made.h5", name).to_frame()
            found = frame_of(opened[f"{name}.parquet"])
            assert found.iloc[:, 1].tolist() == expected[name].tolist()


def test_names_of_pandas_are_read_and_never_unpickled() -> None:
    for value in (
        ["a", "b"], [], ["é", "€", "\u00c3\u00a9", "\\x41", "'", "\n", "\U0001f600"], [1, -5, True], (0, ["x", None]),
        {"index": {"tz": "UTC", "names": [None]}, 1: {}}, ["same", "same", "same"],
    ):
        raw = pickle.dumps(value, 0)
        assert unpickled(raw.decode("utf-8", "backslashreplace")) == value
    for hostile in (
        "cos\nsystem\n(S'true'\ntR.", "(lp0\n", ".", "a.", "(((((.", "g5\n.", "(lp0\ng0\na", "I1\nI2\n.", "Vx\nsa.",
        "c__builtin__\neval\n.", pickle.dumps([b"x"], 0).decode(), pickle.dumps(["a"], 2).decode("latin-1"), "I1_\n.",
        "(I1\nd.", "(lI1\nd.", "(Va\n(l(dtp1\n",
    ):
        assert unpickled(hostile) is None, hostile
    assert unpickled(5) is None
    cycle = unpickled("(lp0\ng0\na.")
    assert cycle[0] is cycle


# PyTables


def write_pytables(path: Path) -> None:
    tables = package("tables")

    class Inner(tables.IsDescription):  # type: ignore[misc, name-defined]
        x = tables.Float32Col()
        pair = tables.Int16Col(shape=(2,))

    class Row(tables.IsDescription):  # type: ignore[misc, name-defined]
        name = tables.StringCol(8, pos=0)
        number = tables.Int32Col(pos=1)
        truth = tables.BoolCol(pos=2)
        color = tables.EnumCol(["red", "green"], "red", "uint8", pos=3)
        inner = Inner()

    with tables.open_file(path, "w") as file:
        made = file.create_table("/", "rows", Row, filters=tables.Filters(5, "zlib"))
        for number in range(ROWS):
            made.row["name"], made.row["number"], made.row["truth"] = f"n{number}", number, number % 2
            made.row["color"], made.row["inner/x"], made.row["inner/pair"] = number % 2, number / 2, (number, 1)
            made.row.append()
        made.flush()
        made.cols.number.create_index()
        array = file.create_earray("/", "earray", tables.BoolAtom(), (0, 3))
        array.append(np.eye(3, dtype=bool))
        file.create_carray("/", "carray", obj=np.arange(6).reshape(2, 3))
        runs = file.create_vlarray("/", "vlarray", tables.Int32Atom())
        runs.append([1, 2])
        runs.append([3])


@pytest.mark.filterwarnings("ignore")
def test_what_pytables_writes_is_read_as_it_reads_it(tmp_path: Path) -> None:
    tables = package("tables")
    write_pytables(tmp_path / "made.h5")
    with tables.open_file(tmp_path / "made.h5") as file, views_of(tmp_path / "made.h5") as opened:
        rows = file.root.rows.read()
        assert_equal(opened["rows.npy"].numpy(), rows)
        frame = frame_of(opened["rows.parquet"])
        assert frame["name"].tolist() == [name.decode() for name in rows["name"]]
        assert frame["truth"].tolist() == rows["truth"].tolist() == [False, True, False, True, False]
        assert frame["color"].tolist() == ["red", "green", "red", "green", "red"]
        assert frame["inner.pair.0"].tolist() == rows["inner"]["pair"][:, 0].tolist()
        assert opened["earray"].numpy().tolist() == file.root.earray.read().tolist()
        assert opened["carray"].numpy().tolist() == file.root.carray.read().tolist()
        assert opened["vlarray/values"].numpy().tolist() == [1, 2, 3]
        assert not [name for name in opened["_i_rows/number"] if name.endswith(".parquet")]
        assert [name for name in opened if name.endswith(".parquet")] == ["rows.parquet"]
        assert "episodes" not in opened


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


@pytest.mark.filterwarnings("ignore")
def test_real_anndata_is_read_as_it_reads_it(tmp_path: Path) -> None:
    anndata = package("anndata")
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
    (lambda obs: replaced(obs["kind"], "codes", np.array([0, 1, 2, 0, 0], "i1")), "codes from 0 to 2, and 2 categories"),
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


@pytest.mark.slow
def test_group_of_very_many_columns_is_too_wide_and_says_so(tmp_path: Path) -> None:
    file, obs = written_obs(tmp_path / "made.h5")
    names = [f"column{number}" for number in range(12_000)]
    for name in names:
        obs[name] = obs["x"]
    obs.attrs["column-order"] = names
    file.close()
    with views_of(tmp_path / "made.h5") as opened:
        with pytest.raises(NoSuchEntry, match="columns is too wide"):
            opened["obs.parquet"]
        assert opened["var.parquet"]
