"""Samples that LeRobot gives, in windows, worker processes and parts of a dataset, compared with what was written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.lerobot import client
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import (
    IMAGES,
    Episode,
    demand_picture,
    demand_sample,
    demand_samples,
    episode,
    opened,
    write,
)
from tests.waiting import wait_until

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


def test_samples_late_in_a_long_dataset(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot compares times in float32, which is coarser late in a video."""
    steps = 2000
    episodes = [episode(seed, steps, size=(8, 8), cameras=("top",)) for seed in range(40)]
    write(tmp_path / "one.kdb", episodes, 29.97)
    dataset = opened(mounted(tmp_path))
    for number in (0, 14, 15, 16, 39):
        for step in (0, 1, 1000, 1999):
            demand_sample(dataset[number * steps + step], number, episodes[number], step, 29.97)


def test_windows_end_at_the_borders_of_episodes(root: Path, written: list[Episode]) -> None:
    steps = [-2, 0, 1]
    times = [step / 10 for step in steps]
    dataset = opened(root, delta_timestamps={"action": times, f"{IMAGES}front": times})
    index = 0
    for one in written:
        for step in range(one.steps):
            sample = dataset[index]
            index += 1
            wanted = [step + delta for delta in steps]
            shown = np.clip(wanted, 0, one.steps - 1)
            is_outside = [not 0 <= number < one.steps for number in wanted]
            assert sample["action"].numpy().tobytes() == one.action[shown].tobytes()
            assert sample["action_is_pad"].tolist() == is_outside
            assert sample[f"{IMAGES}front_is_pad"].tolist() == is_outside
            for number, found in zip(shown, sample[f"{IMAGES}front"], strict=True):
                demand_picture(found, one.shown("front", number))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_read_the_same(method: str, root: Path, written: list[Episode]) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        opened(root), 4, shuffle=True, num_workers=2, multiprocessing_context=method, persistent_workers=True,
    )
    total = sum(one.steps for one in written)
    for _ in range(2):
        seen = []
        for batch in loader:
            for number in range(len(batch["index"])):
                seen.append(int(batch["index"][number]))
                sample = {name: values[number] for name, values in batch.items()}
                where = int(sample["episode_index"])
                demand_sample(sample, where, written[where], int(sample["frame_index"]), 10)
        assert sorted(seen) == list(range(total))


def test_some_episodes_of_a_dataset(root: Path, written: list[Episode]) -> None:
    dataset = opened(root, episodes=[1, 3])
    assert len(dataset) == written[1].steps + written[3].steps
    expected = [(number, step) for number in (1, 3) for step in range(written[number].steps)]
    for index, (number, step) in enumerate(expected):
        demand_sample(dataset[index], number, written[number], step, 10)


def test_streaming_reads_numbers_and_pictures(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot takes the time in the dataset for that in an MP4 file, so cameras with several files fail."""
    episodes = [episode(seed, 9) for seed in range(3)]
    write(tmp_path / "one.kdb", episodes)
    seen = set()
    streaming = client.module("datasets.streaming_dataset").StreamingLeRobotDataset
    for sample in streaming("local/test", root=mounted(tmp_path), buffer_size=8, shuffle=False):
        number, step = int(sample["episode_index"]), int(sample["frame_index"])
        seen.add((number, step))
        assert sample["action"].numpy().tobytes() == episodes[number].action[step].tobytes()
        demand_picture(sample[f"{IMAGES}wrist"].squeeze(0), episodes[number].shown("wrist", step))
    assert seen == {(number, step) for number in range(3) for step in range(9)}


def test_more_episodes_than_descriptors(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot 0.4.4 keeps every MP4 file open."""
    episodes = [episode(seed, 2) for seed in range(120)]
    write(tmp_path / "one.kdb", episodes)
    dataset = opened(mounted(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for index in range(len(dataset)):
        demand_sample(dataset[index], index // 2, episodes[index // 2], index % 2, 10)
    assert len(os.listdir("/proc/self/fd")) < before + 20


def test_ten_thousand_episodes(tmp_path: Path, mounted: Mounting) -> None:
    data = tmp_path / "data"
    data.mkdir()
    each = [episode(number, 2, f"task {number % 7}", cameras=()) for number in range(500)]
    for number in range(20):
        write(data / f"{number:02d}.kdb", each)
    dataset = opened(mounted(data))
    assert (dataset.num_episodes, len(dataset)) == (10_000, 20_000)
    for index in (0, 1, 999, 1000, 12_345, 19_999):
        demand_sample(dataset[index], index // 2, each[index // 2 % 500], index % 2, 10)


def test_a_replaced_container_is_seen_by_a_new_dataset(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot's cache goes by path and time of a data file, so the time must change with the container's."""
    first, second = [episode(1), episode(2)], [episode(11), episode(12)]
    write(tmp_path / "one.kdb", first)
    facts = (tmp_path / "one.kdb").stat()
    root = mounted(tmp_path)
    data = root / "data/chunk-000/file-000.parquet"
    before = data.read_bytes()
    demand_samples(opened(root), first, 10)
    write(tmp_path / "new", second)
    # As rsync -t does: the same size and an older time.
    os.utime(tmp_path / "new", ns=(facts.st_atime_ns, facts.st_mtime_ns - 10**9))
    (tmp_path / "new").rename(tmp_path / "one.kdb")

    def has_changed() -> bool:
        with suppress(OSError):  # the former file
            return data.read_bytes() != before
        return False

    wait_until(has_changed)
    client.close_videos()
    demand_samples(opened(root), second, 10)
