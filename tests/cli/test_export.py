"""Test ``glassfs export``: it writes the tree that the library shows; damage affects its file only."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from glassfs.library import open_tree
from glassfs.tree import File
from tests.cli.conftest import VALUES
from tests.cli.glassfs_command import fails, glassfs


def written(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder: bytes of files, None for directories."""
    return {
        f"/{path.relative_to(folder)}": path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


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


def test_a_folder_is_exported_with_its_links(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "s.kas").write_bytes(store.read_bytes())
    (source / "notes.txt").write_text("plain")
    (source / "away").symlink_to("../elsewhere")
    assert glassfs("export", source, tmp_path / "out").status == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "plain"
    assert os.readlink(tmp_path / "out" / "away") == "../elsewhere"
    assert (tmp_path / "out" / "s.kas" / "zeros.npy").stat().st_size == 128 + 4_000_000
