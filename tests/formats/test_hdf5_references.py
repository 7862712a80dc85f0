"""References, enumerations, unusual numbers, and what MATLAB writes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassfs
from glassfs.content import Omitted
from tests.formats.exercise import exercise
from tests.formats.hdf5_files import characters, h5py, matlab, values, write_matlab, write_referring
from tests.formats.test_hdf5_damage import mutant
from tests.formats.test_hdf5_frames import write_anndata
from tests.formats.test_hdf5_tables import write_mixed
from tests.helpers import omitted_in, open_path
from tests.optional import package


def lines_of(raw: bytes) -> list[Any]:
    return [json.loads(line) for line in raw.decode().splitlines()]


@pytest.mark.parametrize("user_block", [0, 512])
def test_references_are_paths_and_bytes(tmp_path: Path, user_block: int) -> None:
    with h5py.File(tmp_path / "made.h5", "w", userblock_size=user_block) as file:
        file["a/b/deep"] = np.arange(24).reshape(4, 6)
        file["a/again"] = file["a/b/deep"]
        file["é %"] = 1.0
        found = file.create_dataset("made", (5,), h5py.ref_dtype)
        for number, path in enumerate(("a/b/deep", "a", "é %", "/")):
            found[number] = file[path].ref
        square = file.create_dataset("square", (2, 2), h5py.ref_dtype)
        square[1, 0] = file["a/b"].ref
        file.create_dataset("one", data=file["a"].ref, dtype=h5py.ref_dtype)
        file.create_dataset("many", (300,), h5py.ref_dtype, chunks=(7,), compression="gzip")[...] = found[2]
        regions = file.create_dataset("regions", (5,), h5py.regionref_dtype)
        deep = file["a/b/deep"]
        for number, region in enumerate((np.s_[1:3, ::2], np.s_[2, :], np.s_[...], [[0, 1], [3, 5]])):
            regions[number] = deep.regionref[region] if number < 3 else deep.regionref[np.eye(4, 6, dtype=bool)]
        file["soft"] = h5py.SoftLink("/made")
        file.attrs["one"] = file["a/b/deep"].ref
        file.attrs["region"] = deep.regionref[0:2, 3]
        file.attrs.create("list", [file["a"].ref, None], dtype=h5py.ref_dtype)
    with h5py.File(tmp_path / "made.h5") as file, glassfs.open(tmp_path / "made.h5") as opened:
        assert lines_of(opened["made.jsonl"].bytes()) in (
            ["/a/again", "/a", "/é %", "/", None], ["/a/b/deep", "/a", "/é %", "/", None],
        )
        raw = np.zeros(5, "V8")
        file["made"].id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, h5py.h5t.STD_REF_OBJ)
        assert opened["made.bin"].bytes() == raw.tobytes()
        assert json.loads(opened["square.json"].bytes()) == [[None, None], ["/a/b", None]]
        assert json.loads(opened["one.json"].bytes()) == "/a"
        assert lines_of(opened["many.jsonl"].bytes()) == ["/é %"] * 300
        path = lines_of(opened["made.jsonl"].bytes())[0]
        assert lines_of(opened["regions.jsonl"].bytes()) == [
            f"{path}[1:3, 0:5]…", f"{path}[2:3, 0:6]", f"{path}[0:4, 0:6]",
            f"{path}[0:4, 0:4]…", None,
        ]
        assert opened["soft.jsonl"].bytes() == opened["made.jsonl"].bytes()
        attributes = json.loads(opened["meta/attributes.json"].bytes())
        assert attributes == {"one": path, "region": f"{path}[0:2, 3:4]", "list": ["/a", None]}


def test_references_to_nothing_are_told_apart_from_empty_ones(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        gone = file.create_group("gone")
        made = file.create_dataset("made", (4,), h5py.ref_dtype)
        made[0] = gone.ref
        for number, address in enumerate((1 << 63, 3), 1):
            raw = np.array([address], "u8").view("V8")
            space = made.id.get_space()
            space.select_hyperslab((number,), (1,))
            made.id.write(h5py.h5s.create_simple((1,)), space, raw, h5py.h5t.STD_REF_OBJ)
        del file["gone"]
        regions = file.create_dataset("regions", (2,), h5py.regionref_dtype)
        wrong = np.frombuffer(b"\xff" * 12, "V12")
        space = regions.id.get_space()
        space.select_hyperslab((0,), (1,))
        regions.id.write(h5py.h5s.create_simple((1,)), space, wrong, h5py.h5t.STD_REF_DSETREG)
        file["good"] = 1.0
    with glassfs.open(tmp_path / "made.h5") as opened:
        found = lines_of(opened["made.jsonl"].bytes())
        assert [one is None or one.startswith("object at ") for one in found] == [True] * 4
        assert found[1:] == [f"object at {1 << 63}", "object at 3", None]
        assert lines_of(opened["regions.jsonl"].bytes()) == ["object of a damaged reference", None]
        assert opened["good"].numpy() == 1.0


@pytest.mark.slow
def test_a_million_references_take_seconds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w", libver="latest") as file:
        for number in range(2_000):
            file.create_group(f"{number}/x")
        made = file.create_dataset("made", (1_000_000,), h5py.ref_dtype)
        made[...] = file["1999/x"].ref
    with glassfs.open(tmp_path / "made.h5") as opened:
        raw = opened["made.jsonl"].bytes()
        assert raw == b'"/1999/x"\n' * 1_000_000


def test_names_of_enumerations_are_in_the_attributes(tmp_path: Path) -> None:
    names = {"none": 0, "partial": 1, "complete": -2}
    with h5py.File(tmp_path / "made.h5", "w") as file:
        kind = h5py.enum_dtype(names, "i2")
        for name in ("plain", "own"):
            file.create_dataset(name, data=np.array([1, 0, -2], "i2"), dtype=kind)
        file["own"].attrs["enumeration"] = "mine"
        file.create_dataset("flags", data=np.array([True]))
        many = h5py.enum_dtype({f"name{number}": number for number in range(1_000)}, "i4")
        file.create_dataset("many", data=np.array([7], "i4"), dtype=many)
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["plain"].numpy().tolist() == [1, 0, -2]
        assert json.loads(opened["plain.attributes.json"].bytes()) == {"enumeration": names}
        assert json.loads(opened["own.attributes.json"].bytes()) == {"enumeration": "mine", "enumeration~2": names}
        assert len(json.loads(opened["many.attributes.json"].bytes())["enumeration"]) == 1_000
        assert "flags.attributes.json" not in opened


def test_enumerations_of_three_bytes_are_widened(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        kind = h5py.h5t.enum_create(integer(3, 24, 0, True, True))
        kind.enum_insert(b"one", 1)
        kind.enum_insert(b"minus", -5)
        made = h5py.h5d.create(file.id, b"made", kind, h5py.h5s.create_simple((2,)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, -5]), h5py.h5t.NATIVE_INT64)
    with h5py.File(tmp_path / "made.h5") as file:
        raw = np.zeros(2, "V3")
        file["made"].id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, file["made"].id.get_type())
        wanted = [int.from_bytes(one.tobytes(), "big", signed=True) for one in raw]
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["made"].numpy().tolist() == wanted
        assert set(json.loads(opened["made.attributes.json"].bytes())["enumeration"]) == {"one", "minus"}


def integer(size: int, bits: int, offset: int, is_signed: bool, is_big: bool) -> Any:
    kind = (h5py.h5t.STD_I64LE if is_signed else h5py.h5t.STD_U64LE).copy()
    kind.set_precision(bits)
    kind.set_offset(0)
    kind.set_size(size)
    kind.set_offset(offset)
    kind.set_order(h5py.h5t.ORDER_BE if is_big else h5py.h5t.ORDER_LE)
    return kind


@pytest.mark.parametrize("options", [{}, {"chunks": (4,)}])
def test_integers_of_any_size_are_widened(tmp_path: Path, options: dict[str, Any]) -> None:
    wanted = {}
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for size, is_signed, is_big in product((2, 3, 4, 5, 6, 7, 9, 16), (True, False), (True, False)):
            bits = 8 * min(size, 8) - {2: 4, 4: 1, 6: 1}.get(size, 0)
            top = 1 << (bits - is_signed)
            numbers = np.array([0, 1, top - 1, -1 * is_signed, -top * is_signed, 77], "i8" if is_signed else "u8")
            name = f"{size} {is_signed} {is_big}"
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if options:
                properties.set_chunk(options["chunks"])
            kind = integer(size, bits, 0, is_signed, is_big)
            made = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((6,)), properties)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, numbers)
            h5py.h5a.create(made, b"made", kind, h5py.h5s.create_simple((6,))).write(numbers)
            wanted[name] = size, numbers
    with glassfs.open(tmp_path / "made.h5") as opened:
        for name, (size, numbers) in wanted.items():
            if size > 8:
                assert len(opened[f"{name}.bin"].bytes()) == 6 * size
                assert opened[f"{name}.bin"].attributes["dtype"] == f"integer of {size} bytes"
            else:
                shown = opened[name].numpy().tolist(), opened[f"{name}.attributes.json"].json()["made"]
                assert shown == (numbers.tolist(), numbers.tolist()), name


def test_long_doubles_are_bytes(tmp_path: Path) -> None:
    numbers = np.array([[1.5, np.pi], [-2.0, 0.0]], np.longdouble)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset("made", data=numbers, chunks=(1, 2), compression="gzip")
        file.attrs["made"] = np.longdouble(1.5)
    with glassfs.open(tmp_path / "made.h5") as opened:
        raw = np.frombuffer(opened["made.bin"].bytes(), np.longdouble).reshape(2, 2)
        assert np.array_equal(raw, numbers)
        found = opened["made.bin"].attributes
        assert found["shape"] == "[2, 2]"


# MATLAB


def test_variables_of_matlab(tmp_path: Path) -> None:
    write_matlab(tmp_path / "made.h5")
    with h5py.File(tmp_path / "made.h5") as file, glassfs.open(tmp_path / "made.h5") as opened:
        assert np.array_equal(opened["double"].numpy(), file["double"][()])
        assert opened["name.txt"].bytes() == "héllo 😀".encode()
        assert opened["rows.txt"].bytes() == b"one\ntwo\n  3\n"
        assert opened["half.txt"].bytes() == rb"\x3d\xd8"
        for name in ("logical", "flags"):
            assert opened[name].numpy().dtype == bool and opened[name].numpy().ravel().tolist() == [True, False, True]
        for name, dtype in (("complex", "<c16"), ("single", "<c8")):
            found = opened[name].numpy()
            assert found.dtype == dtype and found.T.tolist() == [[1, 2 - 1j], [3 + 0.5j, 4]]
        for kind, dtype in {"double": "<f8", "logical": "?", "int8": "i1", "uint64": "<u8"}.items():
            found = opened[f"empty_{kind}"].numpy()
            assert found.shape == (3, 0) and found.dtype == dtype
        assert opened["empty_char.txt"].bytes() == b""
        assert json.loads(opened["empty_cell.json"].bytes()) == json.loads(opened["empty_struct.json"].bytes()) == []


def test_cells_of_matlab_are_links(tmp_path: Path) -> None:
    write_matlab(tmp_path / "made.h5")
    with h5py.File(tmp_path / "made.h5") as file, glassfs.open(tmp_path / "made.h5") as opened:
        assert sorted(opened["row"]) == ["0.npy", "1.txt", "2", "3", "4.npy"]
        assert np.array_equal(opened["row/0.npy"].numpy(), file["#refs#/0"][()])
        assert opened["row/1.txt"].bytes() == opened["row/2/0.txt"].bytes() == b"inner"
        assert opened["row/3/field"].numpy() == 1.0 and opened["row/4.npy"].numpy().shape == (0, 0)
        assert sorted(opened["matrix"]) == ["0_0.npy", "0_1.txt", "1_0.npy", "1_1.npy", "2_0.txt", "2_1.npy"]
        for place in ((0, 0), (1, 0), (1, 1), (2, 1)):
            expected = file[file["matrix"][place]][()]
            assert np.array_equal(opened["matrix/{}_{}.npy".format(*place)].numpy(), expected)
        assert sorted(opened["within/itself"]) == ["0.npy", "1"]
        assert np.array_equal(opened["within/itself/1/1/0.npy"].numpy(), file["#refs#/0"][()])
        assert "#refs#/" in opened and "row.attributes.json" in opened


def test_cells_that_lead_nowhere_are_omitted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        gone = file.create_group("gone")
        made = file.create_dataset("made", (3,), h5py.ref_dtype)
        made.attrs["MATLAB_class"] = np.bytes_("cell")
        made[0], made[1] = gone.ref, file.ref
        del file["gone"]
        large = file.create_dataset("large", (100_001,), h5py.ref_dtype)
        large.attrs["MATLAB_class"] = np.bytes_("cell")
    container = open_path(tmp_path / "made.h5")
    made = next(one for key, one in container.root.members() if key == (b"made",))  # type: ignore[union-attr]
    members = {key[0]: one for key, one in made.members()}  # type: ignore[union-attr]
    assert isinstance(members[b"0"], Omitted) and members[b"0"].is_damage
    assert omitted_in(made) == {"0": "refers to no object that is found"}
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert sorted(opened["made"]) == ["1", "2.null"]
        assert "large.jsonl" in opened and "large.bin" in opened


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=9)


@settings(max_examples=20, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_any_text_of_matlab(rows: list[str]) -> None:
    longest = max(len(row.encode("utf-16-le")) // 2 for row in rows)
    padded = [row + " " * (longest - len(row.encode("utf-16-le")) // 2) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(f"{folder}/made.h5", "w") as file:
            matlab(file, "made", characters(padded), "char", int_decode=2)
        with glassfs.open(f"{folder}/made.h5") as opened:
            raw = opened["made.txt"].bytes().decode()
            assert raw == (padded[0] if len(padded) == 1 else "".join(f"{row}\n" for row in padded))


def test_wrong_attributes_of_matlab_change_nothing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file["char"] = np.zeros((2, 2), "f8")
        file["cell"] = np.arange(3)
        file["logical"] = np.arange(3, dtype="f4")
        file["empty"] = np.array([2, 3], "u8")
        file["code"] = np.array([[0x110000]], "u4")
        file["virtual"] = 1.0
        for name in ("char", "cell", "logical", "empty", "code"):
            file[name].attrs["MATLAB_class"] = np.bytes_({"empty": "double", "code": "char"}.get(name, name))
        file["virtual"].attrs["MATLAB_class"] = np.arange(5)
        file["empty"].attrs["MATLAB_empty"] = "yes"
    with h5py.File(tmp_path / "made.h5") as file, glassfs.open(tmp_path / "made.h5") as opened:
        for name in ("char", "cell", "logical", "empty", "virtual"):
            assert np.array_equal(opened[name].numpy(), file[name][()]), name
        assert opened["code.txt"].bytes() == rb"\x00\x00\x11\x00"


def test_what_hdf5storage_writes_is_what_it_reads(tmp_path: Path) -> None:
    hdf5storage: Any = package("hdf5storage")
    wrote = {
        "c": np.array([[np.array([[1.0, 2.0]]), "héllo 😀"]], object), "text": "text", "z": np.array([[1 + 2j, -4j]]),
        "empty": np.zeros((0, 3)), "flags": np.array([[True, False]]), "i": values((2, 3), "<i2"),
    }
    path = tmp_path / "made.mat"
    hdf5storage.savemat(str(path), wrote, format="7.3", oned_as="row", store_python_metadata=False)
    with glassfs.open(path) as opened:
        assert np.array_equal(opened["c/0.npy"].numpy().T, wrote["c"][0, 0])
        assert opened["c/1.txt"].bytes() == "héllo 😀".encode() and opened["text.txt"].bytes() == b"text"
        for name in ("z", "empty", "flags", "i"):
            found = opened[name].numpy().T
            assert np.array_equal(found, wrote[name]) and found.dtype == wrote[name].dtype


NETCDF = """
import sys, netCDF4
with netCDF4.Dataset(sys.argv[1], "w") as made:
    made.createDimension("time", 3)
    made.createVariable("time", "f8", ("time",))[:] = [1, 2, 3]
    kind = made.createEnumType("u1", "cloud", {"clear": 0, "partial": 1})
    made.createVariable("sky", kind, ("time",))[:] = [0, 1, 1]
