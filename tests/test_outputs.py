"""Files that glassfs writes under names that users gave, when something else has the name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassfs import outputs


def test_missing_file_is_created_and_an_existing_one_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for expected in (b"a", b"aa"):
        descriptor = outputs.opened(str(path), 0o640)
        os.write(descriptor, b"a")
        os.close(descriptor)
        assert path.read_bytes() == expected
    assert path.stat().st_mode & 0o777 == 0o640


def test_name_is_looked_up_in_the_open_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    descriptor = outputs.opened("log", folder=folder)
    assert outputs.is_at(descriptor, "log", folder)
    (tmp_path / "log").rename(tmp_path / "other")
    assert not outputs.is_at(descriptor, "log", folder)
    (tmp_path / "log").write_text("another file")
    assert not outputs.is_at(descriptor, "log", folder)
    os.close(descriptor)
    os.close(folder)


@pytest.mark.parametrize(("kind", "reason"), [
    ("link", "is a symbolic link"), ("dangling link", "is a symbolic link"), ("hard link", "hard links"),
    ("fifo", "is not a regular file"), ("device", "is not a regular file"), ("folder", "Is a directory"),
    ("of another user", "belongs to another user"),
])
def test_other_files_stay_as_they_are(tmp_path: Path, kind: str, reason: str) -> None:
    if kind in ("device", "of another user") and os.geteuid() != 0:
        pytest.skip("only root can make it")
    path, victim = tmp_path / "log", tmp_path / "victim"
    victim.write_text("mine")
    match kind:
        case "link":
            path.symlink_to(victim)
        case "dangling link":
            path.symlink_to(tmp_path / "none")
        case "hard link":
            path.hardlink_to(victim)
        case "fifo":
            os.mkfifo(path)
        case "device":
            os.mknod(path, 0o020666, os.makedev(1, 3))
        case "folder":
            path.mkdir()
        case "of another user":
            path.write_text("mine")
            os.chown(path, 12345, 12345)
    with pytest.raises(OSError, match=reason):
        outputs.opened(str(path))
    assert sorted(os.listdir(tmp_path)) == ["log", "victim"] and victim.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of root")
def test_users_may_append_to_files_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may prepare a log for a service that has a user of its own."""
    (tmp_path / "log").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.close(outputs.opened(str(tmp_path / "log")))
