"""Derived views in a mount: beside their sources if requested, always in ``.glassfs/views``, and after an upgrade."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT, Scale
from tests.layouts.files import isaaclab
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount
from tests.waiting import wait_until


def files_below(root: Path) -> set[str]:
    """Return the paths of files and links, without the mount's own directory."""
    found = set()
    for place, folders, names in os.walk(root):
        if place == str(root) and ".glassfs" in folders:
            folders.remove(".glassfs")
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found |= {os.path.relpath(os.path.join(place, name), root) for name in (*names, *links)}
    return found


@pytest.fixture(scope="module")
def viewed(mounted: Mounted, gallery: Gallery) -> Iterator[Mount]:
    with mounted(gallery.folder, options=["views=all"]) as mount:
        yield mount


def test_views_are_added_to_the_plain_tree(viewed: Mount, shown: Mount, gallery: Gallery) -> None:
    plain, all_files = files_below(shown.path), files_below(viewed.path)
    assert plain < all_files
    derived = all_files - plain
    for wanted in (".mp4", ".parquet", ".jsonl", ".csv", "/index.html", "/data.js", "/poster", "by-task/", ".zarr/"):
        assert any(wanted in path for path in derived), wanted
    for path, expected in gallery.files.items():
        assert (viewed.path / path).read_bytes() == expected, path


def test_sizes_and_ranges_of_views(viewed: Mount, shown: Mount, scale: Scale) -> None:
    chance = random.Random(4)
    for path in sorted(files_below(viewed.path) - files_below(shown.path))[:: scale(5, 1)]:
        place = viewed.path / path
        if place.is_symlink():
            continue
        size = place.stat().st_size
        data = place.read_bytes()
        assert len(data) == size, path
        with open(place, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for _ in range(4):
                offset = chance.randrange(size + 1)
                assert os.pread(file.fileno(), 5000, offset) == data[offset : offset + 5000], (path, offset)


def test_views_are_reachable_without_the_option(viewed: Mount, shown: Mount, scale: Scale) -> None:
    own = shown.path / ".glassfs/views"
    assert "views" not in os.listdir(shown.path / ".glassfs")
    assert files_below(own) == files_below(viewed.path)
    for path in sorted(files_below(viewed.path) - files_below(shown.path))[:: scale(5, 1)]:
        if (own / path).is_symlink():
            assert os.readlink(own / path) == os.readlink(viewed.path / path)
        else:
            assert (own / path).read_bytes() == (viewed.path / path).read_bytes(), path
            assert (own / path).stat().st_ino != (viewed.path / path).stat().st_ino


def test_splits_are_datasets_where_asked_for(mounted: Mounted, tmp_path: Path) -> None:
    path, _ = isaaclab(tmp_path)
    with mounted(path, options=["lerobot_splits"]) as mount:
        for place in (mount.path, mount.path / ".glassfs/views"):
            assert sorted(os.listdir(place / "lerobot")) == ["unknown-train", "unknown-valid"]
        info = json.loads((mount.path / "lerobot/unknown-train/meta/info.json").read_text())
        assert info["total_episodes"] == 2


def attributes(path: Path) -> os.stat_result:
    """Return what is known of a file. Python repeats reads that a signal interrupts, but not this, which may last."""
    while True:
        with suppress(InterruptedError):
            return path.lstat()


@pytest.mark.slow
def test_every_file_is_readable_after_the_package_is_removed(
    mounted: Mounted, gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "packages/glassfs"
    shutil.copytree(ROOT / "src/glassfs", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "__init__.py").open("a") as file:
        file.write('\n__version__ = "copy"\n')
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    with mounted(gallery.folder, options=["views=all"]) as mount:
        assert mount.status()["version"] == "copy"
        wait_until(lambda: mount.status()["all_code_loaded"])
        shutil.rmtree(package)
        for path in files_below(mount.path):
            place = mount.path / path
            if not stat.S_ISLNK(attributes(place).st_mode):
                data = place.read_bytes()
                assert len(data) == attributes(place).st_size and data == gallery.files.get(path, data), path
        assert mount.status()["errors"] == 0
