"""Statistics compared with those that LeRobot computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassfs.view.lerobot import statistics
from tests.lerobot import client
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import Episode, episode, opened, write

client.require()


@pytest.mark.parametrize("frames", [1, 2, 99, 100, 101, 464, 465, 466, 1000, 300_000])
def test_the_same_frames_are_sampled(frames: int) -> None:
    assert statistics.sampled(frames) == client.statistics().sample_indices(frames)


@pytest.mark.parametrize("size", [(1, 1), (120, 160), (299, 299), (300, 200), (480, 640), (200, 900)])
def test_the_same_pixels_are_sampled(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, *size), np.uint8)
    step = statistics.stride(size[1], size[0])
    assert np.array_equal(pixels[:, ::step, ::step], client.statistics().auto_downsample_height_width(pixels))


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
            if name.startswith("q"):  # LeRobot's have the width of a bin, and that of a dataset is their mean
                rounding += np.ptp([ours["min"], ours["max"]]) / 5000
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
            # As 0.6.1 does: 0.4.4 squares bytes as bytes.
            pixels = np.stack(shown).transpose(0, 3, 1, 2).astype(np.float64)
            kept = client.statistics().get_feature_stats(pixels, axis=(0, 2, 3), keepdims=True)
            part[feature] = {name: values if name == "count" else values[0] / 255 for name, values in kept.items()}
        parts.append(part)
    found: dict[str, Any] = client.statistics().aggregate_stats(parts)
    return found
