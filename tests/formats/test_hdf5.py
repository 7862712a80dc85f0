"""HDF5 files, against h5py: types, layouts, filters, links and attributes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from glassfs.content import Array
from glassfs.errors import Damaged, Refused
from glassfs.formats.hdf5 import FORMAT
from glassfs.sandbox.pool import pool
from glassfs.testing import FormatTests
from tests.conftest import Scale
from tests.formats.hdf5_files import (
    BY_LIBRARY,
    FILTERS,
    LIBVERS,
    h5py,
    values,
    write_everything,
    write_links,
    write_robomimic,
)
from tests.helpers import open_path, walk


def arrays_in(file: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the numeric datasets of an open file as h5py reads them."""
    found = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "fciub":
            found[name] = item[()]

    file.visititems(add)
    return found


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    return write_everything(tmp_path / "made.h5")


@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("user_block", [0, 512, 2048])
def test_numbers_are_those_of_h5py(tmp_path: Path, libver: str, user_block: int) -> None:
    path = write_everything(tmp_path / "made.h5", libver, user_block)
    with h5py.File(path) as file, glassfs.open(path) as opened:
        wanted = arrays_in(file)
        assert len(wanted) > 30
        for name, expected in wanted.items():
            found = opened[name].numpy()
            assert found.dtype == expected.dtype.newbyteorder("<"), name
            assert np.array_equal(found, expected), name


@pytest.mark.parametrize("name", [*FILTERS, *BY_LIBRARY])
def test_any_range_of_chunks_is_that_of_the_whole(everything: Path, name: str) -> None:
    container = open_path(everything)
    data = next(one.data for path, one in walk(container.root) if path == b"filters/" + name.encode()
                and isinstance(one, Array))
    whole = values((50, 33, 5)).tobytes()
    chance = np.random.default_rng(5)
    assert data.read(0, data.size) == whole
    for _ in range(200):
        start, end = sorted(chance.integers(0, len(whole) + 1, 2).tolist())
        assert data.read(start, end - start) == whole[start:end]


def test_strings_and_rows_of_variable_length(everything: Path) -> None:
    with glassfs.open(everything) as opened:
        assert opened["text.txt"].bytes() == b"one"
        assert opened["texts.jsonl"].bytes() == '"a"\n"bé"\n""\n'.encode()
        assert json.loads(opened["fixed.json"].bytes()) == [["a", "bc"], ["d", ""]]
        assert opened["rows/values"].numpy().tolist() == [1, 2, 3]
        assert opened["rows/offsets"].numpy().tolist() == [0, 2, 2, 3, 3]
        assert opened["opaque.bin"].bytes() == b"abcdef"


@pytest.mark.parametrize("name", ["structure", "structures"])
def test_compounds_are_structures_and_tables(everything: Path, name: str) -> None:
    with glassfs.open(everything, views="parquet") as opened, h5py.File(everything) as file:
        expected = file[name][()]
        found = opened[name].numpy()
        assert found.dtype.names == expected.dtype.names
        for field in found.dtype.names:
            assert np.array_equal(found[field], expected[field])
        assert len(opened[f"{name}.parquet"].table()) == 5


def test_attributes_are_documents_beside_what_has_them(everything: Path) -> None:
    with glassfs.open(everything) as opened:
        assert json.loads(opened["meta/attributes.json"].bytes()) == {"root": "yes"}
        assert json.loads(opened["group/inner.attributes.json"].bytes()) == {"numbers": [1, 2, 3]}
        assert json.loads(opened["group/inner/x.attributes.json"].bytes()) == {"unit": "m"}


