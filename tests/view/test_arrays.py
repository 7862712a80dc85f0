"""Arrays as NPY files, byte for byte what numpy.save writes, and as Zarr, which zarr and xarray read."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from glassfs.cache import BlockCache
from glassfs.content import TIME, Array, Beside, Member, Memory, Series, Unreadable, Zeros, members_of
from glassfs.errors import Damaged, TooLarge
from glassfs.sizes import PIECE
from glassfs.tree.nodes import Directory, File
from glassfs.view import ViewSet, data_of, file_of
from glassfs.view.zarr import MOST_CONSOLIDATED, VIEW
from tests.view.views import KEY, PLACE, file_bytes, tree_of

DTYPES = st.one_of(
    npst.boolean_dtypes(), npst.integer_dtypes(endianness="<"), npst.unsigned_integer_dtypes(endianness="<"),
    npst.floating_dtypes(endianness="<", sizes=(16, 32, 64)), npst.complex_number_dtypes(endianness="<"),
    st.sampled_from(["<m8[100ns]", "<M8[100ns]", "<M8[D]", "<U7", "|S5", "|V16"]).map(np.dtype),
)
SHAPES = npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)


def saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy notes that NPY 2.0 is newer
        np.save(file, array)
    return file.getvalue()


@given(DTYPES, SHAPES, st.data())
@settings(deadline=None)
def test_file_equals_what_numpy_saves(dtype: np.dtype[Any], shape: tuple[int, ...], data: st.DataObject) -> None:
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(raw, dtype).reshape(shape) if size else np.zeros(shape, dtype)
    content = Array(KEY, Memory(raw), dtype.descr[0][1], shape)
    assert file_bytes(content, ".npy") == saved(array)


@pytest.mark.parametrize("length", [1, 10**9, 10**18, 10**21, 10**25])
def test_header_leaves_the_same_space_as_numpy(length: int) -> None:
    """The first axis may grow to 21 digits; an array of that size cannot be made, its header can."""
    expected = io.BytesIO()
    np.lib.format.write_array_header_1_0(expected, {"descr": "<f4", "fortran_order": False, "shape": (length, 3)})
    header = expected.getvalue()
    shown = data_of(Array(KEY, Unreadable(12 * length, Damaged("not there")), "<f4", (length, 3)), BlockCache(), PLACE)
    assert shown.read(0, len(header)) == header
    assert shown.size == len(header) + 12 * length
    with pytest.raises(Damaged, match="not there"):
        shown.read(len(header) - 1, 2)


def test_headers_around_the_limit_of_npy_1() -> None:
    versions = set()
    for dimensions in range(21_790, 21_850):
        shape = (1,) * dimensions
        fields = {"descr": "<f8", "fortran_order": False, "shape": shape}
        expected = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                np.lib.format.write_array_header_1_0(expected, fields)
            except ValueError:
                np.lib.format.write_array_header_2_0(expected, fields)
        found = file_bytes(Array(KEY, Memory(bytes(8)), "<f8", shape), ".npy")
        assert found == expected.getvalue() + bytes(8)
        versions.add(found[6])
    assert versions == {1, 2}


def test_lazy_shape_is_found_when_size_is_needed() -> None:
    asked: list[int] = []

    def shape() -> tuple[int, ...]:
        asked.append(1)
        return (3,)

    content = Array(KEY, Memory(b"abc"), "|u1", shape)
    data = data_of(content, BlockCache(), PLACE)
    assert not data.is_sized
    assert not asked
    assert data.read(0, data.size) == saved(np.frombuffer(b"abc", "u1"))


def test_a_label_stands_before_the_extension() -> None:
    content = Array(KEY, Memory(bytes(2)), "<i2", (1,), label=".offset_minutes")
    assert file_of(content, BlockCache(), PLACE).suffix == ".offset_minutes.npy"


ZARR_DTYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
TIMES = ("<M8[ns]", "<M8[us]", "<m8[s]", "<m8[100ns]")


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(3).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    if dtype == "|b1":
        return (np.frombuffer(raw, "|u1") & 1).astype(dtype).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


def content(name: bytes, array: np.ndarray[Any, Any], dtype: str, axis: str = "") -> Member:
    return Member((name,), Array(name, Memory(array.tobytes()), dtype, array.shape, axis=axis))


def written(folder: Path, *members: Member) -> Path:
    """What the view makes of contents, as files."""
    for path, node in tree_of(*members, views=ViewSet(VIEW)).walk():
        place = folder / path[1:]
        if isinstance(node, Directory):
            place.mkdir(exist_ok=True)
        elif isinstance(node, File):
            data = node.read(0, node.size)
            assert len(data) == node.size
            place.write_bytes(data)
    return folder


def opened(place: Path) -> Any:
    import zarr

    return zarr.open(place, mode="r")


@pytest.mark.parametrize("dtype", ZARR_DTYPES + TIMES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (1000,), (3, 5), (0, 4), (7, 2, 3)], ids=str)
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    expected = values(dtype, shape)
    found = opened(written(tmp_path, content(b"a", expected, dtype)) / "a.zarr")
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
    assert np.asarray(found[...]).tobytes() == expected.tobytes()


@given(rows=st.integers(1, 3000), width=st.sampled_from((1, 3, 200, 40_000)))
def test_the_last_chunk_is_as_large_as_the_others(
    tmp_path_factory: pytest.TempPathFactory, rows: int, width: int,
) -> None:
    rows = min(rows, (3 * PIECE) // (4 * width) + 2)
    expected = values("<u4", (rows, width))
    place = written(tmp_path_factory.mktemp("z"), content(b"a", expected, "<u4")) / "a.zarr"
    sizes = {file.stat().st_size for file in (place / "c").rglob("*") if file.is_file()}
    assert len(sizes) == 1 and sizes <= set(range(4 * width, PIECE + 1, 4 * width)) | {4 * width}
    assert np.array_equal(opened(place)[:], expected)


def test_video_has_a_chunk_for_each_frame(tmp_path: Path) -> None:
    expected = values("|u1", (5, 8, 6, 3))
    place = written(tmp_path, content(b"film", expected, "|u1")) / "film.zarr"
    frames = sorted(os.listdir(place / "c"))
    assert frames == ["0", "1", "2", "3", "4"]
    assert (place / "c/3/0/0/0").read_bytes() == expected[3].tobytes()


def test_the_arrays_of_a_directory_are_a_group(tmp_path: Path) -> None:
    import xarray

    arrays = {"state": values("<i4", (30, 7)), "action": values("<i8", (30, 2)), "square": values("<i2", (4, 4))}
    members = [content(name.encode(), array, array.dtype.str) for name, array in arrays.items()]
    place = written(tmp_path, *members, content(b"odd", np.array([b"abc"]), "|S3")) / "arrays.zarr"
    assert (tmp_path / "odd.npy").exists() and not (tmp_path / "odd.zarr").exists()  # which zarr lacks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = xarray.open_zarr(place)
    assert set(found.data_vars) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(found[name].values, array), name
    assert found["state"].dims[0] == found["action"].dims[0]
    assert len(set(found["square"].dims)) == 2


def test_steps_are_the_dimension_time(tmp_path: Path) -> None:
    import xarray

    arrays = {"state": (33, 33), "reward": (33,), "action": (33, 2)}
    members = [content(name.encode(), values("<f4", shape), "<f4", TIME) for name, shape in arrays.items()]
    members += [content(b"bias", values("<f4", (33,)), "<f4"), content(b"late", values("<f4", (34, 2)), "<f4", TIME)]
    place = written(tmp_path, *members)
    found = xarray.open_zarr(place / "arrays.zarr")
    assert found.sizes["time"] == 33 and all(found[name].dims[0] == "time" for name in arrays)
    assert found["state"].dims == ("time", "n33") and found["bias"].dims == ("n33",)
    assert found["late"].dims == ("n34", "n2")
    assert opened(place / "late.zarr").metadata.dimension_names == ("time", "n2")


@pytest.mark.parametrize(("shape", "dimension"), [((5,), "time"), ((5, 2), "n5")])
def test_an_array_called_time_is_a_coordinate_or_prevents_the_dimension(
    shape: tuple[int, ...], dimension: str, tmp_path: Path,
) -> None:
    import xarray

    members = [content(name, values("<i4", shape), "<i4", TIME) for name in (b"state", b"time")]
    found = xarray.open_zarr(written(tmp_path, *members) / "arrays.zarr")
    assert found["state"].dims[0] == dimension and ("time" in found.coords) is (dimension == "time")


def test_metadata_are_consolidated_as_zarr_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zarr

    names = (b"a", "\u00e9\u4e16".encode(), b"a/b", b"", b"..", b"x" * 300, b"%", b"c\\d")
    members = [content(name, values("<i4", (3, number + 1)), "<i4") for number, name in enumerate(names)]
    place = written(tmp_path, *members) / "arrays.zarr"
    said = json.loads((place / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert {name: json.loads((place / name / "zarr.json").read_text()) for name in said} == said
    assert sorted(said) == sorted(set(os.listdir(place)) - {"zarr.json", "c\\d"})
    group = zarr.open_consolidated(place, mode="r")
    assert {name: array.shape for name, array in group.arrays()} == {
        name: tuple(described["shape"]) for name, described in said.items()
    }
    monkeypatch.setattr("glassfs.view.zarr.MOST_CONSOLIDATED", len(names) - 1)
    (tmp_path / "many").mkdir()
    place = written(tmp_path / "many", *members) / "arrays.zarr"
    assert "consolidated_metadata" not in json.loads((place / "zarr.json").read_text())
    assert MOST_CONSOLIDATED >= 1000 and sorted(opened(place).array_keys()) == sorted(said)


def test_array_named_like_metadata_is_not_in_the_group(tmp_path: Path) -> None:
    place = written(tmp_path, *(content(name, values("<i4", (3,)), "<i4") for name in (b"zarr.json", b"a", b"c")))
    assert sorted(opened(place / "arrays.zarr").array_keys()) == ["a", "c"]
    assert opened(place / "zarr.json.zarr").shape == (3,)


@pytest.mark.parametrize(("shape", "dtype", "most"), [
    ((1 << 40,), "|u1", 1 << 14), ((1 << 32, 8), "<f4", 1 << 14), ((1 << 31, 4, 4, 3), "|u1", 1 << 17),
    ((9, 2), "<f4", 1),
])
def test_false_length_makes_no_endless_directory(shape: tuple[int, ...], dtype: str, most: int) -> None:
    size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    (shown,) = VIEW.show(Array(b"a", Zeros(size), dtype, shape), BlockCache(), ("v",))
    (chunks,) = (member for _, member in members_of(shown.thing) if isinstance(member, Series))  # type: ignore[arg-type]
    assert 0 < len(chunks.numbers) <= most
    (folder,) = VIEW.show(Beside(b"", [Member((b"a",), Array(b"a", Zeros(size), dtype, shape))]), BlockCache(), ("v",))
    assert folder.name == b"arrays.zarr"


def test_arrays_too_large_for_chunks_are_left_out() -> None:
    array = Array(b"a", Zeros(1 << 60), "|u1", (1 << 60,))
    with pytest.raises(TooLarge, match="too large for chunks"):
        list(VIEW.show(array, BlockCache(), ("v",)))
    assert list(VIEW.show(Beside(b"", [Member((b"a",), array)]), BlockCache(), ("v",))) == []
