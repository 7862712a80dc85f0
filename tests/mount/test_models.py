"""Models in safetensors files, mounted: tensors are ranges of the file, and what was wrong is said."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from writers.safetensors import described, packed, write_safetensors

from tests.mount.conftest import Mounted

pytestmark = pytest.mark.slow

SHARDS = 3


def test_tensors_of_a_sharded_model_are_mapped(tmp_path: Path, mounted: Mounted) -> None:
    """Each shard is a directory, and the index a file; numpy maps the pages of the mount."""
    folder = tmp_path / "model"
    folder.mkdir()
    values = {f"layers.{number}.weight": np.random.default_rng(number).random((300, 200)) for number in range(SHARDS)}
    for number, (name, array) in enumerate(values.items(), 1):
        write_safetensors(folder / f"model-{number:05d}-of-{SHARDS:05d}.safetensors", {name: array})
    (folder / "model.safetensors.index.json").write_text("{}")
    with mounted(folder) as mount:
        assert (mount.path / "model.safetensors.index.json").read_text() == "{}"
        for number, (name, array) in enumerate(values.items(), 1):
            shown = mount.path / f"model-{number:05d}-of-{SHARDS:05d}.safetensors/tensors" / f"{name}.npy"
            mapped = np.load(shown, mmap_mode="r")
            assert isinstance(mapped, np.memmap) and np.array_equal(mapped[100:103, 7], array[100:103, 7])
            assert np.array_equal(mapped, array)
            stored = (folder / f"model-{number:05d}-of-{SHARDS:05d}.safetensors").read_bytes()
            offset = int(os.getxattr(shown, "user.glassfs.offset"))
            assert stored[offset : offset + array.nbytes] == mapped.tobytes()
            del mapped


def test_types_and_labels_are_attributes(tmp_path: Path, mounted: Mounted) -> None:
    header = {"a/b": described("BF16", [2], 0, 4), "c": described("F4", [2, 2], 4, 6)}
    (tmp_path / "x.safetensors").write_bytes(packed(header, b"\x80\x3f\x00\xc0ab"))
    with mounted(tmp_path / "x.safetensors") as mount:
        shown = mount.path / "tensors/a%2Fb.npy"
        assert np.load(shown).tolist() == [1.0, -2.0]
        assert os.getxattr(shown, "user.glassfs.dtype") == b"BF16"
        assert os.getxattr(shown, "user.glassfs.key") == b"a/b"
        other = mount.path / "tensors/c.bin"
        assert other.read_bytes() == b"ab"
        assert os.getxattr(other, "user.glassfs.dtype") == b"F4"
        assert os.getxattr(other, "user.glassfs.shape") == b"[2, 2]"
        assert sorted(os.listdir(mount.path)) == [".glassfs", "meta", "tensors"]


def test_a_file_with_a_wrong_header_stays_a_file_and_says_why(tmp_path: Path, mounted: Mounted) -> None:
    bad = packed({"a": described("U8", [3], 0, 3)}, b"ab")
    (tmp_path / "bad.safetensors").write_bytes(bad)
    with mounted(tmp_path) as mount:
        shown = mount.path / "bad.safetensors"
        assert shown.read_bytes() == bad
        assert b"tensors/a: has the bytes 0 to 3, but the data have 2" in os.getxattr(shown, "user.glassfs.error")
