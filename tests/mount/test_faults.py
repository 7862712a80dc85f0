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
from tests.mount.changing import HEADER, LENGTH, WRITERS, Readers, replace, shows, write, write_in_folder
from tests.mount.conftest import Faults, Mounted
from tests.mount.mounts import is_mounted, is_running, opened
from tests.waiting import wait_until

GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV)


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
                assert os.pread(descriptor, LENGTH, HEADER) == bytes([number]) * LENGTH
                seen["whole files of the deleted one, as it was open"] += 1
            wait_until(lambda: not shown.exists())
            seen["ENOENT"] += 1
        assert is_running(mount.pid)
    faults.add("container deleted while it is read", deletions, seen)


@pytest.mark.slow
def test_flipped_bit_in_every_second_block(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path) -> None:
    """Codecs may ignore some bits, such as those in the header of zstd."""
    blocks = scale(20, 200)
    seen: Counter[str] = Counter()
    generator = np.random.default_rng(11)
    for codec in ("none", "zstd", "lz4"):
        path = tmp_path / f"{codec}.wshard"
        arrays = {f"block{number:03d}": generator.integers(0, 4, (500, 8), np.uint8) for number in range(blocks)}
        with WShardWriter(path, codec=codec) as writer:
            for name, array in arrays.items():
                writer.add_channel(name, array)
        with mounted(path) as mount:
            where = {
                name: (
                    int(os.getxattr(mount.path / f"signal/{name}.npy", "user.glassfs.offset")),
                    int(os.getxattr(mount.path / f"signal/{name}.npy", "user.glassfs.stored_bytes")),
                )
                for name in arrays
            }
        data = bytearray(path.read_bytes())
        flipped = list(arrays)[::2]
        for name in flipped:
            offset, stored = where[name]
            data[offset + int(generator.integers(stored))] ^= 1 << int(generator.integers(8))
        path.write_bytes(data)
        with mounted(path) as mount:
            for name, array in arrays.items():
                shown = mount.path / f"signal/{name}.npy"
                try:
                    right = shown.read_bytes()[HEADER:] == array.tobytes()
                except OSError as error:
                    assert error.errno == errno.EIO
                    assert name in flipped
                    seen["EIO, each for the file of that block"] += 1
                else:
                    assert right
                    assert name not in flipped or codec != "none"
                    seen["right files with a bit flipped that the codec ignores"] += name in flipped
                    seen["right files beside them"] += name not in flipped
            assert is_running(mount.pid)
    assert seen["EIO, each for the file of that block"] >= 0.98 * 3 * blocks / 2
    faults.add("bit flipped in a block", 3 * blocks // 2, +seen)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill -9", "SIGTERM"])
def test_daemon_ends_under_readers(mounted: Mounted, faults: Faults, scale: Scale, tmp_path: Path, fault: str) -> None:
    """A new mount at the same path shows everything again."""
    endings = scale(1, 2, 50)
    path, point = tmp_path / "changing", tmp_path / "mnt"
    write(path, 7)
    point.mkdir()
    seen: Counter[str] = Counter()
    for _ in range(endings):
        with mounted(path, at=point) as mount:
            shown = point / "signal/data.npy"
            assert shows(shown, 7)()
            with opened(shown, os.O_DIRECT) as descriptor:
                os.pread(descriptor, LENGTH, HEADER)
                os.kill(mount.pid, signal.SIGKILL if fault == "kill -9" else signal.SIGTERM)
                wait_until(lambda pid=mount.pid: not is_running(pid))  # type: ignore[misc]
                with pytest.raises(OSError) as raised:
                    os.pread(descriptor, LENGTH, HEADER)
                assert raised.value.errno in GONE
                seen[errno.errorcode[raised.value.errno or 0]] += 1
            assert is_mounted(point) == (fault == "kill -9")
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
    with mounted(path) as mount:
        offset = int(os.getxattr(mount.path / "signal/bad.npy", "user.glassfs.offset"))
    data = bytearray(path.read_bytes())
    data[offset + 20] ^= 1
    path.write_bytes(data)
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
