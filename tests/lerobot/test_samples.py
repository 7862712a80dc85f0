"""All samples that LeRobotDataset returns, compared with what the containers were written from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.lerobot import client
from tests.lerobot.checks import demand_sample, demand_samples, opened
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import EMBODIMENT, Episode, episode, write
from tests.mount.mounts import glassfs

client.require()


def gaps() -> list[Episode]:
    """Episodes without first frames, and cameras without later and last ones."""
    found = [episode(seed, 9) for seed in (1, 2)]
    for step in (0, 1):
        found[0].cameras["front"][step] = found[0].cameras["wrist"][step] = None
    for step in (3, 4, 8):
        found[1].cameras["wrist"][step] = None
    return found


def unusual() -> list[Episode]:
    """Constant columns, NaN and infinities."""
    one = episode(1)
    one.state[:, 0], one.action[:, 1] = 0.1, 0
    one.state[3, 1], one.state[4, 2], one.action[5, 0] = np.nan, np.inf, -np.inf
    return [one, episode(2)]


CASES: dict[str, tuple[list[Episode], float]] = {
    "odd sizes": ([episode(1, size=(33, 17)), episode(2, size=(33, 17))], 10),
    "one pixel": ([episode(1, size=(1, 1))], 10),
    "large": ([episode(1, 3, size=(480, 640), cameras=("top",))], 10),
    "gaps": (gaps(), 10),
    "one frame": ([episode(1, 1)], 10),
    "no cameras": ([episode(1, cameras=()), episode(2, cameras=())], 10),
    "constants and NaN": (unusual(), 10),
    **{f"{rate} Hz": ([episode(1, 40), episode(2, 25)], rate) for rate in (5, 15, 29.97, 50)},
}


def test_samples_of_a_mount(root: Path, written: list[Episode]) -> None:
    demand_samples(opened(root), written, 10)


@pytest.mark.parametrize("name", CASES)
def test_samples_of_unusual_episodes(name: str, tmp_path: Path, mounted: Mounting) -> None:
    episodes, fps = CASES[name]
    write(tmp_path / "one.kdb", episodes, fps)
    demand_samples(opened(mounted(tmp_path)), episodes, fps)


def test_samples_of_an_export(folder: Path, written: list[Episode], tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = glassfs("export", "--views", "lerobot", folder, "lerobot", target)
    assert done.returncode == 0, done.stderr
    demand_samples(opened(target / "lerobot" / EMBODIMENT), written, 10)


def test_one_container_is_a_dataset_as_well(folder: Path, written: list[Episode], mounted: Mounting) -> None:
    demand_samples(opened(mounted(folder / "b.kdb")), written[3:], 10)


def test_samples_late_in_a_long_dataset(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot compares times in float32, which is coarser late in a video."""
    steps = 2000
    episodes = [episode(seed, steps, size=(8, 8), cameras=("top",)) for seed in range(40)]
    write(tmp_path / "one.kdb", episodes, 29.97)
    dataset = opened(mounted(tmp_path))
    for number in (0, 14, 15, 16, 39):
        for step in (0, 1, 1000, 1999):
            demand_sample(dataset[number * steps + step], number, episodes[number], step, 29.97)
