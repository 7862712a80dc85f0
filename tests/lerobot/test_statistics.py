"""Statistics compared with those that LeRobot computes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glassfs.view.lerobot import statistics
from tests.lerobot import client
from tests.lerobot.checks import opened
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import Episode, episode, picture, write

client.require()

EXACT = tuple(name for name in statistics.NAMES if name not in ("mean", "std"))
Values = np.ndarray[Any, Any]


def theirs(values: Values, axis: Any = 0) -> dict[str, Values]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = client.statistics().get_feature_stats(values, axis=axis, keepdims=values.ndim != 2)
    return {name: np.squeeze(np.asarray(one, np.float64)) for name, one in found.items()}


def demand_equal(found: statistics.Statistics, expected: dict[str, Values], values: Values) -> None:
    """Compare statistics: exactly but for what LeRobot rounds to the dtype of the values."""
    assert found.samples == expected["count"]
    ours = dict(zip(statistics.NAMES, np.squeeze(found.values), strict=True))
    # LeRobot 0.6.1 computes with booleans in float32.
    rounding = 1e-7 if values.dtype == np.bool_ else 0
    for name in EXACT:
        np.testing.assert_allclose(ours[name], expected[name], 0, rounding, err_msg=name)
    # LeRobot adds up to n values, each rounded.
    error = len(values) * np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps
    largest = np.abs(values).max() + 0.0
    np.testing.assert_allclose(ours["mean"], expected["mean"], rtol=0, atol=error * largest)
    np.testing.assert_allclose(ours["std"] ** 2, expected["std"] ** 2, rtol=0, atol=4 * error * largest**2)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i8", "<i4", "|b1"])
@pytest.mark.parametrize("rows", [2, 3, 99, 100, 1000])
def test_numbers_equal_those_of_lerobot(rows: int, dtype: str) -> None:
    random = np.random.default_rng(rows)
    for scale, offset in ((1, 0), (1e-6, 0), (100, 5000), (0, 0.1)):
        values = (random.standard_normal((rows, 5)) * scale + offset).astype(dtype)
        values[:, 1] = values[0, 1]
        values[:, 2] = np.round(values[:, 2].astype(np.float64))
        demand_equal(statistics.of_numbers([values], len(values)), theirs(values), values)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (120, 160), (299, 299), (300, 200), (480, 640), (200, 900)])
def test_pictures_equal_those_of_lerobot(size: tuple[int, int]) -> None:
    pixels = np.stack([picture(*size, number) for number in range(3)])
    counted = statistics.Pictures()
    for one in pixels:
        counted.add(Image.fromarray(one))
    reduced = np.stack([client.statistics().auto_downsample_height_width(one.transpose(2, 0, 1)) for one in pixels])
    # As 0.6.1 does: 0.4.4 squares bytes as bytes.
    expected = theirs(reduced.astype(np.float64), (0, 2, 3))
    found = counted.statistics()
    assert found.samples == expected["count"] == 3
    for ours, name in zip(found.values, statistics.NAMES, strict=True):
        np.testing.assert_allclose(ours, expected[name] / 255, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("frames", [1, 2, 99, 100, 101, 464, 465, 466, 1000, 300_000])
def test_the_same_frames_are_sampled(frames: int) -> None:
    assert statistics.sampled(frames) == client.statistics().sample_indices(frames)


def test_aggregates_equal_those_of_lerobot() -> None:
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((rows, 4)) + rows for rows in (2, 50, 700)]
    parts = [{"action": client.statistics().get_feature_stats(one, axis=0, keepdims=False)} for one in arrays]
    expected = client.statistics().aggregate_stats(parts)["action"]
    ours = [statistics.of_numbers([one], len(one)) for one in arrays]
    for found in (statistics.aggregate(ours), statistics.aggregate([statistics.aggregate(ours[:2]), ours[2]])):
        assert found.samples == expected["count"]
        for values, name in zip(found.values, statistics.NAMES, strict=True):
            np.testing.assert_allclose(values, expected[name], rtol=1e-9, err_msg=name)


def test_file_equals_what_lerobot_computes(tmp_path: Path, mounted: Mounting) -> None:
    """``stats.json`` of a dataset against LeRobot's statistics of each episode that it reads, and their aggregate."""
    episodes = [episode(1, 150), episode(2, 1), episode(3, 120, "other", size=(48, 64))]
    write(tmp_path / "a.kdb", episodes[:2])
    write(tmp_path / "b.kdb", episodes[2:])
    root = mounted(tmp_path)
    found = opened(root).meta.stats
    expected = recomputed(opened(root), episodes)
    assert set(found) == set(expected)
    for feature, ours in found.items():
        assert set(ours) == {*statistics.NAMES, "count"}
        for name, values in ours.items():
            assert np.shape(values) == np.shape(expected[feature][name]), (feature, name)
            rounding = 2e-3 if "image" in feature else 1e-5
            np.testing.assert_allclose(values, expected[feature][name], 1e-5, rounding, err_msg=f"{feature} {name}")


def recomputed(dataset: Any, episodes: list[Episode]) -> dict[str, Any]:
    """Return the statistics of the samples that a dataset gives, and of the frames that were written."""
    parts, first = [], 0
    for one in episodes:
        samples = [dataset[first + step] for step in range(one.steps)]
        first += one.steps
        part: dict[str, Any] = {}
        for feature, about in dataset.features.items():
            if about["dtype"] != "video":
                values = np.stack([sample[feature].numpy() for sample in samples])
                part[feature] = client.statistics().get_feature_stats(
                    values.astype(np.float64), axis=0, keepdims=values.ndim == 1,
                )
                continue
            camera = feature.rpartition(".")[2]
            shown = [one.shown(camera, step) for step in client.statistics().sample_indices(one.steps)]
            pixels = np.stack(shown).transpose(0, 3, 1, 2).astype(np.float64)
            kept = client.statistics().get_feature_stats(pixels, axis=(0, 2, 3), keepdims=True)
            part[feature] = {
                name: values if name == "count" else values[0] / 255 for name, values in kept.items()
            }
        parts.append(part)
    found: dict[str, Any] = client.statistics().aggregate_stats(parts)
    return found
