"""The mounted tree as `ls`, `stat`, `find`, `cp` and `diff` see it, and consistent attributes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from writers.kastore import KastoreWriter

import glassfs as library
from glassfs.library import open_tree
from glassfs.tree import Directory, File
from tests.formats.any_names import WRITERS, files_of
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount, bytes_below, glassfs, is_running, opened

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


def test_tree_is_that_of_the_python_interface(shown: Mount, gallery: Gallery) -> None:
    found = walk(shown.path)
    own = {path for path in found if path.startswith(".glassfs")}
    assert own == {".glassfs", *(f".glassfs/{name}" for name in ("README", "status.json", "omitted.jsonl"))}
    nodes = {path[1:]: node for path, node in open_tree(gallery.folder).walk()}
    assert set(nodes) == set(found) - own
    for path, node in nodes.items():
        status = (shown.path / path).lstat()
        assert (status.st_ino, status.st_mode) == (node.ino, node.mode), path
        if isinstance(node, File):
            assert status.st_size == node.size, path
            assert (shown.path / path).read_bytes() == gallery.files[path], path
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


def test_directory_of_many_entries_is_complete(mounted: Mounted, tmp_path: Path) -> None:
    names = {f"key_{number:05d}_{'x' * 60}" for number in range(3000)}
    with KastoreWriter(tmp_path / "many.kas") as store:
        for name in sorted(names):
            store.add(name, [0.0])
    with mounted(tmp_path / "many.kas") as mount, opened(mount.path) as directory:
        found = os.listdir(directory)
        assert os.listdir(directory) == found
        assert sorted(found) == [".glassfs", *sorted(f"{name}.npy" for name in names)]
        done = subprocess.run(["ls", "-l", mount.path], capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == len(names) + 1


def test_copies_and_exports_are_the_expected_tree(shown: Mount, gallery: Gallery, tmp_path: Path) -> None:
    def run(*words: str | Path) -> None:
        done = subprocess.run(words, capture_output=True, text=True, errors="surrogateescape", check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), words

    copy = tmp_path / "copy"
    run("cp", "-a", f"{shown.path}/.", copy)
    assert bytes_below(copy) == gallery.files
    for name in gallery.files:
        original, copied = (shown.path / name).stat(), (copy / name).stat()
        for field in ("st_mode", "st_mtime_ns", "st_uid", "st_gid"):
            assert getattr(copied, field) == getattr(original, field), (name, field)
    run("chmod", "-R", "u+w", copy)
    done = glassfs("export", gallery.folder, tmp_path / "exported")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    run("diff", "-r", "-x", ".glassfs", shown.path, tmp_path / "exported")


def test_names_of_any_bytes_are_those_of_the_library(mounted: Mounted, tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        write(tmp_path / name)
    with mounted(tmp_path) as mount:
        for name in WRITERS:
            with library.open(tmp_path / name) as container:
                assert bytes_below(mount.path / name) == dict(files_of(container)), name


# Extended attributes and the status


def test_key_is_the_exact_original_name(shown: Mount, gallery: Gallery) -> None:
    assert b"caf\xe9/x" in gallery.keys.values()
    for path, key in gallery.keys.items():
        assert os.getxattr(shown.path / path, "user.glassfs.key") == key, path


def test_format_attribute_of_every_file(shown: Mount, gallery: Gallery) -> None:
    formats = {"kdb": b"kinodb", "wshard": b"wshard", "kas": b"kastore", "ikv": b"ikv", "idv": b"idv"}
    for path in gallery.files:
        found = {name: os.getxattr(shown.path / path, name) for name in os.listxattr(shown.path / path)}
        if path == "notes.txt":
            assert found == {}
            continue
        container = path[: path.index("/", len("sub/") if path.startswith("sub/") else 0)]
        assert found["user.glassfs.format"] == formats[container.rpartition(".")[2]], path
        assert "user.glassfs.key" in found, path
        assert "user.glassfs.error" not in found, path


def test_status_is_json_of_the_size_in_stat(shown: Mount, gallery: Gallery) -> None:
    path = shown.path / ".glassfs/status.json"
    for _ in range(3):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read()
        assert len(data) == size
        status = json.loads(data)
        assert data.endswith(b"\n")
    assert status["version"] == library.__version__
    assert status["pid"] == shown.pid and is_running(status["pid"])
    assert status["sources"] == [str(gallery.folder)]
    assert status["options"]["cache_size"] == 8 << 20
    assert status["cache"]["budget"] == 8 << 20
    assert status["cache"]["used"] <= 8 << 20


def test_status_counts_containers_and_cache_use(mounted: Mounted, gallery: Gallery) -> None:
    with mounted(gallery.folder) as mount:
        before = mount.status()
        with (mount.path / "episode.wshard/signal/rgb.npy").open("rb") as file:
            assert file.read()
            after = mount.status()
        assert str(gallery.folder / "episode.wshard") in after["open_containers"]
        assert after["cache"]["misses"] > before["cache"]["misses"]
        assert after["cache"]["used"] >= before["cache"]["used"] + 12 * 16 * 20 * 3
        assert after["errors"] == 0
        (mount.path / "episode.wshard/signal/rgb/000001.png").read_bytes()
        assert mount.status()["cache"]["hits"] > after["cache"]["hits"]
