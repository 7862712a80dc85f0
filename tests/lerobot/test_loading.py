"""How LeRobot loads: windows over borders of episodes, worker processes, parts of a dataset, replaced containers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lerobot import client
from tests.lerobot.checks import IMAGES, demand_picture, demand_sample, demand_samples, opened
from tests.lerobot.conftest import Mounting
from tests.lerobot.recipes import Episode, episode, write
from tests.waiting import wait_until

client.require()


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


def test_streaming_reads_all_numbers(tmp_path: Path, mounted: Mounting) -> None:
    episodes = [episode(seed, 9, cameras=()) for seed in range(3)]
    write(tmp_path / "one.kdb", episodes)
    seen = set()
    for sample in streamed(mounted(tmp_path)):
        number, step = int(sample["episode_index"]), int(sample["frame_index"])
        seen.add((number, step))
        assert sample["action"].numpy().tobytes() == episodes[number].action[step].tobytes()
    assert seen == {(number, step) for number in range(3) for step in range(9)}


def test_streaming_gives_the_pictures_of_one_file(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot takes the time in the dataset for that in an MP4 file, so cameras with several files fail."""
    episodes = [episode(seed) for seed in range(3)]
    write(tmp_path / "one.kdb", episodes)
    samples = list(streamed(mounted(tmp_path)))
    assert len(samples) == sum(one.steps for one in episodes)
    for sample in samples:
        shown = episodes[int(sample["episode_index"])].shown("wrist", int(sample["frame_index"]))
        demand_picture(sample[f"{IMAGES}wrist"].squeeze(0), shown)


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


def streamed(root: Path) -> Iterator[Any]:
    return iter(client.streaming_class()("local/test", root=root, buffer_size=8, shuffle=False))


def test_a_replaced_container_is_seen_by_a_new_dataset(tmp_path: Path, mounted: Mounting) -> None:
    """LeRobot's cache goes by path and time of a data file, so the time must change with the container's."""
    first, second = [episode(1), episode(2)], [episode(11), episode(12)]
    write(tmp_path / "one.kdb", first)
    facts = (tmp_path / "one.kdb").stat()
    root = mounted(tmp_path)
    old = opened(root)
    demand_samples(old, first, 10)
    write(tmp_path / "new", second)
    # As rsync -t does: the same size and an older time.
    os.utime(tmp_path / "new", ns=(facts.st_atime_ns, facts.st_mtime_ns - 10**9))
    (tmp_path / "new").rename(tmp_path / "one.kdb")
    data = root / "data/chunk-000/file-000.parquet"

    def has_changed() -> bool:
        return _states(data) == np.concatenate([one.state for one in second]).tobytes()

    wait_until(has_changed)
    client.close_videos()
    demand_samples(opened(root), second, 10)


def test_an_added_container_is_seen_by_a_new_dataset(tmp_path: Path, mounted: Mounting) -> None:
    episodes = [episode(1), episode(2)]
    write(tmp_path / "a.kdb", episodes[:1])
    root = mounted(tmp_path)
    demand_samples(opened(root), episodes[:1], 10)
    write(tmp_path / "new", episodes[1:])
    (tmp_path / "new").rename(tmp_path / "b.kdb")
    wait_until(lambda: b'"total_episodes": 2' in (root / "meta/info.json").read_bytes())
    client.close_videos()
    demand_samples(opened(root), episodes, 10)


def _states(data: Path) -> bytes:
    import pyarrow.parquet

    try:
        table: Any = pyarrow.parquet.read_table(data)
    except OSError:
        return b""
    return np.stack(table["observation.state"].to_numpy()).tobytes()
