"""A DataLoader of PyTorch, whose workers get the file system pickled or were forked off one that was in use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from glassfs.filesystem import GlassfsFileSystem
from tests.conftest import Scale
from tests.optional import package

torch = package("torch", "torch")
pytestmark = pytest.mark.slow


class Ranges:
    """Ranges of files; a dataset is what has a length and items."""

    def __init__(self, fs: GlassfsFileSystem, wanted: list[tuple[str, int, int]]) -> None:
        self.fs = fs
        self.wanted = wanted

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, number: int) -> tuple[int, bytes]:
        name, start, end = self.wanted[number]
        if number % 2:
            return number, self.fs.cat_file(name, start, end)
        with self.fs.open(name) as file:
            file.seek(start)
            return number, file.read(end - start)


def as_they_are(items: list[Any]) -> list[Any]:
    return items


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_read_ranges(place: Path, method: str, scale: Scale) -> None:
    fs = GlassfsFileSystem(place, cache_size=1 << 20)
    names = fs.glob("**/*.npy") + fs.glob("**/*.png")
    with ThreadPoolExecutor(4) as pool:  # there are threads, and all is in use, when workers are forked off
        whole = dict(zip(names, pool.map(fs.cat_file, names), strict=True))
    numbers = range(scale(500, 1000))
    wanted = [(names[number * 7 % len(names)], number % 97, number % 97 + 3 * number) for number in numbers]
    loader = torch.utils.data.DataLoader(
        Ranges(fs, wanted), batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=method,
        persistent_workers=True, collate_fn=as_they_are,
    )
    for _ in range(2):
        got = dict(item for batch in loader for item in batch)
        assert got == {number: whole[name][start:end] for number, (name, start, end) in enumerate(wanted)}
    assert fs.cat_file(names[0]) == whole[names[0]]