"""


def test_dimensions_of_netcdf_are_paths(tmp_path: Path) -> None:
    if find_spec("netCDF4") is None:
        pytest.skip("netCDF4 is not installed: pip install -e '.[dev]'")
    # It has a library of HDF5 of its own, which must not meet that of h5py in one process.
    subprocess.run([sys.executable, "-c", NETCDF, tmp_path / "made.h5"], check=True)
    with glassfs.open(tmp_path / "made.h5") as opened:
        found = json.loads(opened["sky.attributes.json"].bytes())
        assert found["DIMENSION_LIST"] == [["/time"]] and found["enumeration"] == {"clear": 0, "partial": 1}
        time = json.loads(opened["time.attributes.json"].bytes())
        assert [one["dataset"] for one in time["REFERENCE_LIST"]] == ["/sky"]
        assert opened["sky"].numpy().tolist() == [0, 1, 1]


@pytest.mark.parametrize("count", [
    8, pytest.param(200, marks=pytest.mark.slow),
    pytest.param(3_000, marks=[pytest.mark.long, pytest.mark.timeout(36_000)]),
])
@pytest.mark.parametrize("write", [write_matlab, write_referring, write_anndata, write_mixed])
def test_mutants_raise_only_known_errors(
    tmp_path: Path, write: Callable[[Path], object], count: int,
) -> None:
    path = tmp_path / "made.h5"
    write(path)
    whole, chance = path.read_bytes(), np.random.default_rng(count)
    for _ in range(count):
        path.write_bytes(mutant(whole, chance))
        exercise(path)
