"""Counters of a mount for monitoring, and what its log says."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from glassfs.mount.metrics import Metrics
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import glassfs, mountinfo
from tests.waiting import wait_until

LINE = re.compile(r'glassfs_[a-z_]+\{mount="lab data"(,request="[a-z_]+")?\} [0-9.]+')


def test_metrics_are_written_and_removed(mounted: Mounted, gallery: Gallery, tmp_path: Path) -> None:
    file = tmp_path / "lab data.prom"
    with mounted(gallery.folder, options=[f"metrics={file}"]) as mount:
        wait_until(file.exists)
        text = file.read_text()
        values = [line for line in text.splitlines() if not line.startswith("#")]
        assert all(map(LINE.fullmatch, values)), text
        assert 'glassfs_errors_total{mount="lab data"} 0' in values
        assert str(gallery.folder) not in text and str(mount.path) not in text
        assert file.stat().st_mode & 0o777 == 0o644
    assert not file.exists()


def test_metrics_replace_a_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "m.prom").symlink_to(tmp_path / "victim")
    status = {
        "uptime_seconds": 1.5, "open_containers": ["secret name"], "nodes": {"references": 2},
        "requests": {"LOOKUP": 7}, "cache": {"budget": 4, "used": 3, "hits": 2, "misses": 1}, "errors": 0,
    }
    metrics = Metrics(str(tmp_path / "m.prom"), lambda: status)
    metrics.write()
    assert (tmp_path / "victim").read_text() == "mine" and not (tmp_path / "m.prom").is_symlink()
    text = (tmp_path / "m.prom").read_text()
    assert 'glassfs_requests_total{mount="m",request="lookup"} 7\n' in text and "secret" not in text
    metrics.remove()
    assert os.listdir(tmp_path) == ["victim"]


def test_metrics_need_a_folder(tmp_path: Path, gallery: Gallery) -> None:
    (tmp_path / "mnt").mkdir()
    for wrong in (tmp_path / "no/m.prom", tmp_path):
        done = glassfs("mount", "-o", f"metrics={wrong}", gallery.folder, tmp_path / "mnt")
        assert done.returncode == 2 and done.stderr.count("\n") <= 3 and "option metrics" in done.stderr


def test_sources_are_absolute_and_a_fault_is_one_line(mounted: Mounted, tmp_path: Path) -> None:
    folder = tmp_path / "robots"
    folder.mkdir()
    with KinoWriter(folder / "bad.kdb") as writer:
        frame = {"front": np.zeros((4, 4, 3), np.uint8)}
        entry = writer.add_episode(np.zeros((1, 1)), np.zeros((1, 1)), images=[frame])
    data = bytearray((folder / "bad.kdb").read_bytes())
    struct.pack_into("<H", data, entry.images_offset + 2, 65_535)  # the length of the camera's name
    (folder / "bad.kdb").write_bytes(data)
    with mounted(os.path.relpath(folder)) as mount:
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                os.listdir(mount.path / "bad.kdb/episodes/0/images")
        (line,) = mountinfo(mount.path)
        assert line[line.index("-") + 2] == str(folder)
        assert mount.status()["sources"] == [str(folder)]
    lines = [line.split(" ", 3)[2:] for line in mount.log_lines()]
    assert lines[0] == ["INFO", f"{folder} is mounted at {mount.path}"]
    assert lines[-1] == ["INFO", f"{folder} is no longer mounted at {mount.path}"]
    (fault,) = [text for level, text in lines if level in ("WARNING", "ERROR") and "times in all" not in text]
    assert fault.startswith(f"{folder}/bad.kdb: episodes/0/images: ")
