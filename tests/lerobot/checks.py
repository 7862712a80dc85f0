"""What samples of a dataset must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.lerobot import client
from tests.lerobot.recipes import Episode

IMAGES = "observation.images."
ROUNDING = 3.5 / 255
"""Largest difference of a pixel whose neighbors have the same color: of conversion to 4:2:0 and back."""


def opened(root: Path, **options: Any) -> Any:
    return client.dataset_class()("local/test", root=root, **options)


def demand_samples(dataset: Any, episodes: Sequence[Episode], fps: float) -> None:
    """Compare all samples of a dataset with the episodes that were written."""
    expected = [(number, one, step) for number, one in enumerate(episodes) for step in range(one.steps)]
    assert len(dataset) == len(expected)
    for index, (number, one, step) in enumerate(expected):
        sample = dataset[index]
        assert int(sample["index"]) == index
        demand_sample(sample, number, one, step, fps)


def demand_sample(sample: Any, number: int, one: Episode, step: int, fps: float) -> None:
    """Compare one sample: numbers bit for bit."""
    assert (int(sample["episode_index"]), int(sample["frame_index"])) == (number, step)
    for name, values in (("observation.state", one.state), ("action", one.action), ("next.reward", one.reward)):
        assert sample[name].numpy().tobytes() == values[step].tobytes(), name
    assert bool(sample["next.done"]) == bool(one.done[step])
    assert sample["task"] == one.task
    assert sample["timestamp"].item() == np.float32(step / fps)
    for camera in one.cameras:
        demand_picture(sample[IMAGES + camera], one.shown(camera, step))


def demand_picture(found: Any, expected: Any) -> None:
    """Compare a tensor [3, H, W] from 0 to 1 with pixels [H, W, 3]. A video has an even number of rows and columns."""
    pixels = found.numpy().transpose(1, 2, 0)
    height, width, _ = expected.shape
    assert pixels.shape == (height + height % 2, width + width % 2, 3)
    assert np.abs(pixels[:height, :width] - expected / 255).max() <= ROUNDING
