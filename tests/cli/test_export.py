"""Test ``glassfs export``: it writes the tree that the library shows, with links, from one process or several."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from glassfs.library import open_tree
from glassfs.tree import File
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs
from tests.datasets.batch.many import lines_of, sound
from tests.datasets.batch.many import robot as write_robot


def written(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder: bytes of files, None for directories."""
    return {
        f"/{path.relative_to(folder)}": path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def recorded(folder: Path) -> dict[str, object]:
    """Return everything in a folder, with modes and times."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        content = os.readlink(path) if path.is_symlink() else None if is_folder else path.read_bytes()
        found[str(path.relative_to(folder))] = status.st_mode, 0 if is_folder else status.st_mtime_ns, content
    return found


def shown(source: Path, start: str = "/") -> dict[str, bytes | None]:
    """Return the same of the tree that Python programs get."""
    return {
        path: node.read(0, node.size) if isinstance(node, File) else None
        for path, node in open_tree(source).walk(start)
    }


@pytest.mark.parametrize("name", ["store", "robot"])
def test_an_exported_folder_equals_the_tree(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(name)
    done = glassfs("export", source, tmp_path / "deep" / "out")
    found = written(tmp_path / "deep" / "out")
    assert found == shown(source)
    count = sum(content is not None for content in found.values())
    assert (done.status, done.output, len(done.errors)) == (0, b"", 1)
    assert done.errors[0].startswith(f"{count} files in {tmp_path}/deep/out, ") and done.errors[0].endswith(" written")


def test_times_are_kept_and_zeros_become_holes(store: Path, tmp_path: Path) -> None:
    glassfs("export", store, tmp_path)
    assert np.array_equal(np.load(tmp_path / "nodes" / "time.npy", mmap_mode="r"), VALUES)
    status = (tmp_path / "zeros.npy").stat()
    assert status.st_mtime_ns == store.stat().st_mtime_ns
    assert status.st_size == 128 + 4_000_000
    assert status.st_blocks * 512 < 2_000_000


def test_exported_parts_keep_their_paths(robot: Path, tmp_path: Path) -> None:
    done = glassfs("export", robot, "episodes/0/images", "/meta/file.json", tmp_path)
    assert done.status == 0
    expected = shown(robot, "/episodes/0/images") | {"/meta/file.json": shown(robot)["/meta/file.json"]}
    folders = {"/episodes": None, "/episodes/0": None, "/episodes/0/images": None, "/meta": None}
    assert written(tmp_path) == expected | folders


@pytest.mark.parametrize(("only", "endings", "names", "views"), [
    ("npy", (".npy",), (), ""), ("*.png,jpg", (".png", ".jpg"), (), ""), ("meta", (), ("meta",), ""),
    ("file.json+images", (), ("file.json", "images"), ""), ("parquet+json", (".parquet", ".json"), (), "parquet"),
])
def test_only_what_is_called_so_or_ends_so_is_written(
    robot: Path, tmp_path: Path, only: str, endings: tuple[str, ...], names: tuple[str, ...], views: str,
) -> None:
    source = tmp_path / "in"
    (source / "empty").mkdir(parents=True)
    (source / "robot.kdb").write_bytes(robot.read_bytes())
    with open_tree(source, views=views) as tree:
        expected = {
            path: node.read(0, node.size) for path, node in tree.walk()
            if isinstance(node, File) and (path.endswith(endings) or {*names} & {*path.split("/")})
        }
    assert expected
    for jobs in (1, 2):
        out = tmp_path / f"out{jobs}"
        assert glassfs("export", source, out, "--only", only, "--jobs", jobs).status == 0
        found = written(out)
        assert {path: data for path, data in found.items() if data is not None} == expected
        # Directories are those of the files, and no others.
        above = {str(one) for path in expected for one in Path(path).parents} - {"/"}
        assert {path for path, data in found.items() if data is None} == above


def test_only_names_that_nothing_has_are_an_error(robot: Path, tmp_path: Path) -> None:
    done = glassfs("export", robot, tmp_path / "out", "--only", "gif+webp")
    assert (done.status, done.errors[-1]) == (1, f"glassfs: {robot}: no name is or ends with gif or webp")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_part_writes_nothing(robot: Path, tmp_path: Path) -> None:
    done = glassfs("export", robot, "meta", "none", tmp_path / "out")
    fails(done, f"none: no such file or directory in {robot}; the nearest: episodes, meta")
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_left_out_with_status_1(damaged: Path, tmp_path: Path) -> None:
    done = glassfs("export", damaged, tmp_path)
    assert done.status == 1
    assert len(done.errors) == 3
    assert done.errors[0].startswith(f"glassfs: {damaged}: /signal/bad.npy: zstd data ")
    assert done.errors[2] == f"glassfs: {damaged}: 1 of its files and directories were not written"
    found = written(tmp_path)
    assert "/signal/bad.npy" not in found
    assert np.array_equal(np.load(tmp_path / "signal" / "good.npy"), np.arange(2000, dtype=np.float32))
    assert {path for path, _ in open_tree(damaged).walk()} == found.keys() | {"/signal/bad.npy"}


# Symbolic links: kept inside what is exported, followed out of it, never without end.


@pytest.fixture
def linked(tmp_path: Path) -> Path:
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
    (folder / "below/outside").symlink_to("../../missing")
    return folder


def dangling(linked: Path) -> list[str]:
    return sorted(str(path.relative_to(linked)) for path in linked.rglob("*") if not path.exists())


def test_episodes_of_a_task_are_copied(linked: Path, tmp_path: Path) -> None:
    """The view is found by its path, without --views."""
    assert glassfs("export", linked, "by-task/same", tmp_path / "out").status == 0
    found = tmp_path / "out/by-task/same"
    assert sorted(path.name for path in found.iterdir()) == [f"a.kdb~{number}" for number in range(3)]
    assert dangling(tmp_path / "out") == []
    glassfs("export", linked, "a.kdb/episodes/1", tmp_path / "plain")
    expected = {path.relative_to(tmp_path / "plain/a.kdb/episodes/1") for path in (tmp_path / "plain").rglob("*.npy")}
    assert expected and expected == {path.relative_to(found / "a.kdb~1") for path in (found / "a.kdb~1").rglob("*.npy")}


def test_links_inside_are_kept_and_others_followed(linked: Path, tmp_path: Path) -> None:
    for jobs in (1, 2):
        out = tmp_path / f"out{jobs}"
        assert glassfs("export", linked, "below", out, "--jobs", jobs).status == 0
        assert os.readlink(out / "below/within") == "plain"
        assert os.readlink(out / "below/outside") == "../../missing"
        assert not (out / "below/away").is_symlink() and (out / "below/away").read_text() == "text" * 1000
        assert (out / "below/container/episodes/2/state.npy").is_file()
        assert dangling(out) == ["below/outside"]


def test_what_two_links_lead_to_is_copied_once(linked: Path, tmp_path: Path) -> None:
    (linked / "below/again").symlink_to("../other/text")
    (linked / "below/part").symlink_to("container/episodes/0/state.npy")
    assert glassfs("export", linked, "below", tmp_path / "out").status == 0
    found = tmp_path / "out/below"
    assert {(found / name).is_symlink() for name in ("again", "away")} == {True, False}
    assert (found / "again").read_text() == (found / "away").read_text() == "text" * 1000
    assert (found / "part").is_symlink() and (found / "part").samefile(found / "container/episodes/0/state.npy")


def test_all_links_are_kept_or_followed_on_request(linked: Path, tmp_path: Path) -> None:
    assert glassfs("export", "--links", "keep", linked, "below", tmp_path / "kept").status == 0
    assert os.readlink(tmp_path / "kept/below/away") == "../other/text"
    assert glassfs("export", "--links", "follow", linked, tmp_path / "followed").status == 0
    links = [path.name for path in (tmp_path / "followed").rglob("*") if path.is_symlink()]
    assert links == ["outside"]
    assert (tmp_path / "followed/below/within").read_text() == "plain"


@pytest.mark.parametrize("links", ["auto", "follow"])
def test_links_to_what_contains_them_end(linked: Path, links: str, tmp_path: Path) -> None:
    (linked / "below/up").symlink_to("..")
    (linked / "below/self").symlink_to("self")
    (linked / "other/back").symlink_to("../below")
    (linked / "below/forth").symlink_to("../other")
    done = glassfs("export", "--links", links, linked, "below", tmp_path / "out")
    assert done.status == (1 if links == "follow" else 0)
    assert ("leads" in str(done.errors) or "contains it" in str(done.errors)) == (links == "follow")
    assert len(list((tmp_path / "out").rglob("*"))) < 200
    assert (tmp_path / "out/below/forth/text").read_text() == "text" * 1000


def test_commands_follow_links_in_paths(linked: Path) -> None:
    assert glassfs("cat", linked, "below/away").output == b"text" * 1000
    assert glassfs("ls", linked, "below/container/episodes").lines == ["0/", "1/", "2/"]
    done = glassfs("cat", linked, "below/outside")
    assert done.errors == ["glassfs: below/outside: is a link that leads out of what was opened"]


def test_episodes_of_a_task_have_only_what_is_called_so(linked: Path, tmp_path: Path) -> None:
    """Links to directories are followed to it; those to what is exported as well are left out."""
    out = tmp_path / "out"
    assert glassfs("export", linked, "by-task/same", out, "--only", "state.npy").status == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()) == [
        f"by-task/same/a.kdb~{number}/state.npy" for number in range(3)
    ]
    assert glassfs("export", linked, tmp_path / "all", "--views", "by-task", "--only", "npy").status == 0
    found = [path for path in (tmp_path / "all").rglob("*") if not path.is_dir() or path.is_symlink()]
    assert {path.suffix for path in found} == {".npy"} and not any(map(Path.is_symlink, found))
    # Below what is chosen by name all is written, so links there lead to copies and not to what is missing.
    assert glassfs("export", linked, tmp_path / "tasks", "--only", "by-task").status == 0
    assert dangling(tmp_path / "tasks") == []
    assert (tmp_path / "tasks/a.kdb/by-task/same/000001/meta/episode.json").exists()


# Many containers: the same folder as from one process, also after processes are killed.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of containers, plain files, links, an empty folder and unusual names."""
    folder = tmp_path / "data"
    (folder / "below/deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    write_robot(folder / "a.kdb")
    write_robot(folder / "below/b.kdb", 3)
    for name in ("100%\n.kas", *(f"below/deep/{number}.kas" for number in range(10))):
        sound(folder / name)
    (folder / "notes.txt").write_text("no container")
    (folder / "below/link").symlink_to("../a.kdb")
    (folder / "below").chmod(0o750)
    os.utime(folder / "notes.txt", (10, 10))
    return folder


@pytest.mark.parametrize(("words", "paths"), [
    (["--jobs", "2"], ["a.kdb/episodes/0", "notes.txt"]), *(pytest.param(*each, marks=pytest.mark.slow) for each in (
        (["--jobs", "2"], []), (["--report", "report.jsonl"], []), (["--jobs", "2", "--overwrite"], []),
        (["--jobs", "2"], ["below"]), (["--jobs", "2"], ["below/deep/3.kas", "below/link"]),
    )),
])
def test_workers_write_the_same_folder(folder: Path, words: list[str], paths: list[str], tmp_path: Path) -> None:
    words = [str(tmp_path / word) if word.endswith("jsonl") else word for word in words]
    assert glassfs("export", folder, *paths, tmp_path / "one").status == 0
    done = glassfs("export", *words, folder, *paths, tmp_path / "two")
    assert (done.status, done.output, len(done.errors)) == (0, b"", 1)
    assert recorded(tmp_path / "one") == recorded(tmp_path / "two")
    assert ("empty" if not paths else paths[0]) in recorded(tmp_path / "two")


@pytest.mark.slow
def test_workers_write_the_same_views(folder: Path, tmp_path: Path) -> None:
    """Views of the root cover everything below it."""
    assert glassfs("export", "--views", "jsonl+parquet", folder, tmp_path / "one").status == 0
    assert glassfs("export", "--views", "jsonl+parquet", "--jobs", 2, folder, tmp_path / "two").status == 0
    names = written(tmp_path / "two")
    assert names == written(tmp_path / "one")
    assert {"/episodes.jsonl", "/episodes.parquet", "/a.kdb/episodes.jsonl"} <= names.keys()


def test_shards_together_write_the_whole_folder(folder: Path, tmp_path: Path) -> None:
    for number in range(3):
        part = ("--shard", f"{number}/3", "--resume", "--report", tmp_path / f"{number}.jsonl")
        assert glassfs("export", *part, folder, tmp_path / "parts").status == 0
    assert glassfs("export", folder, tmp_path / "one").status == 0
    assert recorded(tmp_path / "one") == recorded(tmp_path / "parts")
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
    assert done.errors[-1] == f"glassfs: {folder}: 42 of its files and directories were not written"
    bad = [line for line in lines_of(report) if not line["ok"]]
    assert {Path(line["path"]).parent for line in bad} == {folder, folder / "below/deep"}
    assert [line["path"] for line in bad if "deep" not in line["path"]] == [f"{folder}/bad.wshard"]
    assert (target / "below/deep").read_text() == "in the way"
    assert not (target / "bad.wshard/signal/bad.npy").exists()


@pytest.mark.slow
def test_resume_with_a_report_skips_written_containers(folder: Path, tmp_path: Path) -> None:
    """Containers with a line in the report are skipped unless their folder was deleted."""
    report, target = tmp_path / "report.jsonl", tmp_path / "out"
    arguments = ("export", folder, target, "--jobs", 2, "--report", report)
    assert glassfs(*arguments).status == 0
    before = recorded(target)
    (target / "a.kdb/episodes/0/state.npy").unlink()
    (target / "notes.txt").write_text("cut")
    shutil.rmtree(target / "below/b.kdb")
    assert glassfs(*arguments, "--resume").status == 0
    missing = before.keys() - recorded(target).keys()
    assert missing == {"a.kdb/episodes/0/state.npy"}
    assert {name: before[name] for name in before.keys() - missing} == recorded(target)
    assert glassfs("export", folder, target, "--jobs", 2, "--resume").status == 0
    assert recorded(target) == before
