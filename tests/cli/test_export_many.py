"""Test ``glassfs export`` of many containers: the same folder as from one process, also after processes are killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.glassfs_command import glassfs
from tests.datasets.batch.many import lines_of, robot, sound


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of containers, plain files, links, an empty folder and unusual names."""
    folder = tmp_path / "data"
    (folder / "below/deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    robot(folder / "a.kdb")
    robot(folder / "below/b.kdb", 3)
    for name in ("100%\n.kas", *(f"below/deep/{number}.kas" for number in range(10))):
        sound(folder / name)
    (folder / "notes.txt").write_text("no container")
    (folder / "below/link").symlink_to("../a.kdb")
    (folder / "below").chmod(0o750)
    os.utime(folder / "notes.txt", (10, 10))
    return folder


def written(folder: Path) -> dict[str, object]:
    """Return everything in a folder, with modes and times."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        content = os.readlink(path) if path.is_symlink() else None if is_folder else path.read_bytes()
        found[str(path.relative_to(folder))] = status.st_mode, 0 if is_folder else status.st_mtime_ns, content
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ["--jobs", "2"], ["--report", "report.jsonl"], pytest.param(["--jobs", "2", "--overwrite"], marks=pytest.mark.slow),
])
def test_workers_write_the_same_folder(folder: Path, words: list[str], tmp_path: Path) -> None:
    words = [str(tmp_path / word) if word.endswith("jsonl") else word for word in words]
    assert glassfs("export", folder, tmp_path / "one").status == 0
    done = glassfs("export", *words, folder, tmp_path / "two")
    assert (done.status, done.output, len(done.errors)) == (0, b"", 1)
    assert written(tmp_path / "one") == written(tmp_path / "two")
    assert "empty" in written(tmp_path / "two")


@pytest.mark.parametrize("paths", [
    pytest.param(["below"], marks=pytest.mark.slow), ["a.kdb/episodes/0", "notes.txt"],
    pytest.param(["below/deep/3.kas", "below/link"], marks=pytest.mark.slow),
])
def test_workers_write_the_same_parts(folder: Path, paths: list[str], tmp_path: Path) -> None:
    assert glassfs("export", folder, *paths, tmp_path / "one").status == 0
    assert glassfs("export", "--jobs", 2, folder, *paths, tmp_path / "two").status == 0
    assert written(tmp_path / "one") == written(tmp_path / "two") != {}


@pytest.mark.slow
def test_workers_write_the_same_views(folder: Path, tmp_path: Path) -> None:
    """Views of the root cover everything below it."""
    assert glassfs("export", "--views", "jsonl+parquet", folder, tmp_path / "one").status == 0
    assert glassfs("export", "--views", "jsonl+parquet", "--jobs", 2, folder, tmp_path / "two").status == 0
    names = [{name: content for name, (_, _, content) in written(tmp_path / place).items()} for place in ("one", "two")]
    assert names[0] == names[1]
    assert {"episodes.jsonl", "episodes.parquet", "a.kdb/episodes.jsonl"} <= names[1].keys()


def test_shards_together_write_the_whole_folder(folder: Path, tmp_path: Path) -> None:
    for number in range(3):
        part = ("--shard", f"{number}/3", "--resume", "--report", tmp_path / f"{number}.jsonl")
        assert glassfs("export", *part, folder, tmp_path / "parts").status == 0
    assert glassfs("export", folder, tmp_path / "one").status == 0
    assert written(tmp_path / "one") == written(tmp_path / "parts")
    paths = [line["path"] for number in range(3) for line in lines_of(tmp_path / f"{number}.jsonl")]
    assert sorted(map(str, paths)) == sorted(str(p) for p in folder.rglob("*.k*") if p.is_file() and not p.is_symlink())


def test_unreadable_and_unwritable_files_are_reported(folder: Path, damaged: Path, tmp_path: Path) -> None:
    (folder / "bad.wshard").write_bytes(damaged.read_bytes())
    report = tmp_path / "report.jsonl"
    target = tmp_path / "out"
    (target / "below").mkdir(parents=True)
    (target / "below/deep").write_text("in the way")
    one = glassfs("export", "--resume", folder, tmp_path / "one")
    done = glassfs("export", "--jobs", 2, "--report", report, "--resume", folder, target)
    assert done.status == 1
    assert f"glassfs: {target}/below/deep: something other than a directory is in the way" in "\n".join(done.errors)
    assert one.errors[0] in done.errors
    assert done.errors[-1] == f"glassfs: {folder}: 12 of its files and directories were not written"
    bad = [line for line in lines_of(report) if not line["ok"]]
    assert [line["path"] for line in bad] == [f"{folder}/bad.wshard"]
    assert (target / "below/deep").read_text() == "in the way"
    assert not (target / "bad.wshard/signal/bad.npy").exists()


@pytest.mark.slow
def test_resume_with_a_report_skips_written_containers(folder: Path, tmp_path: Path) -> None:
    """Containers with a line in the report are skipped unless their folder was deleted."""
    report, target = tmp_path / "report.jsonl", tmp_path / "out"
    arguments = ("export", folder, target, "--jobs", 2, "--report", report)
    assert glassfs(*arguments).status == 0
    before = written(target)
    (target / "a.kdb/episodes/0/state.npy").unlink()
    (target / "notes.txt").write_text("cut")
    shutil.rmtree(target / "below/b.kdb")
    assert glassfs(*arguments, "--resume").status == 0
    missing = before.keys() - written(target).keys()
    assert missing == {"a.kdb/episodes/0/state.npy"}
    assert {name: before[name] for name in before.keys() - missing} == written(target)
    assert glassfs("export", folder, target, "--jobs", 2, "--resume").status == 0
    assert written(target) == before
