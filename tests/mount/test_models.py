"""Models in safetensors files, mounted: tensors are ranges of the file, and what was wrong is said."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from writers.safetensors import write_safetensors

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
