"""Counters of a mount for monitoring, and what its log says."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from writers.kinodb import KinoWriter

from glassfs.mount.errors import MountError
from glassfs.mount.status import MARK, Metrics
from glassfs.settings import settings
from tests.mount.conftest import Mounted
from tests.mount.gallery import Gallery
from tests.mount.mounts import glassfs, mountinfo
from tests.waiting import wait_until

LINE = re.compile(r'glassfs_[a-z_]+\{mount="lab data"(,request="[a-z_]+")?\} [0-9.]+')

STATUS = {
    "uptime_seconds": 1.5, "open_containers": ["secret name"], "nodes": {"references": 2},
    "requests": {"LOOKUP": 7}, "cache": {"budget": 4, "used": 3, "hits": 2, "misses": 1}, "errors": 0,
}


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


def test_counters_have_no_names_of_containers(tmp_path: Path) -> None:
    metrics = Metrics(str(tmp_path / "m.prom"), lambda: STATUS)
    metrics.write()
    text = (tmp_path / "m.prom").read_text()
    assert 'glassfs_requests_total{mount="m",request="lookup"} 7\n' in text and "secret" not in text
    metrics.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_link", [False, True])
def test_what_has_the_name_of_the_counters_stays(tmp_path: Path, is_link: bool) -> None:
    """A text, or what ``tests/test_outputs.py`` has, though it leads to counters."""
    victim, path = tmp_path / "victim", tmp_path / "m.prom"
    victim.write_bytes(MARK if is_link else b"mine")
    path.symlink_to(victim) if is_link else path.write_text("mine")
    before, facts = path.read_bytes(), path.lstat()
    with pytest.raises(MountError, match=rf"option metrics: {path}: .*; name "):
        Metrics(str(path), lambda: STATUS)
    assert path.read_bytes() == before and os.path.samestat(path.lstat(), facts)
    assert set(os.listdir(tmp_path)) == {"victim", "m.prom"}


def test_counters_of_a_killed_mount_are_written_on(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    killed = (
        "import os, sys; from glassfs.mount.status import Metrics\n"
        f"metrics = Metrics({str(path)!r}, lambda: {STATUS!r}); metrics.write(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    before = path.read_bytes()
    path.chmod(0o600)
    metrics = Metrics(str(path), lambda: STATUS | {"requests": {}})
    metrics.write()
    assert path.stat().st_mode & 0o777 == 0o644
    assert before.startswith(path.read_bytes()) and len(path.read_bytes()) < len(before)
    metrics.remove()
    assert os.listdir(tmp_path) == []


def test_two_mounts_cannot_share_a_file_of_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "metrics_claim", 0.0)
    path = tmp_path / "m.prom"
    one = Metrics(str(path), lambda: STATUS)
    for _ in range(2):  # before and after it is written
        with pytest.raises(MountError, match="another mount writes to it"):
            Metrics(str(path), lambda: STATUS)
        one.write()
    monkeypatch.setattr(settings, "metrics_claim", 60.0)  # now it waits until the other mount ends
    monkeypatch.setattr("time.sleep", lambda seconds: one.remove())
    Metrics(str(path), lambda: STATUS).remove()
    assert os.listdir(tmp_path) == []


def test_strangers_lock_does_not_keep_a_mount_from_starting(tmp_path: Path) -> None:
    """Every user may read the counters, and lock them when the mount has been killed."""
    path = tmp_path / "m.prom"
    path.write_bytes(MARK)
    os.utime(path, (0, 0))
    with path.open("rb") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_SH)
        metrics = Metrics(str(path), lambda: STATUS)
        metrics.write()
        assert b"glassfs_errors_total" in path.read_bytes()
        metrics.remove()


def test_file_that_was_put_in_place_of_the_counters_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    metrics = Metrics(str(path), lambda: STATUS)
    metrics.write()
    (tmp_path / "other").write_text("mine")
    (tmp_path / "other").rename(path)
    metrics.write()
    assert path.read_text() == "mine"
    metrics.remove()
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["m.prom"]


def test_counters_go_to_the_folder_that_was_named_at_the_start(tmp_path: Path) -> None:
    folder, moved = tmp_path / "folder", tmp_path / "moved"
    folder.mkdir()
    metrics = Metrics(str(folder / "m.prom"), lambda: STATUS)
    folder.rename(moved)
    (tmp_path / "other").mkdir()
    folder.symlink_to("other")
    metrics.write()
    assert os.listdir(moved) == ["m.prom"] and os.listdir(folder) == []
    metrics.remove()
    assert os.listdir(moved) == []


def test_files_of_a_mount_are_neither_containers_nor_in_its_source(gallery: Gallery, tmp_path: Path) -> None:
    folder, at = tmp_path / "source", tmp_path / "mnt"
    at.mkdir()
    folder.mkdir()
    container = tmp_path / "run.npz"
    np.savez(container, a=np.arange(3))
    before = container.read_bytes()
    for words in (["-o", f"metrics={container}"], ["-o", f"log_file={container}"], ["--log-file", container]):
        done = glassfs("mount", *words, container, at)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1) and f"{container}: " in done.stderr, done.stderr
        assert container.read_bytes() == before
    for inside in (folder, at):
        for words in (["-o", f"metrics={inside}/f"], ["-o", f"log_file={inside}/f"], ["--log-file", f"{inside}/f"]):
            done = glassfs("mount", "-o", "nonempty", *words, folder, at, starts_none=True)
            assert done.returncode == 1 and f"{inside}/f: lies inside {inside}" in done.stderr
            assert not list(inside.iterdir())
    assert not mountinfo(at)


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
    (fault,) = [text for level, text in lines if level in ("WARNING", "ERROR")]
    assert fault.startswith(f"{folder}/bad.kdb: episodes/0/images: ")
