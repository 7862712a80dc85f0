"""A mirrored folder: containers become directories, other files stay; and several sources in one mount."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.kinodb import KinoWriter

from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import Mount
from tests.waiting import wait_until

REASON = "user.glassfs.error"


def write_store(path: Path, value: float = 1.0) -> None:
    with KastoreWriter(path) as store:
        store.add("array", [value])


def value_of(path: Path) -> float:
    return float(np.load(path / "array.npy")[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("unchanged"))


@pytest.fixture(scope="module")
def mirror(mounted: Mounted, unchanged: Path) -> Iterator[Mount]:
    """``unchanged``, mounted for all tests that only read."""
    with mounted(unchanged) as mount:
        yield mount


def make_folder(tmp_path: Path) -> Path:
    """Make containers and other files at several depths, and links of all kinds."""
    folder = tmp_path / "datasets"
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "void").mkdir()
    (tmp_path / "outside").mkdir()
    write_store(folder / "top.kas", 1.0)
    write_store(folder / "a/b/c/deep.kas", 2.0)
    write_store(folder / "no suffix", 3.0)
    write_store(tmp_path / "outside/secret.kas", 4.0)
    (folder / "fake.kas").write_bytes(b"only the name of a container")
    (folder / "empty.kdb").write_bytes(b"")
    (folder / "a/readme.md").write_bytes(b"# read me\n" * 1000)
    (folder / "broken.kas").write_bytes((folder / "top.kas").read_bytes()[:80])
    (folder / "links").mkdir()
    (folder / "links/inside").symlink_to("../top.kas")
    (folder / "links/folder").symlink_to("../a/b")
    (folder / "links/absolute").symlink_to(folder / "a/readme.md")
    (folder / "links/outside").symlink_to("../../outside/secret.kas")
    (folder / "links/nowhere").symlink_to("nothing")
    (folder / "links/loop").symlink_to("..")
    os.mkfifo(folder / "fifo")
    (folder / "copy.kas").write_bytes((folder / "top.kas").read_bytes())
    (folder / "hard.kas").hardlink_to(folder / "top.kas")
    os.utime(folder / "a/readme.md", ns=(0, 987_654_321_012_345_678))
    (folder / "a/readme.md").chmod(0o640)
    return folder


def listing(mount: Mount, path: str = "") -> list[str]:
    return sorted(name for name in os.listdir(mount.path / path) if name != ".glassfs")


def test_containers_are_directories_and_files_stay(mirror: Mount, unchanged: Path) -> None:
    assert set(listing(mirror)) - {"fifo"} == {
        "a", "broken.kas", "copy.kas", "empty.kdb", "fake.kas", "hard.kas", "links", "no suffix", "top.kas", "void",
    }
    assert listing(mirror, "a") == ["b", "readme.md"]
    assert listing(mirror, "a/b/c/deep.kas") == ["array.npy"]
    assert listing(mirror, "void") == []
    assert (value_of(mirror.path / "top.kas"), value_of(mirror.path / "no suffix")) == (1.0, 3.0)
    assert value_of(mirror.path / "a/b/c/deep.kas") == 2.0
    for name in ("fake.kas", "empty.kdb", "a/readme.md", "broken.kas"):
        assert (mirror.path / name).read_bytes() == (unchanged / name).read_bytes(), name


def test_broken_container_is_a_plain_file_with_a_reason(mirror: Mount) -> None:
    broken = mirror.path / "broken.kas"
    assert broken.is_file()
    assert os.listxattr(broken) == [REASON]
    reason = os.getxattr(broken, REASON).decode()
    assert reason
    assert any(reason in line and "broken.kas" in line for line in mirror.log_lines())
    for name in ("fake.kas", "empty.kdb"):
        assert os.listxattr(mirror.path / name) == [REASON]
    assert os.listxattr(mirror.path / "a/readme.md") == []


def test_links_inside_are_followed_by_the_kernel(mirror: Mount, unchanged: Path) -> None:
    """A link to a container leads to its directory."""
    links = mirror.path / "links"
    assert (links / "inside").is_dir() and (links / "inside").is_symlink()
    assert value_of(links / "inside") == 1.0
    assert value_of(links / "folder/c/deep.kas") == 2.0
    assert (links / "absolute").read_bytes() == (unchanged / "a/readme.md").read_bytes()


def test_added_and_removed_files_appear(mounted: Mounted, folder: Path) -> None:
    with mounted(folder) as mount:
        assert not (mount.path / "void/new.kas").exists()
        write_store(folder / "void/new.kas", 9.0)
        (folder / "a/new.txt").write_bytes(b"new")
        (folder / "a/readme.md").unlink()
        (folder / "void/deeper").mkdir()
        wait_until(lambda: listing(mount, "void") == ["deeper", "new.kas"])
        wait_until(lambda: listing(mount, "a") == ["b", "new.txt"])
        wait_until(lambda: (mount.path / "void/new.kas/array.npy").exists())
        assert value_of(mount.path / "void/new.kas") == 9.0
        assert (mount.path / "a/new.txt").read_bytes() == b"new"
        assert not (mount.path / "a/readme.md").exists()
        (folder / "void/new.kas").unlink()
        wait_until(lambda: not (mount.path / "void/new.kas").exists())


def test_several_sources(mounted: Mounted, folder: Path, gallery: Gallery, tmp_path: Path) -> None:
    """Two of the sources have the same name."""
    twin = tmp_path / "other/top.kas"
    twin.parent.mkdir()
    write_store(twin, 7.0)
    with KinoWriter(tmp_path / "run.kdb") as writer:
        writer.add_episode(np.zeros((2, 1)), np.zeros((2, 1)))
    sources = (folder / "top.kas", tmp_path / "run.kdb", twin, gallery.folder)
    with mounted(*sources) as mount:
        names = listing(mount)
        assert len(names) == 4
        assert {"top.kas", "run.kdb", gallery.folder.name} < set(names)
        (other,) = set(names) - {"top.kas", "run.kdb", gallery.folder.name}
        assert (value_of(mount.path / "top.kas"), value_of(mount.path / other)) == (1.0, 7.0)
        assert listing(mount, "run.kdb/episodes") == ["0"]
        data = (mount.path / gallery.folder.name / "store.kas/big.npy").read_bytes()
        assert data == gallery.files["store.kas/big.npy"]
        assert mount.status()["sources"] == list(map(str, sources))


def test_same_container_twice_has_different_inode_numbers(mirror: Mount) -> None:
    names = ("top.kas", "copy.kas", "hard.kas")
    assert len({(mirror.path / name).stat().st_ino for name in names}) == 3
    assert [value_of(mirror.path / name) for name in names] == [1.0] * 3
