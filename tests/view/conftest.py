"""The browser of all tests of pages, and a container for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.chromium import Browser, browser
from tests.view.browsing import exported, image

FRAMES = 30


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def frames() -> Iterator[dict[str, Any]]:
    """Yield all frames of one camera, and every third of the other."""
    for number in range(FRAMES):
        yield {"front": image(number), **({"wrist": image(number)} if number % 3 == 0 else {})}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    steps = np.linspace(0, 6, FRAMES)
    with KinoWriter(folder / "run.kdb") as writer:
        writer.add_episode(
            np.sin(np.stack([steps, steps + 1, steps + 2], 1)), np.stack([steps], 1), images=frames(),
            task="open the top drawer", embodiment="arm", fps=100, success=True,
        )
        for number in range(1, 250):
            writer.add_episode(
                np.zeros((1, 1)), np.zeros((1, 1)), task=f"fetch cup {number}", embodiment=("arm", "hand")[number % 2],
                success=(None, True, False)[number % 3], total_reward=float(number * 37 % 101),
            )
    return exported(folder / "run.kdb", folder, "html+mp4")
