"""Mounts that end leave nothing behind, at whatever moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.gallery import npy
from tests.mount.mounts import COMMAND, PATIENCE, is_mounted, is_running, processes_with
from tests.waiting import wait_until

VIDEO = np.random.default_rng(3).integers(0, 5, (400, 5_000), np.uint8)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ends") / "video.wshard"
    with WShardWriter(path, codec="zstd") as writer:
        writer.add_channel("video", VIDEO)
    return path


WAITS_FOR_ITSELF = """
import os, sys, threading, time
from glassfs.mount.operations import Operations
from glassfs.mount.options import MountOptions
from glassfs.mount.session import MountSession

asked = threading.Event()

def look_up(self, parent, name):
    asked.set()
    time.sleep(3600)

def ready():
    threading.Thread(target=os.stat, args=(sys.argv[2] + "/signal",), daemon=True).start()
    asked.wait()
    print("waits", flush=True)

Operations.look_up = look_up
MountSession([sys.argv[1]], sys.argv[2], MountOptions.parse(())).run(ready)
"""


def test_thread_that_waits_for_its_own_mount(fuse: None, tmp_path: Path, video: Path) -> None:
    """The kernel cannot end such a process: it waits for an answer of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_ITSELF, str(video), str(tmp_path)], stdout=subprocess.PIPE, text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert not is_mounted(tmp_path)


@pytest.mark.slow
def test_end_at_once(fuse: None, video: Path, tmp_path: Path, scale: Scale) -> None:
    """A signal may arrive before the first request."""
    for number in range(scale(4, 12, 400)):
        process = subprocess.Popen(
            [*COMMAND, "mount", "-f", str(video), str(tmp_path)], stderr=subprocess.PIPE, text=True,
        )
        wait_until(lambda: is_mounted(tmp_path))
        process.send_signal(signal.SIGTERM if number % 2 else signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert not is_mounted(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("foreground", [True, False], ids=["foreground", "daemon"])
def test_mounts_leave_nothing(
    mounted: Mounted, video: Path, tmp_path: Path, scale: Scale, foreground: bool,
) -> None:
    """They end by unmounting and by SIGTERM; all data passes through the spool."""
    point, spool = tmp_path / "mnt", tmp_path / "spool"
    point.mkdir()
    spool.mkdir()
    options = ["cache_size=0", f"spool={spool}"]
    before = processes_with(tmp_path), sorted(os.listdir(tmp_path))
    for number in range(scale(3, 6, 1000)):
        with mounted(video, at=point, options=options, foreground=foreground) as mount:
            assert (point / "signal/video.npy").read_bytes() == npy(VIDEO)
            if number % 2:
                os.kill(mount.pid, signal.SIGTERM)
                wait_until(lambda: not is_mounted(point))
        assert not is_mounted(point)
        assert not is_running(mount.pid)
        assert os.listdir(spool) == os.listdir(point) == []
    assert (processes_with(tmp_path), sorted(os.listdir(tmp_path))) == before
