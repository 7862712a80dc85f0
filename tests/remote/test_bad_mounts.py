"""Mounts of servers that fail: errors of readers, the disk cache, and what other users may see."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from glassfs.source.remote.blocks import BLOCK as PAGE
from glassfs.source.remote.blocks import FILE
from tests.mount.conftest import Mounted
from tests.mount.mounts import is_running
from tests.remote.conftest import Serving
from tests.remote.faults import Fault, Redirect, Stall, Status, for_each
from tests.remote.s3 import Bucket, S3Server
from tests.remote.test_bad_networks import is_part
from tests.security.users import STRANGER, Child
from tests.waiting import wait_until

SIZE = 6 << 20
CONTENT = random.Random(5).randbytes(SIZE)


def errno_of(path: Path, offset: int = 0, size: int = 4096) -> int:
    """Return the errno of reading a part of a file, or 0."""
    number = -1
    try:
        number = os.open(path, os.O_RDONLY)
        os.pread(number, size, offset)
    except OSError as error:
        return error.errno or -1
    finally:
        if number >= 0:
            os.close(number)
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Status(503), Stall(100), Redirect("http://127.0.0.1:1/")], ids=str)
def test_lasting_faults_spare_other_files(fault: Fault, serving: Serving, mounted: Mounted) -> None:
    bucket = Bucket({"data/bad": CONTENT, "data/good": CONTENT})
    with serving(bucket) as server, mounted("s3://bucket/data", options=["timeout=1"]) as mount:
        server.faults = for_each(fault, lambda request: request.path.endswith("/bad") and is_part(request))
        assert errno_of(mount.path / "bad", 1 << 20) in (errno.EIO, errno.ESTALE)
        assert (mount.path / "good").read_bytes() == CONTENT
        lines = [line for line in mount.log_lines() if "s3://bucket/data/bad" in line]
        assert lines and all(line.isprintable() for line in lines)
        server.faults = ()
        wait_until(lambda: errno_of(mount.path / "bad", 1 << 20) == 0)
        assert (mount.path / "bad").read_bytes() == CONTENT


@pytest.mark.slow
def test_replaced_container_is_estale_then_new(serving: Serving, mounted: Mounted, tmp_path: Path) -> None:
    """Open files fail with ESTALE and never return a mix; files opened later have the new bytes after the poll."""

    def container(value: float) -> Path:
        path = tmp_path / f"{value}.kas"
        with KastoreWriter(path) as store:
            store.add("values", np.full(400_000, value))
        return path

    bucket = Bucket({"data/some.kas": container(1.0), "data/plain": CONTENT})
    with serving(bucket), mounted("s3://bucket/data", options=["poll=0.5"]) as mount:
        values, plain = mount.path / "some.kas/values.npy", mount.path / "plain"
        assert np.load(values)[0] == 1.0
        number = os.open(plain, os.O_RDONLY)
        assert os.pread(number, 10, 0) == CONTENT[:10]
        bucket.put("data/some.kas", container(2.0))
        bucket.put("data/plain", CONTENT[::-1])
        seen = set()

        def is_new() -> bool:
            with suppress(OSError, ValueError):
                seen.update(np.unique(np.load(values)))
            return 2.0 in seen

        wait_until(is_new)
        assert seen <= {1.0, 2.0}
        with pytest.raises(OSError) as raised:
            for offset in range(1 << 20, SIZE, 4096):
                assert os.pread(number, 100, offset) == CONTENT[offset : offset + 100]
        assert raised.value.errno in (errno.ESTALE, errno.EIO)
        os.close(number)

        def is_read_anew() -> bool:
            with suppress(OSError):
                return plain.read_bytes() == CONTENT[::-1]
            return False

        wait_until(is_read_anew)
        bucket.delete("data/some.kas")
        wait_until(lambda: "some.kas" not in os.listdir(mount.path))


# Silent servers


@pytest.fixture
def many_arrays(tmp_path: Path) -> Path:
    path = tmp_path / "many.kas"
    with KastoreWriter(path) as store:
        for number in range(40):
            store.add(f"array{number:02}", np.full(200_000, float(number)))
    return path


@pytest.mark.slow
def test_silent_server_fails_reads_and_nothing_else(many_arrays: Path, serving: Serving, mounted: Mounted) -> None:
    """Cached attributes are answered while reads wait, and SIGTERM ends the mount."""
    with (
        serving(Bucket({"many.kas": many_arrays})) as server,
        mounted("s3://bucket/many.kas", options=["timeout=2", "poll=1"]) as mount,
    ):
        files = sorted(path for path in mount.path.iterdir() if path.suffix == ".npy")
        assert len(files) == 40
        for path in files:
            path.stat()
        server.hold()
        try:
            with ThreadPoolExecutor(32) as readers:
                reads = [readers.submit(errno_of, path, 800_000) for path in files[8:]]
                stats = 0
                while not all(read.done() for read in reads):
                    os.stat(files[0])
                    stats += 1
                assert stats > 0
                assert {read.result() for read in reads} == {errno.EIO}
            threads = [threading.Thread(target=errno_of, args=(path, 800_000)) for path in files[:8]]
            for thread in threads:
                thread.start()
            os.kill(mount.pid, signal.SIGTERM)
            wait_until(lambda: not is_running(mount.pid))
            for thread in threads:
                thread.join()
        finally:
            server.release()


# The disk cache


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.kas"
    with KastoreWriter(path) as store:
        store.add("data", np.frombuffer(random.Random(9).randbytes(24 << 20), np.uint8))
    return path


@pytest.fixture
def asked(large: Path, serving: Serving) -> Iterator[S3Server]:
    with serving(Bucket({"data/large.kas": large})) as server:
        yield server


def blocks_on(disk: Path) -> int:
    """Return the number of blocks in a disk cache."""
    with closing(sqlite3.connect(f"file:{disk / FILE}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM entries").fetchone()[0])


@pytest.mark.slow
@pytest.mark.parametrize("source", ["s3://bucket/data/large.kas", "s3://bucket/data"])
def test_second_mount_reads_no_more_than_the_facts(
    source: str, asked: S3Server, large: Path, mounted: Mounted, tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    options = [f"disk_cache={disk}", "poll=3600", "cache_size=128M"]
    inside = "data.npy" if source.endswith(".kas") else "large.kas/data.npy"
    with mounted(source, options=options) as mount:
        data = (mount.path / inside).read_bytes()
        wait_until(lambda: blocks_on(disk) == -(-large.stat().st_size // PAGE))
    asked.reset()
    with mounted(source, options=options) as mount:
        assert (mount.path / inside).read_bytes() == data
    if source.endswith(".kas"):
        assert asked.count() == 1 and asked.sent < 300_000, "its facts, with its first bytes"
    else:
        assert asked.count() == asked.count(where=lambda request: request.is_listing) > 0
        assert asked.sent < 10_000


# Other users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("options", "may"), [
    ("", False), pytest.param("umask=0", True, marks=pytest.mark.slow),
    pytest.param(f"uid={STRANGER.uid}", True, marks=pytest.mark.slow),
])
def test_mount_of_root_follows_allow_other_options(
    options: str, may: bool, serving: Serving, mounted: Mounted, public_folder: Path, many_arrays: Path,
) -> None:
    place = public_folder / "mnt"
    place.mkdir()
    with (
        serving(Bucket({"data/many.kas": many_arrays, "data/text": b"text"})),
        mounted("s3://bucket/data", at=place, options=["allow_other", *filter(None, [options])]) as mount,
    ):

        def look() -> list[int]:
            found = []
            for path in (place, place / "many.kas"):
                try:
                    os.listdir(path)
                    found.append(0)
                except OSError as error:
                    found.append(error.errno or -1)
            return [*found, errno_of(place / "text"), errno_of(place / "many.kas/array01.npy")]

        assert Child(look, user=STRANGER).result() == [0 if may else errno.EACCES] * 4
        assert look() == [0] * 4
        assert mount.status()["pid"] == mount.pid


