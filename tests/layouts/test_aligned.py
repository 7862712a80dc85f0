"""Layouts whose steps are the times of one array, with which all others are aligned."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import glassfs
from glassfs.layouts.form import LayoutError
from tests.formats.hdf5_files import h5py

LAYOUT = """
name = "two-rates"
match = ["camera/time"]
[episodes]
whole = true
[steps]
base = "camera/time"
align = "{align}"
[roles]
state = "arm/joints/position"
reward = "arm/reward"
"""
CAMERA = np.arange(8) * 100
"""Times in milliseconds."""
ARM = np.array([150, 160, 195, 210, 380, 400, 401, 650])
PREVIOUS, NEAREST = [2, 3, 5, 6, 6, 7], [0, 0, 2, 4, 5, 6, 7, 7]
"""The rows of the arm that belong to steps. At the first two, no previous value exists."""


def arrays(scale: Any) -> dict[str, Any]:
    image = np.arange(8 * 4 * 6 * 3, dtype=np.uint8).reshape(8, 4, 6, 3)
    position = np.random.default_rng(1).normal(size=(8, 3)).astype("f4")
    return {
        "camera/time": CAMERA * scale, "camera/rgb": image, "arm/time": ARM * scale,
        "arm/joints/position": position, "arm/reward": np.arange(8.0), "arm/limits": np.ones((3, 2)),
        "unknown": np.ones(6), "gripper/time": np.array([5, 3]) * scale, "gripper/width": np.ones(2),
    }


def write(folder: Path, kind: str, scale: Any) -> Path:
    path = folder / f"run.{kind}"
    if kind == "npz":
        np.savez(path, **arrays(scale))
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays(scale).items():
                file[name] = values
    return path


@pytest.mark.parametrize(("kind", "scale"), [("npz", 1_000_000), ("npz", 1e-3), ("hdf5", 1_000_000)])
@pytest.mark.parametrize("align", ["previous", "nearest"])
def test_rows_belong_to_the_steps_of_the_base(tmp_path: Path, kind: str, scale: Any, align: str) -> None:
    layout, rows = tmp_path / "two.toml", PREVIOUS if align == "previous" else NEAREST
    layout.write_text(LAYOUT.format(align=align))
    with glassfs.open(write(tmp_path, kind, scale), layout=str(layout), views="parquet") as run:
        (row,) = run.episodes()
        assert (row["num_frames"], row["state_dim"], row["fps"]) == (len(rows), 3, pytest.approx(10))
        assert row["total_reward"] == sum(rows)
        steps = pq.read_table(io.BytesIO(run["steps.parquet"].bytes()))
        joints = [f"arm/joints/position.{number}" for number in range(3)]
        assert set(steps.column_names) == {"frame", "camera/time", *joints, "arm/reward", "arm/time"}
        values = np.stack([steps[name].to_numpy() for name in joints], 1)
        assert np.array_equal(values, arrays(scale)["arm/joints/position"][rows])
        assert steps["camera/time"].to_pylist() == (CAMERA * scale)[8 - len(rows) :].tolist()
        # Files keep what is stored.
        assert run["arm/joints/position"].numpy().shape == (8, 3)


@pytest.mark.parametrize("text", [
    'base = ["a", "b"]', 'base = "a/*"', 'base = "a"\ncount = "b"', 'base = "a"\nalign = "later"',
])
def test_mistakes_name_the_line(tmp_path: Path, text: str) -> None:
    layout = tmp_path / "wrong.toml"
    layout.write_text(f'name = "wrong"\nmatch = ["a"]\n[episodes]\nwhole = true\n[steps]\n{text}\n')
    with pytest.raises(LayoutError, match=r"wrong\.toml:[67]: "):
        glassfs.open(write(tmp_path, "npz", 1), layout=str(layout))
