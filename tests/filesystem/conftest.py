"""Containers, and the file systems of fsspec in them."""

from __future__ import annotations

import random
from pathlib import Path

import make_samples
import pytest
from writers.kastore import KastoreWriter

from glassfs.filesystem import GlassfsFileSystem

Range = tuple[str, int, int]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the samples of all formats, to be read only."""
    folder = tmp_path_factory.mktemp("filesystem") / "data"
    folder.mkdir()
    make_samples.write_all(folder)
    (folder / "notes.txt").write_text("plain\n")
    (folder / "inner").mkdir()
    make_samples.write_kinodb(folder / "inner/other.kdb")
    return folder


@pytest.fixture
def robot(place: Path) -> GlassfsFileSystem:
    return GlassfsFileSystem(place / "robot.kdb")


@pytest.fixture
def folder(place: Path) -> GlassfsFileSystem:
    return GlassfsFileSystem(place)


def write_values(path: Path, value: float, count: int = 1000) -> None:
    """A container with ``values.npy``, all of them the same."""
    with KastoreWriter(path) as store:
        store.add("values", [value] * count)


def ranges(files: dict[str, bytes], count: int, seed: int) -> list[Range]:
    generator = random.Random(seed)
    found = []
    for _ in range(count):
        name = generator.choice(sorted(files))
        start = generator.randrange(len(files[name]) + 1)
        found.append((name, start, generator.randrange(start, len(files[name]) + 1)))
    return found


@pytest.fixture
def files(folder: GlassfsFileSystem) -> dict[str, bytes]:
    return {name: folder.cat_file(name) for name in folder.find("") if "/images/" not in name or "00001" in name}
