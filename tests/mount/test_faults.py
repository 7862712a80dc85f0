"""Repeated failures under readers: readers see right bytes or an error, and the mount recovers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from tests.conftest import Scale
from tests.formats.wshard_files import entry_of, with_flipped
from tests.mount.changing import GIVEN_UP_SECONDS, HEADER, LENGTH, Readers, replace, shows, write, write_in_folder
from tests.mount.conftest import Mounted
from tests.mount.connections import Connection
from tests.mount.mounts import is_mounted, is_running, opened
from tests.waiting import wait_until

GONE = {"ENOTCONN", "ECONNABORTED", "EIO", "ENOENT", "ENODEV", "EINTR"}
"""Errors when a mount ends; ENOENT comes from the empty mount point."""


def assert_right_or_refused(*readers: Readers) -> None:
    """Check that readers saw whole files of one version, and errors that are allowed."""
    for reader in readers:
        assert not reader.wrong
        assert any(map(str.isdigit, reader.seen))


@pytest.mark.slow
def test_container_truncated_under_readers(mounted: Mounted, scale: Scale, tmp_path: Path) -> None:
    """A daemon that maps the container would die of SIGBUS."""
    truncations = scale(50, 100, 10_000)
    path = tmp_path / "changing"
    write(path, 1)
    with mounted(path) as mount:
        shown = mount.path / "signal/data.npy"
        with Readers(shown, direct=False) as buffered, Readers(shown, direct=True) as direct:
            for number in range(truncations):
                os.truncate(path, number * 1000)
                direct.wait_for_rounds()
                write(path, 1 + number % 2)
                if number % 100 == 49:
                    wait_until(shows(shown, 1 + number % 2))
            assert is_running(mount.pid)
            wait_until(shows(shown, 2))
            wait_until(lambda: buffered.seen["2"] > 0 and direct.seen["2"] > 0)
    assert_right_or_refused(buffered, direct)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_replaced_under_readers(mounted: Mounted, scale: Scale, tmp_path: Path, kind: str) -> None:
    replacements = scale(5, 15, 500)
    path = write_in_folder(tmp_path, kind)
    with mounted(path.parent) as mount:
        shown = mount.path / "changing/signal/data.npy"
        with Readers(shown, direct=False) as buffered, Readers(shown, direct=True) as direct:
            for number in range(replacements):
                version = 1 + number % 250
                replace(path, version, kind)
                direct.wait_for_rounds()
            wait_until(shows(shown, version))
            wait_until(lambda: buffered.seen[str(version)] > 0 and direct.seen[str(version)] > 0)
            assert is_running(mount.pid)
    assert_right_or_refused(buffered, direct)


def test_deleted_while_open(mounted: Mounted, scale: Scale, tmp_path: Path) -> None:
    """It stays readable for as long as it is open, and is given up after its last user."""
    deletions = scale(2, 5, 100)
    path = write_in_folder(tmp_path)
    with mounted(path.parent) as mount:
        shown = mount.path / "changing/signal/data.npy"
        for number in range(1, deletions + 1):
            write(path, number)
            wait_until(shows(shown, number))
            with opened(shown, os.O_DIRECT) as descriptor:
                os.pread(descriptor, 1000, 0)
                path.unlink()
                wait_until(lambda: not shown.exists())
                assert os.pread(descriptor, LENGTH, HEADER) == bytes([number]) * LENGTH
                assert mount.deleted_files() == 1
            wait_until(lambda: not mount.deleted_files(), GIVEN_UP_SECONDS, "the end of the deleted version")
        assert is_running(mount.pid)


def test_flipped_bit_in_every_second_block(mounted: Mounted, scale: Scale, tmp_path: Path) -> None:
    """Each costs one file and a line in the log. Codecs may ignore some bits, such as those in the header of zstd."""
    blocks = scale(8, 200)
    failed = 0
    generator = np.random.default_rng(11)
    for codec in ("none", "zstd", "lz4"):
        path = tmp_path / f"{codec}.wshard"
        arrays = {f"block{number:03d}": generator.integers(0, 4, (500, 8), np.uint8) for number in range(blocks)}
        with WShardWriter(path, codec=codec) as writer:
            for name, array in arrays.items():
                writer.add_channel(name, array)
        data = path.read_bytes()
        flipped = list(arrays)[::2]
        for name in flipped:
            stored = entry_of(data, f"signal/{name}")[1]["stored"]
            data = with_flipped(data, f"signal/{name}", int(generator.integers(stored)))
        path.write_bytes(data)
        with mounted(path) as mount:
            before, damaged = len(mount.log_lines()), []
            for name, array in arrays.items():
                shown = mount.path / f"signal/{name}.npy"
                assert shown.stat().st_size == HEADER + array.nbytes
                try:
                    right = shown.read_bytes()[HEADER:] == array.tobytes()
                except OSError as error:
                    assert error.errno == errno.EIO
                    assert name in flipped
                    damaged.append(name)
                    with pytest.raises(OSError, match="Input/output error"):
                        shown.read_bytes()
                else:
                    assert right
                    assert name not in flipped or codec != "none"
            for name, line in zip(damaged, mount.log_lines()[before:], strict=True):
                assert path.name in line and f"signal/{name}" in line
            assert mount.status()["errors"] >= 2 * len(damaged)
            assert is_running(mount.pid)
        failed += len(damaged)
    assert failed >= 0.98 * 3 * blocks / 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill -9", "SIGTERM", "SIGHUP", "abort of the connection"])
def test_daemon_ends_under_readers(mounted: Mounted, tmp_path: Path, fault: str) -> None:
    """All readers get errors, the daemon ends, and a new mount at the same path shows everything."""
    if "abort" in fault and os.geteuid() != 0:
        pytest.skip("only root can cut a connection")
    path, point = tmp_path / "changing", tmp_path / "mnt"
    write(path, 7, "compressed")
    point.mkdir()
    shown = point / "signal/data.npy"
    with mounted(path, at=point, options=["cache_size=1M"]) as mount:
        with Readers(shown, direct=False, count=8) as cached, Readers(shown, direct=True, count=8) as direct:
            wait_until(lambda: min(cached.seen["7"], direct.seen["7"]) > 16)
            if "abort" in fault:
                Connection(mount.path).abort()
            else:
                os.kill(mount.pid, signal.SIGKILL if fault == "kill -9" else signal.Signals[fault])
            wait_until(lambda: not is_running(mount.pid))
            cached.wait_for_rounds()
            direct.wait_for_rounds()
        for readers in (cached, direct):
            assert set(readers.wrong) <= GONE and set(readers.seen) <= {"7", *GONE}
        if fault != "kill -9":
            wait_until(lambda: not is_mounted(point))
            assert os.listdir(point) == []
        with mounted(path, at=point) as again:
            assert shows(shown, 7)()
            assert sum("whose daemon is gone" in line for line in again.log_lines()) == (fault == "kill -9")


def test_lazy_unmount_while_busy(mounted: Mounted, tmp_path: Path) -> None:
    path = tmp_path / "changing"
    write(path, 7)
    with mounted(path) as mount, (mount.path / "signal/data.npy").open("rb") as file:
        assert len(file.read(1000)) == 1000
        mount.unmount("--lazy")
        assert not is_mounted(mount.path)
        file.seek(HEADER)
        assert file.read() == bytes([7]) * LENGTH
        assert is_running(mount.pid)
        assert os.listdir(mount.path) == []


@pytest.fixture
def small_disk(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)  # another mount namespace may hold it


def test_spool_disk_full(mounted: Mounted, tmp_path: Path, small_disk: Path) -> None:
    """A block that does not fit can be read as soon as there is space."""
    path = tmp_path / "large.wshard"
    video = np.random.default_rng(5).integers(0, 4, (100, 50_000), np.uint8)
    with WShardWriter(path, codec="zstd") as writer:
        writer.add_channel("video", video)
    with mounted(path, options=["cache_size=4M", f"spool={small_disk}"]) as mount:
        shown = mount.path / "signal/video.npy"
        with pytest.raises(OSError) as raised:
            shown.read_bytes()
        assert raised.value.errno == errno.ENOSPC
        wait_until(lambda: os.statvfs(small_disk).f_bfree > 250)  # of 256; concurrent writers need some
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        assert shown.read_bytes()[HEADER:] == video.tobytes()
        assert is_running(mount.pid)
        assert sum("cannot be kept there: No space left on device" in line for line in mount.log_lines()) == 1
