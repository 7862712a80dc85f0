"""A mirrored folder: containers become directories, other files stay; several sources in one mount; remote folders."""

from __future__ import annotations

import errno
import os
import subprocess
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

REASON, FORMAT = "user.glassfs.error", "user.glassfs.format"
ALL_IS_REMOTE = "from glassfs.source.local import LocalStore\nLocalStore.is_remote = True\n"


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
    """Make containers and other files at several depths."""
    folder = tmp_path / "datasets"
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "void").mkdir()
    write_store(folder / "top.kas", 1.0)
    write_store(folder / "a/b/c/deep.kas", 2.0)
    write_store(folder / "no suffix", 3.0)
    (folder / "fake.kas").write_bytes(b"only the name of a container")
    (folder / "empty.kdb").write_bytes(b"")
    (folder / "a/readme.md").write_bytes(b"# read me\n" * 1000)
    (folder / "broken.kas").write_bytes((folder / "top.kas").read_bytes()[:80])
    os.mkfifo(folder / "fifo")
    (folder / "copy.kas").write_bytes((folder / "top.kas").read_bytes())
    (folder / "hard.kas").hardlink_to(folder / "top.kas")
    return folder


def listing(mount: Mount, path: str = "") -> list[str]:
    return sorted(name for name in os.listdir(mount.path / path) if name != ".glassfs")


def test_containers_are_directories_and_files_stay(mirror: Mount, unchanged: Path) -> None:
    assert set(listing(mirror)) - {"fifo"} == {
        "a", "broken.kas", "copy.kas", "empty.kdb", "fake.kas", "hard.kas", "no suffix", "top.kas", "void",
    }
    assert listing(mirror, "a") == ["b", "readme.md"]
    assert listing(mirror, "a/b/c/deep.kas") == ["array.npy"]
    assert listing(mirror, "void") == []
    assert (value_of(mirror.path / "top.kas"), value_of(mirror.path / "no suffix")) == (1.0, 3.0)
    assert value_of(mirror.path / "a/b/c/deep.kas") == 2.0
    same = [mirror.path / name for name in ("top.kas", "copy.kas", "hard.kas")]
    assert [value_of(path) for path in same] == [1.0] * 3 and len({path.stat().st_ino for path in same}) == 3
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


# Remote folders, where suffixes decide which files are listed as containers


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources for a daemon that takes local files for remote ones."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(ALL_IS_REMOTE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (f"{tmp_path}/site", os.environ.get("PYTHONPATH")))))
    folder = tmp_path / "bucket"
    (folder / "sub").mkdir(parents=True)
    write_store(folder / "good.kas", 1.0)
    write_store(folder / "sub/deep.kas", 2.0)
    write_store(folder / "no suffix", 3.0)
    (folder / "broken.kas").write_bytes((folder / "good.kas").read_bytes()[:80])
    for name in ("read", "listed", "through", "copied"):
        (folder / f"{name}.kas").write_text("text")
    (folder / "notes.txt").write_text("notes")
    return folder


def said(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    return done.stderr


def test_suffix_decides_until_a_container_is_entered(mounted: Mounted, bucket: Path) -> None:
    with mounted(bucket) as mount:
        at = mount.path
        kinds = {entry.name: entry.is_dir() and entry.stat().st_size == 0 for entry in os.scandir(at)}
        assert kinds | {".glassfs": True} == {".glassfs": True, "sub": True, "no suffix": False, "notes.txt": False} | {
            f"{name}.kas": True for name in ("good", "broken", "read", "listed", "through", "copied")
        }
        assert mount.status()["open_containers"] == []
        assert os.getxattr(at / "good.kas", FORMAT) == b"kastore"
        assert (value_of(at / "good.kas"), value_of(at / "sub/deep.kas")) == (1.0, 2.0)
        # Opening one returns its content, and later listings show its real type.
        assert (at / "read.kas").read_text() == "text"
        assert said("ls", at / "listed.kas").endswith(": Not a directory\n")
        assert said("cat", at / "through.kas/x/y").endswith(": Not a directory\n")
        assert os.getxattr(at / "broken.kas", REASON).startswith(b"is cut short")
        for name in ("read", "listed", "through", "broken"):
            wait_until((at / f"{name}.kas").is_file)
        for _ in range(2):
            subprocess.run(["find", at], capture_output=True, check=False)
        wait_until((at / "copied.kas").is_file)
        assert not said("cp", at / "copied.kas", bucket.parent)
        assert (bucket.parent / "copied.kas").read_text() == "text"


def test_process_inside_a_file_that_is_no_container(mounted: Mounted, bucket: Path) -> None:
    with mounted(bucket) as mount:
        inside = os.open(mount.path / "sub", os.O_RDONLY)
        os.stat("deep.kas", dir_fd=inside)
        os.close(inside)
        done = subprocess.run(
            ["sh", "-c", "cd listed.kas && ls . ; cd .. && cat listed.kas || { sleep 1; cat listed.kas; }"],
            cwd=mount.path, capture_output=True, text=True, check=False,
        )
        assert done.stdout == "text"
        assert any(os.strerror(number) in done.stderr for number in (errno.ESTALE, errno.ENOTDIR))
