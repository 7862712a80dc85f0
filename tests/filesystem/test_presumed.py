"""Folders in which looking into files costs much: listings go by names, a path is what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassfs.filesystem import GlassfsFileSystem
from glassfs.source.local import LocalStore
from tests.filesystem.conftest import write_values


def test_listings_go_by_names_and_paths_are_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalStore, "is_remote", True)
    write_values(tmp_path / "good.kas", 1.0)
    write_values(tmp_path / "data", 2.0)
    (tmp_path / "wrong.kas").write_text("text")
    there = GlassfsFileSystem(tmp_path)
    assert {info["name"]: info["type"] for info in there.ls("")} == {
        "data": "file", "good.kas": "directory", "wrong.kas": "directory",
    }
    assert (there.isfile("wrong.kas"), there.isdir("good.kas"), there.isfile("data")) == (True, True, True)
    assert there.cat_file("wrong.kas") == b"text"
    assert there.info("wrong.kas")["size"] == 4
