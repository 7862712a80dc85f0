"""Episodes written as containers, and what LeRobot must give back for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from writers.kinodb import KinoWriter

from tests.lerobot import client

Values = np.ndarray[Any, Any]
EMBODIMENT = "widowx"
GRAY = 128


class Episode(NamedTuple):
    """Values of the steps, and the frames of the cameras: uint8 [H, W, 3], None where a camera has none."""

    state: Values
    action: Values
    reward: Values
    done: Values
    task: str
    cameras: dict[str, list[Values | None]]

    @property
    def steps(self) -> int:
        return len(self.state)

    def shown(self, camera: str, step: int) -> Values:
        """Return the frame that a video shows at a step: the last one up to this, gray before the first."""
        frames = [frame for frame in self.cameras[camera][: step + 1] if frame is not None]
        if frames:
            return frames[-1]
        size = next(frame.shape for frame in self.cameras[camera] if frame is not None)
        return np.full(size, GRAY, np.uint8)


def picture(height: int, width: int, *seed: int) -> Values:
    """Return squares of 8 pixels of one color each, which 4:2:0 keeps but for rounding."""
    few = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3)).astype(np.uint8)
    return few.repeat(8, 0).repeat(8, 1)[:height, :width]


def episode(
    seed: int, steps: int = 12, task: str = "pick up the block", size: tuple[int, int] = (48, 64),
    cameras: Sequence[str] = ("front", "wrist"),
) -> Episode:
    """Return an episode of random values; ``size`` is height and width."""
    random = np.random.default_rng(seed)
    frames: dict[str, list[Values | None]] = {
        name: [picture(*size, seed, number, step) for step in range(steps)] for number, name in enumerate(cameras)
    }
    return Episode(
        random.standard_normal((steps, 7)).astype(np.float32), random.standard_normal((steps, 4)).astype(np.float32),
        random.random(steps).astype(np.float32), np.arange(steps) == steps - 1, task, frames,
    )


def write(path: Path, episodes: Sequence[Episode], fps: float = 10) -> None:
    """Write a container of these episodes."""
    with KinoWriter(path) as writer:
        for one in episodes:
            writer.add_episode(
                one.state, one.action, one.reward, one.done, images=_images(one), embodiment=EMBODIMENT,
                task=one.task, fps=fps,
            )


def _images(one: Episode) -> Iterator[dict[str, Values]]:
    for step in range(one.steps):
        shown = {name: frames[step] for name, frames in one.cameras.items()}
        yield {name: frame for name, frame in shown.items() if frame is not None}


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
