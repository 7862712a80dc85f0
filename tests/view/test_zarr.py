"""Arrays as Zarr: zarr and xarray read what numpy.load reads of the .npy beside it."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassfs.cache import BlockCache
from glassfs.content import TIME, Array, Beside, Group, Member, Memory, Series, Zeros, members_of
from glassfs.errors import TooLarge
from glassfs.sizes import PIECE
from glassfs.tree import Tree
from glassfs.tree.build import container_root
from glassfs.tree.nodes import Directory, File
from glassfs.view import ViewSet
from glassfs.view.zarr import MOST_CONSOLIDATED, VIEW
from tests.tree.trees import origin

DTYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
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
    at = origin()
    root = container_root(Group(b"", lambda: members), replace(at, services=at.services._replace(views=ViewSet(VIEW))))
    for path, node in Tree(lambda: root).walk():
        place = folder / path[1:]
        if isinstance(node, Directory):
            place.mkdir(exist_ok=True)
        elif isinstance(node, File):
            data = node.read(0, node.size)
            assert len(data) == node.size
            place.write_bytes(data)
    return folder


@pytest.mark.parametrize("dtype", DTYPES + TIMES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (1000,), (3, 5), (0, 4), (7, 2, 3)], ids=str)
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    import zarr

    expected = values(dtype, shape)
    place = written(tmp_path, content(b"a", expected, dtype)) / "a.zarr"
    found = zarr.open(place, mode="r")
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
    assert np.asarray(found[...]).tobytes() == expected.tobytes()


@given(rows=st.integers(1, 3000), width=st.sampled_from((1, 3, 200, 40_000)))
def test_the_last_chunk_is_as_large_as_the_others(
    tmp_path_factory: pytest.TempPathFactory, rows: int, width: int,
) -> None:
    import zarr

    rows = min(rows, (3 * PIECE) // (4 * width) + 2)
    expected = values("<u4", (rows, width))
    place = written(tmp_path_factory.mktemp("z"), content(b"a", expected, "<u4")) / "a.zarr"
    sizes = {file.stat().st_size for file in (place / "c").rglob("*") if file.is_file()}
    assert len(sizes) == 1 and sizes <= set(range(4 * width, PIECE + 1, 4 * width)) | {4 * width}
    assert np.array_equal(zarr.open(place, mode="r")[:], expected)


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
    place = written(tmp_path, *members, Member((b"odd",), Array(b"odd", Memory(b"abc"), "|S3", (1,)))) / "arrays.zarr"
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
    import zarr

    arrays = {"state": (33, 33), "reward": (33,), "action": (33, 2)}
    members = [content(name.encode(), values("<f4", shape), "<f4", TIME) for name, shape in arrays.items()]
    members += [content(b"bias", values("<f4", (33,)), "<f4"), content(b"late", values("<f4", (34, 2)), "<f4", TIME)]
    place = written(tmp_path, *members)
    found = xarray.open_zarr(place / "arrays.zarr")
    assert found.sizes["time"] == 33 and all(found[name].dims[0] == "time" for name in arrays)
    assert found["state"].dims == ("time", "n33") and found["bias"].dims == ("n33",)
    assert found["late"].dims == ("n34", "n2")
    assert zarr.open_array(place / "late.zarr", mode="r").metadata.dimension_names == ("time", "n2")


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
    assert MOST_CONSOLIDATED >= 1000 and sorted(zarr.open(place, mode="r").array_keys()) == sorted(said)


def test_dtypes_that_zarr_lacks_are_left_out(tmp_path: Path) -> None:
    place = written(tmp_path, Member((b"odd",), Array(b"odd", Memory(b"abc"), "|S3", (1,))))
    assert sorted(os.listdir(place)) == ["odd.npy"]


def test_array_named_like_metadata_is_not_in_the_group(tmp_path: Path) -> None:
    import zarr

    members = [content(name, values("<i4", (3,)), "<i4") for name in (b"zarr.json", b"a", b"c")]
    place = written(tmp_path, *members)
    assert sorted(zarr.open(place / "arrays.zarr", mode="r").array_keys()) == ["a", "c"]
    assert zarr.open(place / "zarr.json.zarr", mode="r").shape == (3,)


@pytest.mark.parametrize(("shape", "dtype", "most"), [
    ((1 << 40,), "|u1", 1 << 14), ((1 << 32, 8), "<f4", 1 << 14), ((1 << 31, 4, 4, 3), "|u1", 1 << 17),
    ((9, 2), "<f4", 1),
])
def test_false_length_makes_no_endless_directory(shape: tuple[int, ...], dtype: str, most: int) -> None:
    size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    (shown,) = VIEW.show(Array(b"a", Zeros(size), dtype, shape), BlockCache(), ("v",))
    (chunks,) = (member for _, member in members_of(shown.thing) if isinstance(member, Series))  # type: ignore[arg-type]
    assert 0 < chunks.count <= most
    (folder,) = VIEW.show(Beside(b"", [Member((b"a",), Array(b"a", Zeros(size), dtype, shape))]), BlockCache(), ("v",))
    assert folder.name == b"arrays.zarr"


def test_arrays_too_large_for_chunks_are_left_out() -> None:
    array = Array(b"a", Zeros(1 << 60), "|u1", (1 << 60,))
    with pytest.raises(TooLarge, match="too large for chunks"):
        list(VIEW.show(array, BlockCache(), ("v",)))
    assert list(VIEW.show(Beside(b"", [Member((b"a",), array)]), BlockCache(), ("v",))) == []
