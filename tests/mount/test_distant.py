"""Tools in a mount of a remote folder, where suffixes decide which files are listed as containers."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.mount.test_folder import REASON, value_of, write_store
from tests.waiting import wait_until

FORMAT = "user.glassfs.format"
ALL_IS_REMOTE = "from glassfs.source.local import LocalStore\nLocalStore.is_remote = True\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_suffix_decides_until_a_container_is_entered(mounted: Mounted, folder: Path) -> None:
    with mounted(folder) as mount:
        at = mount.path
        kinds = {entry.name: entry.is_dir() and entry.stat().st_size == 0 for entry in os.scandir(at)}
        assert kinds | {".glassfs": True} == {".glassfs": True, "sub": True, "no suffix": False, "notes.txt": False} | {
            f"{name}.kas": True for name in ("good", "broken", "read", "listed", "through", "copied")
        }
        assert mount.status()["open_containers"] == []
        assert (value_of(at / "good.kas"), value_of(at / "sub/deep.kas")) == (1.0, 2.0)
        assert os.getxattr(at / "good.kas", FORMAT) == b"kastore"
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
        assert not said("cp", at / "copied.kas", folder.parent)
        assert (folder.parent / "copied.kas").read_text() == "text"


def test_process_inside_a_file_that_is_no_container(mounted: Mounted, folder: Path) -> None:
    with mounted(folder) as mount:
        inside = os.open(mount.path / "sub", os.O_RDONLY)
        os.stat("deep.kas", dir_fd=inside)
        os.close(inside)
        done = subprocess.run(
            ["sh", "-c", "cd listed.kas && ls . ; cd .. && cat listed.kas || { sleep 1; cat listed.kas; }"],
            cwd=mount.path, capture_output=True, text=True, check=False,
        )
        assert done.stdout == "text"
        assert any(os.strerror(number) in done.stderr for number in (errno.ESTALE, errno.ENOTDIR))
