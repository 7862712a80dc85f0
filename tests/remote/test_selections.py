"""Selections of containers on servers, alone and beside local ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import glassfs
from glassfs.settings import settings
from tests.cli.glassfs_command import glassfs as command
from tests.datasets.test_selections import shown_in, write_takes
from tests.remote.conftest import Serving
from tests.remote.s3 import Bucket
from tests.waiting import wait_until


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, count in (("a.kdb", 3), ("sub/c.kdb", 4)):
        write_takes(tmp_path / "remote/lab" / name, count)
    write_takes(tmp_path / "data/a.kdb", 2)
    found = Bucket()
    found.put_folder(tmp_path / "remote")
    return found


def test_servers_and_folders_in_one_selection(bucket: Bucket, serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'sources = ["data", "s3://bucket/lab"]\nwhere = "success"\nexclude = ["lab/sub/c.kdb:1"]\n'
        'trim = "1:-1"\nevery = 2'
    )
    with serving(bucket):
        with glassfs.open("s.toml", storage_options={"timeout": 20.0}) as opened:
            assert [(row["container"], row["position"]) for row in opened.episodes()] == [
                ("data/a.kdb", 1), ("lab/a.kdb", 1), ("lab/sub/c.kdb", 3),
            ]
            assert opened["lab/sub/c.kdb/episodes/3/reward"].numpy().tolist() == [1, 3]
            assert list(opened["lab/sub/c.kdb/episodes"]) == ["3"]
        frozen = command("select", "s.toml")
        assert frozen.status == 0 and '"s3://bucket/lab"' in frozen.lines[0]
        (tmp_path / "frozen.toml").write_bytes(frozen.output)
        rows = [json.loads(line) for line in command("episodes", "frozen.toml").lines]
        assert [row["num_frames"] for row in rows] == [2, 2, 2]
        assert command("verify", "frozen.toml").status == 0
        assert command("export", "frozen.toml", "out").status == 0
    assert np.load(tmp_path / "out/lab/a.kdb/episodes/1/reward.npy").tolist() == [1, 3]


def test_objects_that_are_replaced_are_selected_anew(
    bucket: Bucket, serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setattr(settings, "table_valid", 0.0)
    monkeypatch.setattr(settings, "table_valid_times", 0)
    with serving(bucket), glassfs.open(
        "s3://bucket/lab", where="success", trim="1:", storage_options={"poll": 0.01},
    ) as opened:
        assert shown_in(opened) == ["a.kdb:1", "sub/c.kdb:1", "sub/c.kdb:3"]
        write_takes(tmp_path / "remote/lab/a.kdb", 6)
        bucket.put_folder(tmp_path / "remote")
        wait_until(lambda: list(opened["a.kdb/episodes"]) == ["1", "3", "5"])
        wait_until(lambda: len(list(opened.episodes())) == 5)
