"""The mounted tree as `ls`, `stat` and `find` see it, and consistent attributes."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from writers.kastore import KastoreWriter

from glassfs.library import open_tree
from glassfs.tree import Directory, File
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount

TYPES = {stat.S_IFREG: "is_file", stat.S_IFDIR: "is_dir", stat.S_IFLNK: "is_symlink"}


def walk(root: Path) -> dict[str, os.DirEntry[str]]:
    """Return all entries below by path, hidden ones included."""
    found: dict[str, os.DirEntry[str]] = {}
    waiting = [""]
    while waiting:
        start = waiting.pop()
        with os.scandir(root / start) as entries:
            for entry in entries:
                path = f"{start}/{entry.name}".lstrip("/")
                found[path] = entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
    return found


def test_listing_is_the_expected_tree(shown: Mount, gallery: Gallery) -> None:
    found = walk(shown.path)
    files = {path for path, entry in found.items() if entry.is_file()}
    directories = {path for path, entry in found.items() if entry.is_dir()}
    assert files - {".glassfs/README", ".glassfs/status.json", ".glassfs/omitted.jsonl"} == set(gallery.files)
    assert directories - {".glassfs"} == gallery.directories()
    assert len(found) == len(files) + len(directories)


def test_tree_of_the_python_interface_is_the_same(shown: Mount, gallery: Gallery) -> None:
    tree = open_tree(gallery.folder)
    nodes = {path[1:]: node for path, node in tree.walk()}
    assert set(nodes) == {path for path in walk(shown.path) if not path.startswith(".glassfs")}
    for path, node in nodes.items():
        status = (shown.path / path).lstat()
        assert (status.st_ino, status.st_mode) == (node.ino, node.mode), path
        if isinstance(node, File):
            assert status.st_size == node.size, path
            assert (shown.path / path).read_bytes() == node.read(0, node.size), path
        else:
            assert isinstance(node, Directory), path


def test_entries_of_a_directory_agree_with_stat(shown: Mount) -> None:
    """d_ino and d_type come from readdir, st_ino and st_mode from getattr; equal numbers would be hard links."""
    numbers: dict[int, str] = {}
    for path, entry in walk(shown.path).items():
        status = os.stat(shown.path / path, follow_symlinks=False)
        assert entry.inode() == status.st_ino, path
        assert getattr(entry, TYPES[stat.S_IFMT(status.st_mode)])(), path
        assert numbers.setdefault(status.st_ino, path) == path
    assert shown.path.stat().st_ino not in numbers


def test_file_system_has_the_size_of_its_sources_and_nothing_free(shown: Mount, gallery: Gallery) -> None:
    total = sum(path.stat().st_size for path in gallery.folder.rglob("*") if path.is_file())
    found = os.statvfs(shown.path)
    assert total <= found.f_blocks * found.f_frsize < total + found.f_frsize
    assert (found.f_bfree, found.f_bavail, found.f_namemax) == (0, 0, 255)
    assert found.f_flag & os.ST_RDONLY


def test_missing_names(shown: Mount) -> None:
    """The second answer comes from the kernel's cache."""
    for path in ("nothing", "run.kdb/nothing", "run.kdb/episodes/2", "store.kas/nodes/time", "run.kdb/episodes/00"):
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                (shown.path / path).stat()
    with pytest.raises(NotADirectoryError):
        (shown.path / "store.kas/big.npy/more").stat()


def test_directory_can_be_read_again_from_the_start_and_in_parts(shown: Mount, gallery: Gallery) -> None:
    """Parts: more entries than one answer of the kernel's buffer holds come from several requests."""
    frames = shown.path / "episode.wshard/signal/rgb"
    descriptor = os.open(frames, os.O_RDONLY)
    try:
        first = os.listdir(descriptor)
        assert os.listdir(descriptor) == first
        assert sorted(first) == [f"{number:06d}.png" for number in range(12)]
    finally:
        os.close(descriptor)


def test_directory_of_many_entries_is_complete(mounted: Mounted, tmp_path: Path) -> None:
    names = {f"key_{number:05d}_{'x' * 60}" for number in range(3000)}
    with KastoreWriter(tmp_path / "many.kas") as store:
        for name in sorted(names):
            store.add(name, [0.0])
    with mounted(tmp_path / "many.kas") as mount:
        found = sorted(os.listdir(mount.path))
        assert found == [".glassfs", *sorted(f"{name}.npy" for name in names)]
        done = subprocess.run(["ls", "-l", mount.path], capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == len(names) + 1