def test_links_stay_inside_the_file(tmp_path: Path) -> None:
    path = write_links(tmp_path / "links.h5")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.array([6.0, 6.0, 6.0])
    (tmp_path / "other.bin").write_bytes(np.array([6.0, 6.0, 6.0]).tobytes())
    container = open_path(path)
    shown = {}
    for name, content in container.root.members():  # type: ignore[union-attr]
        shown[b"/".join(name)] = content
    assert set(shown) == {b"a", b"dangling", b"hard", b"relative", b"twice.npy"}
    error = container.root.error  # type: ignore[union-attr]
    assert error is not None
    for hidden in ("outside", "virtual", "elsewhere"):
        assert f"{hidden} " in error
    with glassfs.open(path) as opened:
        assert opened["hard"].numpy().tolist() == [0, 1, 2]
        assert opened["a/soft.npy"].numpy().tolist() == [0, 1, 2]
        assert opened["twice.npy"].numpy().tolist() == [0, 1, 2]
        assert opened["relative/values"].numpy().tolist() == [0, 1, 2]
        assert opened["a/b/up/b/values"].numpy().tolist() == [0, 1, 2]
        assert opened["a/b/top/hard"].numpy().tolist() == [0, 1, 2]


def test_chunk_with_a_filter_left_out_is_read(tmp_path: Path) -> None:
    whole = values((40,), "<i4")
    with h5py.File(tmp_path / "made.h5", "w") as file:
        made = file.create_dataset("x", (40,), "<i4", chunks=(20,), compression="gzip", shuffle=True)
        made.id.write_direct_chunk((0,), whole[:20].tobytes(), filter_mask=0b11)
        made[20:] = whole[20:]
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert np.array_equal(opened["x"].numpy(), whole)


def test_wrong_checksum_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=values((40,)), chunks=(20,), fletcher32=True)
        offset = made.id.get_chunk_info(1).byte_offset
    data = bytearray(path.read_bytes())
    data[offset + 3] ^= 1
    path.write_bytes(data)
    with glassfs.open(path) as opened:
        assert np.array_equal(opened["x"][:20], values((40,))[:20])
        with pytest.raises(Damaged, match="checksum"):
            opened["x"].numpy()


def test_filter_without_a_plugin_makes_a_dataset_unreadable(tmp_path: Path) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4,))
    properties.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, (1,))
    with h5py.File(tmp_path / "made.h5", "w") as file:
        space = h5py.h5s.create_simple((8,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, properties).write_direct_chunk((0,), bytes(16))
        file["y"] = np.arange(3)
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["x"].attributes["readable"] == "false"
        with pytest.raises(Damaged, match=r"32999.*install hdf5plugin"):
            opened["x"].numpy()
        assert opened["y"].numpy().tolist() == [0, 1, 2]


def test_without_h5py_the_error_says_what_to_install(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.hdf5.file.is_installed", lambda: False)
    with pytest.raises(Refused, match=r"needs h5py: .*install.*\[hdf5\]"):
        open_path(everything)


def test_listing_a_group_opens_no_other(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for number in range(2_500):
            file[f"many/{number:05}"] = number
        file["few/x"] = 1
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert sorted(opened["few"]) == ["x.npy"]
        assert len(list(opened["many"])) == 2_500
        assert opened["many/02499"].numpy() == 2499


@pytest.fixture(scope="class", autouse=True)
def copies(request: pytest.FixtureRequest, scale: Scale) -> None:
    if request.cls is not None:
        request.cls.damaged_copies = scale(1, 4)


class TestHdf5(FormatTests):
    format = FORMAT
    opening_share = 0.25
    most_seconds = 30.0

    def containers(self) -> Iterable[Path | bytes]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "made.h5")
            yield write_everything(path).read_bytes()
            yield write_everything(path, "latest", 1024).read_bytes()
            yield write_links(path).read_bytes()
            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=values((64, 32, 32, 3), "<f8"), chunks=(8, 32, 32, 3), compression="gzip")
                file["y"] = values((1_000, 300), "<f4")
            yield path.read_bytes()


def test_listing_a_folder_opens_no_file_of_it(tmp_path: Path) -> None:
    for number in range(5):
        write_robomimic(tmp_path / f"{number}.hdf5")
    (tmp_path / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5_000))
    pool().close()
    with glassfs.open(tmp_path) as opened:
        assert sorted(opened) == [*(f"{number}.hdf5" for number in range(5)), "bad.h5"]
        assert pool().processes == []
        assert "data" in list(opened["3.hdf5"])
        assert len(pool().processes) == 1
        with pytest.raises(NotADirectoryError):
            list(opened["bad.h5"])
        assert not opened["bad.h5"].is_dir()
