"""A model in shards, mounted: one directory for its index, whose versions and attributes are those of all its files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from writers.safetensors import packed, write_safetensors, write_sharded

from tests.mount.conftest import Mounted
from tests.optional import package
from tests.waiting import wait_until

ERROR = "user.glassfs.error"


def bfloat16(*values: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, package("ml_dtypes").bfloat16)


def test_tensors_of_all_shards_are_files(mounted: Mounted, tmp_path: Path) -> None:
    index = write_sharded(tmp_path, [{"a.weight": bfloat16(1.5, -2)}, {"b/c": np.arange(6, dtype="f4").reshape(2, 3)}])
    with mounted(tmp_path) as mount:
        shown = mount.path / index.name
        assert sorted(os.listdir(shown / "tensors")) == ["a.weight.npy", "b%2Fc.npy"]
        assert np.load(shown / "tensors/a.weight.npy").tolist() == [1.5, -2]
        assert np.load(shown / "tensors/b%2Fc.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
        names = ("dtype", "shape", "stored_bytes", "file", "key")
        found = [os.getxattr(shown / "tensors/a.weight.npy", f"user.glassfs.{name}").decode() for name in names]
        assert found == ["BF16", "[2]", "4", "model-00001-of-00002.safetensors", "a.weight"]
        assert (mount.path / f".glassfs/source/{index.name}").read_bytes() == index.read_bytes()
    with mounted(index) as mount:
        assert np.load(mount.path / "tensors/a.weight.npy").tolist() == [1.5, -2]


def test_missing_and_replaced_shards_show_in_a_mount(mounted: Mounted, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    index = write_sharded(folder, [{"a": bfloat16(1)}, {"b": bfloat16(2)}])
    second = folder / "model-00002-of-00002.safetensors"
    second.rename(tmp_path / "kept")
    with mounted(folder) as mount:
        tensors = mount.path / index.name / "tensors"
        assert os.listdir(tensors) == ["a.npy"]
        said = os.getxattr(tensors, ERROR)
        assert said == b"model-00002-of-00002.safetensors: is missing, and with it 1 tensor: b"
        with pytest.raises(FileNotFoundError):
            os.stat(tensors / "b.npy")
        (tmp_path / "kept").rename(second)
        wait_until(lambda: sorted(os.listdir(tensors)) == ["a.npy", "b.npy"])
        assert _values(tensors / "b.npy") == [2]
        assert ERROR not in os.listxattr(tensors)
        write_safetensors(tmp_path / "new", {"b": bfloat16(3)})
        (tmp_path / "new").rename(second)
        wait_until(lambda: _values(tensors / "b.npy") == [3])
        second.write_bytes(packed({"b": 7}))
        wait_until(lambda: b"tensors/b: has no description" in _attribute(tensors))


def _values(path: Path) -> list[float] | None:
    """Return the values of an array, None where the file that was opened is of a version that is replaced."""
    try:
        found: list[float] = np.load(path).tolist()
    except OSError as error:
        assert error.errno == errno.ESTALE
        return None
    return found


def _attribute(path: Path) -> bytes:
    os.listdir(path)
    return os.getxattr(path, ERROR) if ERROR in os.listxattr(path) else b""
