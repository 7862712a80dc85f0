"""Test symbolic links in exports: kept inside what is exported, followed out of it, never without end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from tests.cli.glassfs_command import glassfs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    (folder / "other").mkdir()
    with KinoWriter(folder / "a.kdb", created=0) as writer:
        for number in range(3):
            writer.add_episode(np.full((3, 2), number), np.zeros((3, 1)), task="same")
    (folder / "other/text").write_text("text" * 1000)
    (folder / "below/within").symlink_to("plain")
    (folder / "below/plain").write_text("plain")
    (folder / "below/away").symlink_to("../other/text")
    (folder / "below/container").symlink_to("../a.kdb")
    (folder / "below/outside").symlink_to("../../elsewhere")
    return folder


def dangling(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.exists())


def test_episodes_of_a_task_are_copied(folder: Path, tmp_path: Path) -> None:
    """The view is found by its path, without --views."""
    assert glassfs("export", folder, "by-task/same", tmp_path / "out").status == 0
    found = tmp_path / "out/by-task/same"
    assert sorted(path.name for path in found.iterdir()) == [f"a.kdb~{number}" for number in range(3)]
    assert dangling(tmp_path / "out") == []
    glassfs("export", folder, "a.kdb/episodes/1", tmp_path / "plain")
    expected = {path.relative_to(tmp_path / "plain/a.kdb/episodes/1") for path in (tmp_path / "plain").rglob("*.npy")}
    assert expected and expected == {path.relative_to(found / "a.kdb~1") for path in (found / "a.kdb~1").rglob("*.npy")}


def test_links_inside_are_kept_and_others_followed(folder: Path, tmp_path: Path) -> None:
    for jobs in (1, 2):
        out = tmp_path / f"out{jobs}"
        assert glassfs("export", folder, "below", out, "--jobs", jobs).status == 0
        assert os.readlink(out / "below/within") == "plain"
        assert os.readlink(out / "below/outside") == "../../elsewhere"
        assert not (out / "below/away").is_symlink() and (out / "below/away").read_text() == "text" * 1000
        assert (out / "below/container/episodes/2/state.npy").is_file()
        assert dangling(out) == ["below/outside"]


def test_what_two_links_lead_to_is_copied_once(folder: Path, tmp_path: Path) -> None:
    (folder / "below/again").symlink_to("../other/text")
    (folder / "below/part").symlink_to("container/episodes/0/state.npy")
    assert glassfs("export", folder, "below", tmp_path / "out").status == 0
    found = tmp_path / "out/below"
    assert {(found / name).is_symlink() for name in ("again", "away")} == {True, False}
    assert (found / "again").read_text() == (found / "away").read_text() == "text" * 1000
    assert (found / "part").is_symlink() and (found / "part").samefile(found / "container/episodes/0/state.npy")


def test_all_links_are_kept_or_followed_on_request(folder: Path, tmp_path: Path) -> None:
    assert glassfs("export", "--links", "keep", folder, "below", tmp_path / "kept").status == 0
    assert os.readlink(tmp_path / "kept/below/away") == "../other/text"
    assert glassfs("export", "--links", "follow", folder, tmp_path / "followed").status == 0
    links = [path.name for path in (tmp_path / "followed").rglob("*") if path.is_symlink()]
    assert links == ["outside"]
    assert (tmp_path / "followed/below/within").read_text() == "plain"


@pytest.mark.parametrize("links", ["auto", "follow"])
def test_links_to_what_contains_them_end(folder: Path, links: str, tmp_path: Path) -> None:
    (folder / "below/up").symlink_to("..")
    (folder / "below/self").symlink_to("self")
    (folder / "other/back").symlink_to("../below")
    (folder / "below/forth").symlink_to("../other")
    done = glassfs("export", "--links", links, folder, "below", tmp_path / "out")
    assert done.status == (1 if links == "follow" else 0)
    assert ("leads" in str(done.errors) or "contains it" in str(done.errors)) == (links == "follow")
    assert len(list((tmp_path / "out").rglob("*"))) < 200
    assert (tmp_path / "out/below/forth/text").read_text() == "text" * 1000


def test_commands_follow_links_in_paths(folder: Path) -> None:
    assert glassfs("cat", folder, "below/away").output == b"text" * 1000
    assert glassfs("ls", folder, "below/container/episodes").lines == ["0/", "1/", "2/"]
    done = glassfs("cat", folder, "below/outside")
    assert done.errors == ["glassfs: below/outside: is a link that leads out of what was opened"]


def test_episodes_of_a_task_have_only_what_is_called_so(folder: Path, tmp_path: Path) -> None:
    """Links to directories are followed to it; those to what is exported as well are left out."""
    out = tmp_path / "out"
    assert glassfs("export", folder, "by-task/same", out, "--only", "state.npy").status == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()) == [
        f"by-task/same/a.kdb~{number}/state.npy" for number in range(3)
    ]
    assert glassfs("export", folder, tmp_path / "all", "--views", "by-task", "--only", "npy").status == 0
    found = [path for path in (tmp_path / "all").rglob("*") if not path.is_dir() or path.is_symlink()]
    assert {path.suffix for path in found} == {".npy"} and not any(map(Path.is_symlink, found))
    # Below what is chosen by name all is written, so links there lead to copies and not to what is missing.
    assert glassfs("export", folder, tmp_path / "tasks", "--only", "by-task").status == 0
    assert dangling(tmp_path / "tasks") == []
    assert (tmp_path / "tasks/a.kdb/by-task/same/000001/meta/episode.json").exists()
