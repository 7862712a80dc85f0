"""Mounts that end under load: readers get right bytes or an error, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.connections import Connection
from tests.mount.gallery import npy
from tests.mount.mounts import COMMAND, PATIENCE, Mount, environment, is_mounted, is_running
from tests.waiting import wait_until

READERS = 16
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT, errno.ENODEV, errno.EINTR)
"""Errors when a mount ends; ENOENT comes from the empty mount point."""
VIDEO = np.random.default_rng(3).integers(0, 5, (400, 5_000), np.uint8)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ends") / "video.wshard"
    with WShardWriter(path, codec="zstd") as writer:
        for number in range(8):
            writer.add_channel(f"c{number}", VIDEO + number)
    return path


class Load:
    """Threads that list and read until an error occurs, each with one file open."""

    def __init__(self, mount: Mount) -> None:
        self.wrong: list[str] = []
        self.errors: Counter[str] = Counter()
        self.reads = 0
        self._is_ending = threading.Event()
        self._signal = mount.path / "signal"
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(READERS)]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.reads > 5 * READERS)

    def end(self) -> None:
        self._is_ending.set()
        for thread in self._threads:
            thread.join()
        assert self.wrong == []

    @property
    def are_all_refused(self) -> bool:
        return self.errors.total() == READERS

    def _run(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        expected = npy(VIDEO + seed % 8)
        try:
            descriptor = os.open(self._signal / f"c{seed % 8}.npy", os.O_RDONLY | (os.O_DIRECT if seed % 2 else 0))
            try:
                while not self._is_ending.is_set():
                    self._read(descriptor, expected, int(chance.integers(len(expected))))
                    if self._signal.is_dir():
                        os.listdir(self._signal)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.errors[errno.errorcode[error.errno or 0]] += 1
            if error.errno not in GONE:
                self.wrong.append(str(error))

    def _read(self, descriptor: int, expected: bytes, offset: int) -> None:
        size = min(100_000, len(expected) - offset)
        data = b""
        while len(data) < size:
            part = os.pread(descriptor, size - len(data), offset + len(data))
            if not part:
                self.wrong.append(f"an early end at {offset}")
                return
            data += part
        if data != expected[offset : offset + size]:
            self.wrong.append(f"wrong bytes at {offset}")
        self.reads += 1


def by_signal(number: signal.Signals) -> Callable[[Mount], None]:
    return lambda mount: os.kill(mount.pid, number)


terminate, hang_up, kill = map(by_signal, (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL))


def by_abort(mount: Mount) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can cut a connection")
    Connection(mount.path).abort()


@pytest.mark.slow
@pytest.mark.parametrize("end", [
    pytest.param(terminate, id="SIGTERM"), pytest.param(hang_up, id="SIGHUP"), pytest.param(kill, id="kill -9"),
    pytest.param(by_abort, id="abort"),
])
def test_end_under_load(mounted: Mounted, video: Path, tmp_path: Path, end: Callable[[Mount], None]) -> None:
    """All readers get errors, the daemon ends, and a new mount at the same path shows everything."""
    point = tmp_path / "mnt"
    point.mkdir()
    with mounted(video, at=point, options=["cache_size=1M"]) as mount:
        load = Load(mount)
        try:
            end(mount)
            wait_until(lambda: not is_running(mount.pid))
            wait_until(lambda: load.are_all_refused)
        finally:
            load.end()
        if end is not kill:
            wait_until(lambda: not is_mounted(point))
            assert os.listdir(point) == []
        with mounted(video, at=point):
            assert (point / "signal/c3.npy").read_bytes() == npy(VIDEO + 3)
        assert not is_mounted(point)


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


def test_thread_that_waits_for_its_own_mount(fuse: str, tmp_path: Path, video: Path) -> None:
    """The kernel cannot end such a process: it waits for an answer of its own."""
    if fuse == "2":
        pytest.skip("libfuse 2 waits at its end for all callbacks")
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_ITSELF, str(video), str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env=environment(fuse),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert not is_mounted(tmp_path)


def test_end_at_once(fuse: str, video: Path, tmp_path: Path, scale: Scale) -> None:
    """A signal may arrive while libfuse and the kernel still negotiate."""
    for number in range(scale(4, 12, 400)):
        process = subprocess.Popen(
            [*COMMAND, "mount", "-f", str(video), str(tmp_path)], stderr=subprocess.PIPE, text=True,
            env=environment(fuse),
        )
        wait_until(lambda: is_mounted(tmp_path))
        process.send_signal(signal.SIGTERM if number % 2 else signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert not is_mounted(tmp_path)


def remains(folder: Path) -> tuple[int, list[str]]:
    """Return the number of processes with a folder among their arguments, and its files."""
    processes = 0
    for process in Path("/proc").iterdir():
        try:
            processes += process.name.isdigit() and str(folder).encode() in (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return processes, sorted(os.listdir(folder))


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
    before = remains(tmp_path)
    for number in range(scale(3, 6, 1000)):
        with mounted(video, at=point, options=options, foreground=foreground) as mount:
            assert (point / f"signal/c{number % 8}.npy").read_bytes() == npy(VIDEO + number % 8)
            if number % 2:
                os.kill(mount.pid, signal.SIGTERM)
                wait_until(lambda: not is_mounted(point))
        assert not is_mounted(point)
        assert not is_running(mount.pid)
        assert os.listdir(spool) == os.listdir(point) == []
    assert remains(tmp_path) == before
