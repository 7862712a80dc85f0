"""A folder of containers, as a person has it, and what is opened of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import make_samples
import numpy as np
import pytest
from writers.idv import IdvWriter
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

import glassfs
from glassfs.content import Data

FRAMES = 6
EPOCH = 621_355_968_000_000_000
"""1970 in ticks of .NET."""


def video() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (FRAMES, 20, 30, 3), np.uint8)


def write_wave(path: Path) -> None:
    with WShardWriter(path, episode={"episode_id": "demo", "length_T": FRAMES}) as writer:
        writer.add_channel("rgb", video(), modality="rgb", codec="zstd")
        writer.add_channel("force", np.arange(FRAMES * 6000, dtype=np.float32).reshape(FRAMES, 6000))


def write_table(path: Path) -> None:
    with IdvWriter(path) as view:
        ticks = np.arange(20) * 864_000_000_000 + EPOCH
        view.add("Time", ticks, "DateTime")
        view.add("Score", np.arange(20, dtype=np.float32) / 4)
        view.add("Species", ["setosa", "virginica"] * 10)


def write_store(path: Path, value: float = 1.0) -> None:
    with KastoreWriter(path) as store:
        store.add("large", np.full(100_000, value))
        store.add("small", np.arange(3, dtype=np.int32))


def write_datasets(folder: Path) -> None:
    """What docs/python.md has."""
    folder.mkdir()
    make_samples.write_kinodb(folder / "run1.kdb")
    make_samples.write_kinodb(folder / "run2.kdb")
    make_samples.write_tree_sequence(folder / "trees.trees")
    write_wave(folder / "wave.wshard")
    write_table(folder / "table.idv")


class Recorded(Data):
    """Bytes, or as many zeros, and which of them were read: the range of each read, and how many in all."""

    def __init__(self, size: int, values: bytes = b"") -> None:
        self._size, self._values = size, values
        self.ranges: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        end = offset + len(buffer)
        assert 0 <= offset <= end <= self._size
        self.ranges.append((offset, end))
        buffer[:] = self._values[offset:end] if self._values else bytes(len(buffer))

    @property
    def count(self) -> int:
        return sum(end - start for start, end in self.ranges)

    @property
    def most(self) -> int:
        return max(end - start for start, end in self.ranges)


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be read only."""
    folder = tmp_path_factory.mktemp("library") / "datasets"
    write_datasets(folder)
    write_store(folder / "store.kas")
    (folder / "notes.txt").write_text("plain\n")
    return folder


@pytest.fixture
def data(datasets: Path) -> Iterator[glassfs.Library]:
    with glassfs.open(datasets) as opened:
        yield opened
