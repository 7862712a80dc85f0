"""Datasets of LeRobot in a mount: changes of the containers below it, and copies."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.layouts.files import isaaclab
from tests.mount.conftest import Mounted
from tests.view.test_lerobot import write
from tests.waiting import wait_until

DATA = "data/chunk-000/file-000.parquet"


def info_of(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta/info.json").read_text())
    return found


def test_splits_are_datasets_where_asked_for(mounted: Mounted, tmp_path: Path) -> None:
    path, _ = isaaclab(tmp_path)
    with mounted(path, options=["lerobot_splits"]) as mount:
        for place in (mount.path, mount.path / ".glassfs/views"):
            assert sorted(os.listdir(place / "lerobot")) == ["unknown-train", "unknown-valid"]
        assert info_of(mount.path / "lerobot/unknown-train")["total_episodes"] == 2


@pytest.mark.slow
def test_a_replaced_container_makes_another_dataset(mounted: Mounted, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data/a.kdb", "pick")
    write(tmp_path / "data/b.kdb", "place")
    with mounted(tmp_path / "data", options=["views=lerobot"]) as mount:
        dataset = mount.path / "lerobot/arm"
        before = (dataset / DATA).stat()
        with open(dataset / DATA, "rb") as opened:
            write(tmp_path / "new", "pick", frames=9)
            os.replace(tmp_path / "new", tmp_path / "data/a.kdb")
            wait_until(lambda: info_of(dataset)["total_frames"] == 9 + 5)
            with pytest.raises(OSError) as caught:
                opened.read()
        assert caught.value.errno == errno.ESTALE
        assert pq.read_table(dataset / DATA).num_rows == 9 + 5
        assert (dataset / DATA).stat().st_mtime_ns != before.st_mtime_ns
        (tmp_path / "data/b.kdb").unlink()
        wait_until(lambda: info_of(dataset)["total_frames"] == 9)
