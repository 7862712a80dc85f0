"""Data written by fio, packed into containers, and verified by fio through the mount."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter
from writers.wshard import WShardWriter

from tests.mount.conftest import Mounted
from tests.mount.mounts import Mount

SIZE = 4 << 20
NPY_HEADER = 128
VERIFY = ("--verify=crc32c", "--verify_interval=512", "--thread", "--minimal")


def fio(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["fio", f"--size={SIZE}", *VERIFY, *words], capture_output=True, text=True, check=False, cwd=cwd,
    )


def verify(path: Path, offset: int, *reading: str) -> subprocess.CompletedProcess[str]:
    return fio(
        "--name=read", f"--filename={path}", f"--offset={offset}", "--readonly", "--rw=read", "--verify_fatal=1",
        "--verify_state_save=0", *reading,
    )


def assert_verified(done: subprocess.CompletedProcess[str], jobs: int = 1) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    # Of the fields of the terse format, version 3, the sixth is the number of KiB read.
    read = [int(line.split(";")[5]) for line in done.stdout.splitlines()]
    assert read == [SIZE >> 10] * jobs


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an array and with raw and compressed bytes."""
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    folder, place = tmp_path_factory.mktemp("fio"), tmp_path_factory.mktemp("written")
    data = {}
    for offset in (0, NPY_HEADER):
        path = place / f"written_{offset}"
        done = fio(
            "--name=write", f"--filename={path}", "--rw=write", "--bs=4k", f"--offset={offset}", "--do_verify=0",
            "--buffer_compress_percentage=50", cwd=place,
        )
        assert done.returncode == 0, done.stderr
        data[offset] = path.read_bytes()[offset:]
    with KastoreWriter(folder / "fio.kas") as store:
        store.add("data", np.frombuffer(data[NPY_HEADER], np.uint8))
    with WShardWriter(folder / "fio.wshard", has_metadata=False) as writer:
        writer.add("data/zstd", data[0], codec="zstd")
        writer.add("data/none", data[0], codec="none")
    return folder


@pytest.fixture(scope="module")
def mount(packed: Path, mounted: Mounted) -> Iterator[Mount]:
    with mounted(packed) as mount:
        yield mount


@pytest.mark.parametrize(("jobs", "reading"), [
    pytest.param(1, "--bs=512 --ioengine=psync", marks=pytest.mark.slow),
    (4, "--bs=4k --ioengine=psync --direct=1"),
    pytest.param(4, "--bs=128k --ioengine=pvsync", marks=pytest.mark.slow),
    pytest.param(1, "--bs=1m --ioengine=psync --direct=1", marks=pytest.mark.slow),
    (4, "--bs=1m --ioengine=libaio --iodepth=8"),
])
def test_array_behind_its_header(mount: Mount, reading: str, jobs: int) -> None:
    done = verify(mount.path / "fio.kas/data.npy", NPY_HEADER, *reading.split(), f"--numjobs={jobs}")
    assert_verified(done, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("block", ["data/none.bin", "data/zstd.bin"])
@pytest.mark.parametrize("reading", ["--bs=4k --ioengine=mmap", "--bs=64k --ioengine=psync"])
def test_block(mount: Mount, block: str, reading: str) -> None:
    assert_verified(verify(mount.path / "fio.wshard" / block, 0, *reading.split(), "--numjobs=2"), 2)


def test_fio_would_notice(packed: Path, mounted: Mounted, tmp_path: Path) -> None:
    """One wrong bit in the container fails the verification."""
    damaged = bytearray((packed / "fio.kas").read_bytes())
    damaged[-100_000] ^= 1
    (tmp_path / "damaged.kas").write_bytes(damaged)
    with mounted(tmp_path) as mount:
        done = verify(mount.path / "damaged.kas/data.npy", NPY_HEADER, "--bs=4k")
    assert done.returncode != 0
    assert "crc32c" in done.stdout + done.stderr
