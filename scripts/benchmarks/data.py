"""The containers, and what the peers mount: their exported tree as files, as a squashfs and as a tar."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import contents
from benchmarks.contents import MIB

GLASSFS = str(Path(sys.executable).with_name("glassfs"))
PATHS_PER_COMMAND = 5000


@dataclass(frozen=True)
class Container:
    """``size`` counts bytes, frames, episodes, rows or keys, whatever ``write`` takes; ``least`` bounds scaling.

    ``shown`` gives the paths that the peers have as well, for that size; none means everything.
    """

    file: str
    size: int
    least: int
    write: Callable[[Path, int], None]
    shown: Callable[[int], list[str]]


def _paths(*paths: str) -> Callable[[int], list[str]]:
    return lambda _size: list(paths)


def _episodes(count: int) -> list[str]:
    return [f"episodes/{number}/meta/episode.json" for number in range(count)]


FRAMES = "episodes/0/images/front"

CONTAINERS = {
    "array": Container("array.kas", 1024 * MIB, MIB, contents.write_array, _paths("data.npy")),
    "raw": Container("raw.kdb", 1024 * MIB, MIB, contents.write_raw_frames, _paths(FRAMES)),
    "pictures": Container("pictures.kdb", 20_000, 50, contents.write_pictures, _paths(FRAMES)),
    "frames": Container("frames.kdb", 20_000, 50, contents.write_small_frames, _paths(FRAMES)),
    "episodes": Container("episodes.kdb", 50_000, 100, contents.write_episodes, _episodes),
    "zstd": Container(
        "zstd.wshard", 512 * MIB, MIB, partial(contents.write_film, codec="zstd"), _paths("signal/film.npy")
    ),
    "lz4": Container(
        "lz4.wshard", 512 * MIB, MIB, partial(contents.write_film, codec="lz4"), _paths("signal/film.npy")
    ),
    "films": Container("films.wshard", 256 * MIB, 16 * MIB, contents.write_films, _paths("signal")),
    "wide": Container(
        "wide.idv", 50_000, 1000, partial(contents.write_table, columns=contents.WIDE), _paths("columns/Features.npy")
    ),
    "long": Container(
        "long.idv", 1_000_000, 50_000, partial(contents.write_table, columns=contents.NARROW),
        _paths("columns/Features.npy"),
    ),
    "columns": Container("columns.idv", 1_000_000, 50_000, contents.write_columns, _paths("columns")),
    "sparse": Container("sparse.kdb", 5 << 30, 2 * MIB, contents.write_sparse_frames, _paths()),
    "store": Container("store.kas", 20 * MIB, MIB, contents.write_store, _paths("nodes/time.npy")),
    "genotypes": Container("genotypes.trees", 20_000_000, 1_000_000, contents.write_genotypes, _paths()),
    "npz": Container("stored.npz", 1024 * MIB, MIB, contents.write_stored_npz, _paths("data.npy")),
    "npz-deflated": Container("deflated.npz", 512 * MIB, MIB, contents.write_deflated_npz, _paths("data.npy")),
    "hdf5": Container("packed.h5", 1024 * MIB, MIB, contents.write_hdf5, _paths("data.npy")),
    "demonstrations": Container("demonstrations", 20, 2, contents.write_demonstrations, _paths()),
    "trained": Container("trained", 2_000, 100, contents.write_trained, _paths()),
    "recording": Container("run.mcap", 1_000_000, 10_000, contents.write_recording, _paths()),
    "keys": Container("keys.ikv", 20_000, 200, contents.write_keys, _paths("root")),
    "folder": Container("folder", 10_000, 100, partial(contents.write_folder, per_folder=100), _paths()),
    "dataset": Container("dataset", 3_000, 24, contents.write_dataset, _paths()),
    "changing": Container("changing.kas", MIB, MIB, contents.write_changing, _paths("data.npy")),
    "changing-folder": Container("folder", MIB, MIB, contents.write_changing_folder, _paths()),
    "column": Container("column.kas", 256 * MIB, MIB, contents.write_array, _paths("data.npy")),
    "huge": Container(
        "huge.kdb", 10 << 30, 2 * MIB, partial(contents.write_sparse_frames, shape=contents.MIDDLE_FRAME), _paths()
    ),
    "huge-large": Container("huge.kdb", 10 << 30, 2 * MIB, contents.write_sparse_frames, _paths()),
    "shard": Container("shard.wshard", 16 * MIB, MIB, partial(contents.write_film, codec="zstd"), _paths()),
    "many-keys": Container("keys.ikv", 60_000, 200, contents.write_keys, _paths()),
    "objects": Container("objects", 10_000, 20, contents.write_folder, _paths()),
    "takes": Container("takes", 500, 10, contents.write_dataset, _paths()),
}


class Dataset:
    """One container in a folder of its own, and what is made of it when it is asked for the first time."""

    def __init__(self, container: Container, folder: Path, size: int) -> None:
        self.name = folder.name
        self.size = size
        self._container = container
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def container(self) -> Path:
        return self._made(self._container.file, lambda path: self._container.write(path, self.size))

    @property
    def tree(self) -> Path:
        return self._made("tree", self._export)

    @property
    def squashfs(self) -> Path:
        # Contents that are repeated here would be different in earnest.
        options = ["-noI", "-noD", "-noF", "-noX", "-no-duplicates", "-no-progress", "-quiet"]
        return self._made("image.squashfs", lambda path: _run("mksquashfs", self.tree, path, *options))

    @property
    def tar(self) -> Path:
        return self._made("tree.tar", lambda path: _run("tar", "-C", self.tree, "-cf", path, "."))

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        path = self._folder / name
        if not path.exists():
            part = path.with_name(f"part-{name}")
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
            make(part)
            part.rename(path)
        return path

    def _export(self, target: Path) -> None:
        paths = self._container.shown(self.size)
        export = (GLASSFS, "export", "--no-progress", "--overwrite", self.container)
        for start in range(0, max(1, len(paths)), PATHS_PER_COMMAND):
            _run(*export, *paths[start : start + PATHS_PER_COMMAND], target)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
