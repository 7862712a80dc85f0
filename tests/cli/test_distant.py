"""Test commands on a folder whose store claims to be remote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.glassfs_command import Done, glassfs

REMOTE_SITE = "from glassfs.source.local import LocalStore\nLocalStore.is_remote = True\n"


@pytest.fixture
def bucket(tmp_path: Path, store: Path) -> Path:
    bucket = tmp_path / "bucket"
    (bucket / "sub").mkdir(parents=True)
    (bucket / "good.kas").write_bytes(store.read_bytes())
    (bucket / "data").write_bytes(store.read_bytes())
    (bucket / "sub/wrong.kas").write_text("text")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(REMOTE_SITE)
    return bucket


def run(bucket: Path, *arguments: str | Path) -> Done:
    site = str(bucket.parent / "site")
    return glassfs(*arguments, PYTHONPATH=os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH")))))


def test_listings_show_containers_by_their_names(bucket: Path) -> None:
    assert run(bucket, "ls", bucket).lines == ["data", "good.kas/", "sub/"]
    done = run(bucket, "ls", "-R", bucket)
    assert (done.status, done.errors) == (0, [])
    assert {"data", "sub/", "wrong.kas/", "time.npy"} <= set(done.lines)
    done = run(bucket, "tree", bucket)
    assert (done.status, done.errors) == (0, [])
    assert any(line.endswith("wrong.kas/") for line in done.lines)
    assert run(bucket, "ls", bucket / "data").lines == run(bucket, "ls", bucket / "good.kas").lines


def test_a_file_named_like_a_container_is_read_as_a_file(bucket: Path) -> None:
    assert run(bucket, "cat", bucket, "sub/wrong.kas").output == b"text"
    assert run(bucket, "ls", bucket, "sub/wrong.kas").lines == ["wrong.kas"]


def test_an_export_writes_files_as_files(bucket: Path, tmp_path: Path) -> None:
    done = run(bucket, "export", bucket, tmp_path / "out")
    assert (done.status, done.errors) == (0, [])
    assert (tmp_path / "out/sub/wrong.kas").read_text() == "text"
    assert (tmp_path / "out/data").read_bytes() == (bucket / "data").read_bytes()
    assert (tmp_path / "out/good.kas/nodes/time.npy").is_file()
