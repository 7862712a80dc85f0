"""Containers inside containers, and models in shards, mounted: versions and attributes are those of all files."""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.safetensors import packed, write_safetensors, write_sharded

import glassfs as library
from glassfs.filesystem import GlassfsFileSystem
from tests.conftest import DATA
from tests.formats.npz_files import npy, saved, zipped
from tests.mount.conftest import Mounted
from tests.mount.mounts import bytes_below, opened
from tests.waiting import wait_until

INNER = {
    "a.kdb": (DATA / "kinodb/cli_jpeg85.kdb").read_bytes(), "b.trees": (DATA / "kastore/small.trees").read_bytes(),
    "c/large.npz": saved({"noise": np.random.default_rng(2).integers(0, 200, 600_000)}),
    "c/deep.npz": zipped(("d.npz", saved({"y": np.arange(9)}, True)), ("x.npy", npy(np.arange(5)))),
}
X = npy(np.arange(7))


def archive(method: int, **others: bytes) -> bytes:
    return zipped(("first.npy", X), *INNER.items(), *others.items(), compression=method)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the containers as files of their own, and with two archives of them."""
    for name, data in INNER.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "data" / "stored.npz").write_bytes(archive(zipfile.ZIP_STORED))
    (tmp_path / "data" / "deflated.npz").write_bytes(archive(zipfile.ZIP_DEFLATED))
    return tmp_path / "data"


@pytest.mark.slow
def test_files_are_those_of_the_containers_alone(mounted: Mounted, folder: Path, tmp_path: Path) -> None:
    with mounted(folder, options=["cache_size=8M"]) as mount:
        expected = {name: bytes_below(mount.path / name) for name in INNER if name != "c/deep.npz"}
        assert all(expected.values())
        for outer in ("stored.npz", "deflated.npz"):
            shutil.copytree(mount.path / outer, tmp_path / outer)
            for name, files in expected.items():
                assert bytes_below(tmp_path / outer / name) == files
            deep = mount.path / outer / "c/deep.npz/d.npz"
            assert np.array_equal(np.load(deep / "y.npy"), np.arange(9))
            assert os.getxattr(deep, "user.glassfs.format") == b"npz"
            assert os.getxattr(mount.path / outer / "a.kdb", "user.glassfs.format") == b"kinodb"
            listed = {entry.name: entry.inode() for entry in os.scandir(mount.path / outer / "c")}
            assert listed == {name: (mount.path / outer / "c" / name).stat().st_ino for name in listed}
        for view in ("data.js", "episodes/0/action.zarr/zarr.json"):
            alone = mount.path / ".glassfs/views" / "a.kdb" / view
            assert (mount.path / ".glassfs/views/stored.npz/a.kdb" / view).read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_replaced_archive_shows_its_new_contents(mounted: Mounted, folder: Path) -> None:
    outer = folder / "stored.npz"
    with mounted(folder) as mount:
        path = mount.path / "stored.npz/c/deep.npz/x.npy"
        before, number = path.read_bytes(), path.stat().st_ino
        with opened(path) as held:
            other = zipped(("first.npy", X), ("c/deep.npz", saved({"x": np.arange(99)})))
            (folder / "new").write_bytes(other)
            os.replace(folder / "new", outer)
            wait_until(lambda: path.stat().st_ino != number)
            assert np.array_equal(np.load(path), np.arange(99))
            with suppress(OSError):  # stale, or the version that was opened
                assert os.pread(held, 9999, 0) == before
        outer.unlink()
        wait_until(lambda: not path.exists())


@pytest.mark.slow
def test_library_opens_what_is_inside(folder: Path) -> None:
    alone = library.open(folder / "a.kdb")
    for outer in ("stored.npz", "deflated.npz"):
        data = library.open(folder / outer)
        state, inner = data["a.kdb/episodes/0/state"], "a.kdb/episodes/0/state.npy"
        assert np.array_equal(pickle.loads(pickle.dumps(state)).numpy(), alone["episodes/0/state"].numpy())
        assert GlassfsFileSystem(folder / outer).cat_file(inner) == data[inner].bytes()
        assert inner in GlassfsFileSystem(folder / outer).find("a.kdb")
        assert list(data["a.kdb"].episodes()) == list(alone.episodes())
        noise = data["c/large.npz/noise"]
        assert np.array_equal(noise[5:9], np.random.default_rng(2).integers(0, 200, 600_000)[5:9])
        assert isinstance(noise.numpy().base, np.ndarray) or outer == "deflated.npz"


def unless_stale(read: Callable[[], Any]) -> Any:
    """Return what is read, None while what was opened is of a version that is replaced."""
    try:
        return read()
    except OSError as error:
        assert error.errno == errno.ESTALE
        return None


def test_missing_and_replaced_shards_show_in_a_mount(mounted: Mounted, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    index = write_sharded(folder, [{"a": np.ones(1)}, {"b": np.full(1, 2.0)}])
    second = folder / "model-00002-of-00002.safetensors"
    second.rename(tmp_path / "kept")
    with mounted(folder) as mount:
        tensors = mount.path / index.name / "tensors"

        def value() -> Any:
            # Not by its path: NumPy reads with the C library, and an error would become a short file.
            return unless_stale(lambda: np.load(io.BytesIO((tensors / "b.npy").read_bytes())).tolist())

        assert os.listdir(tensors) == ["a.npy"]
        said = os.getxattr(tensors, "user.glassfs.error")
        assert said == b"model-00002-of-00002.safetensors: is missing, and with it 1 tensor: b"
        with pytest.raises(FileNotFoundError):
            os.stat(tensors / "b.npy")
        (tmp_path / "kept").rename(second)
        wait_until(lambda: sorted(os.listdir(tensors)) == ["a.npy", "b.npy"])
        assert value() == [2]
        assert "user.glassfs.error" not in os.listxattr(tensors)
        write_safetensors(tmp_path / "new", {"b": np.full(1, 3.0)})
        (tmp_path / "new").rename(second)
        wait_until(lambda: value() == [3])
        second.write_bytes(packed({"b": 7}))
        wait_until(lambda: unless_stale(lambda: os.listdir(tensors)) == ["a.npy"])
        said = wait_until(lambda: unless_stale(lambda: os.getxattr(tensors, "user.glassfs.error")))
        assert b"tensors/b: has no description" in said
        assert (mount.path / f".glassfs/source/{index.name}").read_bytes() == index.read_bytes()
    with mounted(index) as mount:
        assert np.load(mount.path / "tensors/a.npy").tolist() == [1]
