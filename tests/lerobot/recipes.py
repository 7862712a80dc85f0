"""Episodes written as containers, and what LeRobot must give back for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from writers.kinodb import KinoWriter

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
