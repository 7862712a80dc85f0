"""Repeated failures under readers: readers see right bytes or an error, and the mount recovers.

The table in docs/manual/changes.md is the summary printed after these tests.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.wshard import WShardWriter

from tests.conftest import Scale
from tests.formats.wshard_files import entry_of, with_flipped
from tests.mount.changing import (
    GIVEN_UP_SECONDS,
    HEADER,
    LENGTH,
    WRITERS,
    Readers,
    replace,
    shows,
    write,
    write_in_folder,
)
from tests.mount.conftest import Faults, Mounted
from tests.mount.connections import Connection
from tests.mount.mounts import is_mounted, is_running, opened
from tests.waiting import wait_until

GONE = {"ENOTCONN", "ECONNABORTED", "EIO", "ENOENT", "ENODEV", "EINTR"}
"""Errors when a mount ends; ENOENT comes from the empty mount point."""


def summed(*readers: Readers) -> dict[str, int]:
    """Return the counts of whole files and of errors; fail if readers saw anything else."""
    assert [reader.wrong for reader in readers] == [[]] * len(readers)
    seen: Counter[str] = Counter()
    for reader in readers:
        for what, count in reader.seen.items():
            seen["whole files of one version" if what.isdigit() else what] += count
    assert seen["whole files of one version"] > 0
    return dict(seen.most_common())


@pytest.mark.slow
def test_container_truncated_under_readers(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path) -> None:
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
    faults.add("container truncated and rewritten in place, under 8 readers", truncations, summed(buffered, direct))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_replaced_under_readers(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path, kind: str) -> None:
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
    faults.add("container replaced by a rename over it, under 8 readers", replacements, summed(buffered, direct))


def test_deleted_while_open(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path) -> None:
    """It stays readable for as long as it is open, and is given up after its last user."""
    deletions = scale(2, 5, 100)
    path = write_in_folder(tmp_path)
    seen: Counter[str] = Counter()
    with mounted(path.parent) as mount:
        shown = mount.path / "changing/signal/data.npy"
        for number in range(1, deletions + 1):
            write(path, number)
            wait_until(shows(shown, number))
            with opened(shown, os.O_DIRECT) as descriptor:
                os.pread(descriptor, 1000, 0)
                path.unlink()
                wait_until(lambda: not shown.exists())
                seen["ENOENT"] += 1
                assert os.pread(descriptor, LENGTH, HEADER) == bytes([number]) * LENGTH
                seen["whole files of the deleted one, as it was open"] += 1
                assert mount.deleted_files() == 1
            wait_until(lambda: not mount.deleted_files(), GIVEN_UP_SECONDS, "the end of the deleted version")
        assert is_running(mount.pid)
    faults.add("container deleted while it is read", deletions, seen)


def test_flipped_bit_in_every_second_block(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path) -> None:
    """Each costs one file and a line in the log. Codecs may ignore some bits, such as those in the header of zstd."""
    blocks = scale(8, 200)
    seen: Counter[str] = Counter()
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
                    seen["EIO, each for the file of that block"] += 1
                    damaged.append(name)
                    with pytest.raises(OSError, match="Input/output error"):
                        shown.read_bytes()
                else:
                    assert right
                    assert name not in flipped or codec != "none"
                    seen["right files with a bit flipped that the codec ignores"] += name in flipped
                    seen["right files beside them"] += name not in flipped
            for name, line in zip(damaged, mount.log_lines()[before:], strict=True):
                assert path.name in line and f"signal/{name}" in line
            assert mount.status()["errors"] >= 2 * len(damaged)
            assert is_running(mount.pid)
    assert seen["EIO, each for the file of that block"] >= 0.98 * 3 * blocks / 2
    faults.add("bit flipped in a block", 3 * blocks // 2, +seen)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill -9", "SIGTERM", "SIGHUP", "abort of the connection"])
def test_daemon_ends_under_readers(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path, fault: str) -> None:
    """All readers get errors, the daemon ends, and a new mount at the same path shows everything."""
    if "abort" in fault and os.geteuid() != 0:
        pytest.skip("only root can cut a connection")
    endings = scale(1, 2, 50)
    path, point = tmp_path / "changing", tmp_path / "mnt"
    write(path, 7, "compressed")
    point.mkdir()
    shown = point / "signal/data.npy"
    seen: Counter[str] = Counter()
    for _ in range(endings):
        with mounted(path, at=point, options=["cache_size=1M"]) as mount:
            with Readers(shown, direct=False, count=8) as cached, Readers(shown, direct=True, count=8) as direct:
                wait_until(lambda: min(cached.seen["7"], direct.seen["7"]) > 16)
                if "abort" in fault:
                    Connection(mount.path).abort()
                else:
                    os.kill(mount.pid, signal.SIGKILL if fault == "kill -9" else signal.Signals[fault])
                wait_until(lambda pid=mount.pid: not is_running(pid))  # type: ignore[misc]
                cached.wait_for_rounds()
                direct.wait_for_rounds()
            for readers in (cached, direct):
                assert set(readers.wrong) <= GONE and set(readers.seen) <= {"7", *GONE}
                seen += Counter({what: count for what, count in readers.seen.items() if what != "7"})
            if fault != "kill -9":
                wait_until(lambda: not is_mounted(point))
                assert os.listdir(point) == []
            with mounted(path, at=point) as again:
                assert shows(shown, 7)()
                assert sum("whose daemon is gone" in line for line in again.log_lines()) == (fault == "kill -9")
                seen["whole files after the next mount"] += 1
    faults.add(f"daemon ended by {fault} while a file is open", endings, seen)


def test_lazy_unmount_while_busy(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path) -> None:
    endings = scale(1, 2, 50)
    path = tmp_path / "changing"
    write(path, 7)
    seen: Counter[str] = Counter()
    for _ in range(endings):
        with mounted(path) as mount, (mount.path / "signal/data.npy").open("rb") as file:
            assert len(file.read(1000)) == 1000
            mount.unmount("--lazy")
            assert not is_mounted(mount.path)
            file.seek(HEADER)
            assert file.read() == bytes([7]) * LENGTH
            seen["whole files, read to the end"] += 1
            assert is_running(mount.pid)
            assert os.listdir(mount.path) == []
    faults.add("`umount --lazy` while a file is read", endings, seen)


@pytest.fixture
def small_disk(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)  # another mount namespace may hold it


def test_spool_disk_full(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path, small_disk: Path) -> None:
    """A block that does not fit can be read as soon as there is space."""
    endings = scale(1, 2, 50)
    path = tmp_path / "large.wshard"
    video = np.random.default_rng(5).integers(0, 4, (100, 50_000), np.uint8)
    with WShardWriter(path, codec="zstd") as writer:
        writer.add_channel("video", video)
    seen: Counter[str] = Counter()
    with mounted(path, options=["cache_size=4M", f"spool={small_disk}"]) as mount:
        shown = mount.path / "signal/video.npy"
        for _ in range(endings):
            with pytest.raises(OSError) as raised:
                shown.read_bytes()
            assert raised.value.errno == errno.ENOSPC
            seen["ENOSPC"] += 1
            wait_until(lambda: os.statvfs(small_disk).f_bfree > 250)  # of 256; concurrent writers need some
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        assert shown.read_bytes()[HEADER:] == video.tobytes()
        seen["whole file once there was space"] += 1
        assert is_running(mount.pid)
        assert sum("cannot be kept there: No space left on device" in line for line in mount.log_lines()) == 1
    faults.add("disk of the spool full", endings, seen)


@pytest.mark.slow
def test_damaged_block_opened_by_64_readers_at_once(mounted: Mounted, faults: Faults, tmp_path: Path) -> None:
    """All of them wait for one decode, which fails; other blocks stay readable."""
    path = tmp_path / "bad.wshard"
    good = np.arange(80_000, dtype=np.uint8).reshape(-1, 8)
    with WShardWriter(path, codec="zstd") as writer:
        writer.add_channel("bad", good)
        writer.add_channel("good", good)
    path.write_bytes(with_flipped(path.read_bytes(), "signal/bad", 20))
    seen: Counter[str] = Counter()
    with mounted(path) as mount:
        together = threading.Barrier(64)

        def read() -> None:
            together.wait()
            try:
                (mount.path / "signal/bad.npy").read_bytes()
            except OSError as error:
                seen[errno.errorcode[error.errno or 0]] += 1

        threads = [threading.Thread(target=read) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert dict(seen) == {"EIO": 64}
        assert (mount.path / "signal/good.npy").read_bytes()[HEADER:] == good.tobytes()
    faults.add("damaged block opened by 64 readers at once", 1, seen)
