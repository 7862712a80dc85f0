"""A model in shards, mounted: one directory for its index, whose versions and attributes are those of all its files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from writers.safetensors import packed, write_safetensors, write_sharded

from tests.mount.conftest import Mounted
from tests.waiting import wait_until

ERROR = "user.glassfs.error"


def test_missing_and_replaced_shards_show_in_a_mount(mounted: Mounted, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    index = write_sharded(folder, [{"a": np.ones(1)}, {"b": np.full(1, 2.0)}])
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
        write_safetensors(tmp_path / "new", {"b": np.full(1, 3.0)})
        (tmp_path / "new").rename(second)
        wait_until(lambda: _values(tensors / "b.npy") == [3])
        second.write_bytes(packed({"b": 7}))
        wait_until(lambda: b"tensors/b: has no description" in _attribute(tensors))
        assert (mount.path / f".glassfs/source/{index.name}").read_bytes() == index.read_bytes()
    with mounted(index) as mount:
        assert np.load(mount.path / "tensors/a.npy").tolist() == [1]


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
