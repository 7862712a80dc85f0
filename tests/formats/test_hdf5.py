"""HDF5 files, against h5py: types, layouts, filters, links and attributes."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassfs
from glassfs.content import Omitted
from glassfs.errors import Damaged, NotInstalled, Refused
from glassfs.formats.hdf5 import FORMAT, filters
from glassfs.formats.hdf5.description import Filter
from glassfs.formats.registry import HEAD, Head
from glassfs.sandbox.pool import pool
from glassfs.testing import FormatTests
from tests.cli.glassfs_command import glassfs as glassfs_command
from tests.conftest import Scale
from tests.formats.hdf5_files import (
    FILTERS,
    flip,
    h5py,
    unreadable,
    values,
    write_everything,
    write_links,
    write_robomimic,
)
from tests.helpers import omitted_in, open_bytes, open_path, worker_processes
from tests.optional import package


def arrays_in(file: Any) -> dict[str, np.ndarray[Any, Any]]:
    found = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "fciub":
            found[name] = item[()]

    file.visititems(add)
    return found


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("everything") / "made.h5")


@pytest.mark.parametrize(("libver", "user_block"), [
    ("earliest", 0), ("latest", 512), pytest.param("earliest", 2048, marks=pytest.mark.slow),
])
def test_numbers_are_those_of_h5py(tmp_path: Path, libver: str, user_block: int) -> None:
    path = write_everything(tmp_path / "made.h5", libver, user_block)
    with h5py.File(path) as file, glassfs.open(path) as opened:
        wanted = arrays_in(file)
        assert len(wanted) > 30
        for name, expected in wanted.items():
            found = opened[name].numpy()
            assert found.dtype == expected.dtype.newbyteorder("<"), name
            assert np.array_equal(found, expected), name


def test_strings_and_rows_of_variable_length(everything: Path) -> None:
    with glassfs.open(everything) as opened:
        assert opened["text.txt"].bytes() == b"one"
        assert opened["texts.jsonl"].bytes() == '"a"\n"bé"\n""\n'.encode()
        assert json.loads(opened["fixed.json"].bytes()) == [["a", "bc"], ["d", ""]]
        assert opened["rows/values"].numpy().tolist() == [1, 2, 3]
        assert opened["rows/offsets"].numpy().tolist() == [0, 2, 2, 3, 3]
        assert opened["opaque.bin"].bytes() == b"abcdef"


def test_attributes_are_documents_beside_what_has_them(everything: Path) -> None:
    with glassfs.open(everything) as opened:
        assert json.loads(opened["meta/attributes.json"].bytes()) == {"root": "yes"}
        assert json.loads(opened["group/inner.attributes.json"].bytes()) == {"numbers": [1, 2, 3]}
        assert json.loads(opened["group/inner/x.attributes.json"].bytes()) == {"unit": "m"}


def test_links_stay_inside_the_file(tmp_path: Path) -> None:
    path = write_links(tmp_path / "links.h5")
    container = open_path(path)
    shown = {}
    for name, content in container.root.members():  # type: ignore[union-attr]
        if not isinstance(content, Omitted):
            shown[b"/".join(name)] = content
    assert set(shown) == {b"a", b"dangling", b"hard", b"relative", b"twice.npy"}
    kinds = {name: reason.partition(":")[0] for name, reason in omitted_in(container.root).items()}
    assert kinds == {
        "outside": "external link", "virtual": "virtual dataset", "external": "external storage", "kind": "named type",
    }
    with glassfs.open(path) as opened:
        assert opened["hard"].numpy().tolist() == [0, 1, 2]
        assert opened["a/soft.npy"].numpy().tolist() == [0, 1, 2]
        assert opened["twice.npy"].numpy().tolist() == [0, 1, 2]
        assert opened["relative/values"].numpy().tolist() == [0, 1, 2]
        assert opened["a/b/up/b/values"].numpy().tolist() == [0, 1, 2]
        assert opened["a/b/top/hard"].numpy().tolist() == [0, 1, 2]


def test_arrays_of_chunks_may_grow_along_any_axis(tmp_path: Path) -> None:
    """HDF5 up to 2.0 lists wrong places of chunks if an extensible array grows along another axis than the first."""
    path = tmp_path / "made.h5"
    shape = (6, 5, 7)
    with h5py.File(path, "w", libver="latest") as file:
        for number, longest in enumerate(product(*((length, length + 5, None) for length in shape))):
            made = file.create_dataset(f"{number}", shape, "i4", chunks=(2, 2, 3), maxshape=longest, fillvalue=9)
            made[2:, 1:, 3:] = values(shape)[2:, 1:, 3:]
    with glassfs.open(path) as opened, h5py.File(path) as file:
        assert len(file) == 27
        for name in file:
            assert np.array_equal(opened[name].numpy(), file[name][()]), name


@pytest.mark.parametrize(("dtype", "inner"), [
    (">u8", (3,)), *(pytest.param(dtype, (), marks=pytest.mark.slow) for dtype in ("u1", ">f4", "V7")),
])
def test_chunks_too_large_for_the_cache_are_read(tmp_path: Path, dtype: str, inner: tuple[int, ...]) -> None:
    path = tmp_path / "made.h5"
    count = 2_200_000 // (np.dtype(dtype).itemsize * prod(inner))
    raw = np.random.default_rng(1).integers(0, 9, (count, *inner, np.dtype(dtype).itemsize), "u1")
    whole = raw.view(dtype).reshape(count, *inner)
    little = whole.astype(whole.dtype.newbyteorder("<")).tobytes()
    with h5py.File(path, "w") as file:
        for name, options in FILTERS.items():
            if "lzf" not in name:
                file.create_dataset(name, data=whole, chunks=(count - 5, *inner), **options)
    with glassfs.open(path, cache_size=3 << 20) as opened:
        names = [name for name in opened if name.endswith((".npy", ".bin"))]
        assert len(names) == 5
        for name in names:
            assert opened[name].bytes().endswith(little), name
            with opened[name].open() as file:
                file.seek(-1_000_000, io.SEEK_END)
                assert file.read(1_000) == little[-1_000_000:-999_000]


def test_damage_in_a_large_chunk_is_found(tmp_path: Path) -> None:
    path, names = tmp_path / "made.h5", ("gzip", "gzip_all", "fletcher32")
    whole = np.random.default_rng(1).integers(0, 9, 2_000_000, "u1")
    with h5py.File(path, "w") as file:
        made = [file.create_dataset(name, data=whole, chunks=whole.shape, **FILTERS[name]) for name in names]
        stored = [one.id.get_chunk_info(0) for one in made]
    flip(path, *(info.byte_offset + info.size - 3 for info in stored))
    with glassfs.open(path, cache_size=3 << 20) as opened:
        for name in names:
            with pytest.raises(Damaged):
                opened[name].bytes()


@pytest.mark.parametrize("name", ["lz4", "lz4_blocks", "zstd"])
def test_lz4_and_zstd_need_no_plugin(tmp_path: Path, name: str) -> None:
    plugins = package("hdf5plugin", "dev")
    options = {"lz4": plugins.LZ4(), "lz4_blocks": plugins.LZ4(nbytes=1000), "zstd": plugins.Zstd()}[name]
    whole = np.random.default_rng(1).integers(0, 9, 9_001, "<i4")
    with h5py.File(tmp_path / "made.h5", "w") as file:
        made = file.create_dataset("x", data=whole, chunks=whole.shape, shuffle=True, fletcher32=True, **options)
        code, _, values, _ = made.id.get_create_plist().get_filter(1)
        _, stored = made.id.read_direct_chunk((0,))
    used = [Filter(2, (4,), "", False), Filter(code, values, "", False), Filter(3, (), "", False)]
    assert filters.are_known(used)
    raw = bytearray(whole.nbytes)
    filters.undo(bytearray(stored), used, memoryview(raw))
    assert raw == whole.tobytes()
    for damaged in (stored[:-5], stored[:-4] + bytes(4), b""):
        with pytest.raises(Damaged):
            filters.undo(bytearray(damaged), used, memoryview(raw))


def test_filters_of_plugins_are_read_if_these_are_installed(tmp_path: Path) -> None:
    plugins = package("hdf5plugin", "dev")
    whole = values((200, 200), "<f4")
    made = {"blosc": plugins.Blosc(), "blosc2": plugins.Blosc2(), "bitshuffle": plugins.Bitshuffle(),
            "lz4": plugins.LZ4(), "zstd": plugins.Zstd()}
    with h5py.File(tmp_path / "made.h5", "w") as file:
        for name, options in made.items():
            file.create_dataset(name, data=whole, chunks=(64, 64), **options)
    with glassfs.open(tmp_path / "made.h5") as opened:
        for name in made:
            assert np.array_equal(opened[name].numpy(), whole), name


def test_filter_without_a_plugin_makes_a_dataset_unreadable(tmp_path: Path) -> None:
    """Verifying names each, though they have one reason."""
    with h5py.File(tmp_path / "made.h5", "w") as file:
        unreadable(file, b"a", b"b", b"c")
        file["y"] = np.arange(3)
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert opened["a"].attributes["readable"] == "false"
        with pytest.raises(NotInstalled, match=r"32999.*install hdf5plugin"):
            opened["a"].numpy()
        assert opened["y"].numpy().tolist() == [0, 1, 2]
    done = glassfs_command("verify", tmp_path / "made.h5")
    assert done.status == 1
    assert [line.split(": ")[1] for line in done.lines] == ["a.npy", "b.npy", "c.npy"]


def test_without_h5py_the_error_says_what_to_install(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassfs.formats.hdf5.is_installed", lambda: False)
    with pytest.raises(Refused, match=r"needs h5py: .*install.*\[hdf5\]"):
        open_path(everything)
    done = glassfs_command("formats")
    assert done.status == 0
    assert [line for line in done.lines if ": " in line] == [
        "hdf5         .h5 .hdf5: needs h5py: install glassfs[hdf5]",
    ]


@pytest.mark.parametrize("size", [512, 4096, 8192, 1 << 20])
def test_user_blocks_of_any_size_are_skipped(tmp_path: Path, size: int) -> None:
    with h5py.File(tmp_path / "made.h5", "w", userblock_size=size) as file:
        file.create_dataset("x", data=values((40,)), chunks=(20,), compression="gzip")
    with glassfs.open(tmp_path / "made.h5") as opened:
        assert np.array_equal(opened["x"].numpy(), values((40,)))


def test_only_names_of_hdf5_files_are_searched_for_large_user_blocks() -> None:
    asked: list[int] = []

    def read(offset: int, size: int) -> bytes:
        asked.append(offset)
        return bytes(size)

    assert not FORMAT.recognises(Head(bytes(HEAD), "made.bin", 1 << 22, read))
    assert asked == []
    assert not FORMAT.recognises(Head(bytes(HEAD), "made.H5", 1 << 22, read))
    assert asked == [1 << bits for bits in range(12, 21)]


@pytest.fixture(scope="class", autouse=True)
def copies(request: pytest.FixtureRequest, scale: Scale) -> None:
    if request.cls is not None:
        request.cls.damaged_copies = scale(1, 4)


def test_small_file_is_listed_by_one_request(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    with glassfs.open(write_robomimic(tmp_path / "made.h5")) as opened:
        assert len(list(opened["data"])) == 6
        assert "agentview_image.npy" in list(opened["data/demo_10/obs"])
        assert "actions.npy" in list(opened["data/demo_12"])
    assert [request["do"] for request in asked] == ["open", "list"]


def test_chunks_much_longer_than_the_array_cost_little(tmp_path: Path) -> None:
    whole = values((60, 3), "u1")
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset(
            "x", data=whole, maxshape=(None, None), chunks=(60, 100_000), compression="gzip",
        )
    with glassfs.open(tmp_path / "made.h5", cache_size=8 << 20) as opened:
        assert np.array_equal(opened["x"].numpy(), whole)


class TestHdf5(FormatTests):
    format = FORMAT
    opening_share = 0.25
    most_seconds = 30.0

    def containers(self) -> Iterable[Path | bytes]:
        return made_files()

    def test_nothing_stays_open(self) -> None:
        open_bytes(made_files()[0])  # the server of workers stays, which a first container starts
        super().test_nothing_stays_open()


@cache
def made_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.h5")
        made = [
            write_everything(path).read_bytes(), write_everything(path, "latest", 1024).read_bytes(),
            write_links(path).read_bytes(),
        ]
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values((64, 32, 32, 3), "<f8"), chunks=(8, 32, 32, 3), compression="gzip")
            file["y"] = values((1_000, 300), "<f4")
        return [*made, path.read_bytes()]


def test_listing_a_folder_opens_no_file_of_it(tmp_path: Path) -> None:
    for number in range(5):
        write_robomimic(tmp_path / f"{number}.hdf5")
    (tmp_path / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5_000))
    pool().close()
    with glassfs.open(tmp_path) as opened:
        assert sorted(opened) == [*(f"{number}.hdf5" for number in range(5)), "bad.h5"]
        assert worker_processes(pool()) == []
        assert "data" in list(opened["3.hdf5"])
        assert len(worker_processes(pool())) == 1
        with pytest.raises(NotADirectoryError):
            list(opened["bad.h5"])
        assert not opened["bad.h5"].is_dir()
