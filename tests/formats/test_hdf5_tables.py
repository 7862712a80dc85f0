"""Tables in HDF5: compounds of any fields, and what pandas, PyTables, AnnData and NWB write."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassfs
from glassfs.errors import NoSuchEntry
from tests.formats.hdf5_files import h5py, nested
from tests.optional import package

pd: Any = package("pandas", "test")
parquet: Any = package("pyarrow.parquet", "test")
ROWS = 5


def frame_of(entry: Any) -> Any:
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


@pytest.mark.filterwarnings("ignore")
def test_times_of_pytables_are_bytes(tmp_path: Path) -> None:
    tables = package("tables")

    class Row(tables.IsDescription):  # type: ignore[misc, name-defined]
        time = tables.Time64Col(pos=0)
        number = tables.Int16Col(pos=1)

    with tables.open_file(tmp_path / "made.h5", "w") as file:
        file.create_table("/", "rows", Row).append([(1.5, 7)])
        file.create_earray("/", "time", tables.Time32Atom(), (0,)).append(np.array([258], "i4"))
        file.create_vlarray("/", "runs", tables.Time32Atom()).append(np.array([258], "i4"))
    with views_of(tmp_path / "made.h5") as opened:
        rows = opened["rows.npy"].numpy()
        assert rows["number"].tolist() == [7]
        assert rows["time"].tobytes() == (1 << 32 | 500_000).to_bytes(8, "little")
        assert opened["time.bin"].bytes() == (258).to_bytes(4, "little")
        with pytest.raises(NoSuchEntry, match="rows of time"):
            opened["runs"]
