"""A source that hangs delays only the processes that read in it."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from writers.kastore import KastoreWriter

from glassfs.settings import settings
from tests.mount.changing import REFUSALS
from tests.mount.conftest import Mounted
from tests.mount.connections import Connection
from tests.mount.gallery import npy
from tests.mount.hanging import FOREVER, HangingDisk
from tests.mount.mounts import PATIENCE, Mount, is_running
from tests.security.users import Child
from tests.waiting import wait_until

FILES = 40
MAX_THREADS = 200
"""Limit of a daemon's threads, however many requests hang."""
IDLE_THREADS = 40
NAMES = ("one", "two")
def array(name: str, number: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return an array that is large enough for the kernel to read ahead."""
    return np.arange(number, number + 200_000, dtype="<u4") * (1 + NAMES.index(name))


@pytest.fixture
def disk(as_root: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HangingDisk]:
    """A disk with ``one.kas``, beside a folder ``sound`` with ``two.kas``."""
    for folder, name in (("behind", "one"), ("sound", "two")):
        (tmp_path / folder).mkdir()
        with KastoreWriter(tmp_path / folder / f"{name}.kas") as store:
            for number in range(FILES):
                store.add(f"a{number:02d}", array(name, number))
    (tmp_path / "disk").mkdir()
    found = HangingDisk(tmp_path / "behind", tmp_path / "disk", request.param)
    yield found
    found.end()


hanging = pytest.mark.parametrize(
    "disk", [pytest.param(FOREVER, id="reads", marks=pytest.mark.slow), pytest.param(0, id="everything")],
    indirect=True,
)


def read(path: Path) -> bytes:
    """Read past the page cache, in one request."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        pages = mmap.mmap(-1, 1 << 20)
        return pages[: os.preadv(descriptor, [pages], 0)]
    finally:
        os.close(descriptor)


def gives(path: Path, expected: bytes) -> bool:
    """Return whether a file has these bytes. While it is replaced, reading may be refused."""
    try:
        return path.read_bytes() == expected
    except OSError as error:
        assert error.errno in REFUSALS
        return False


def use_sound_source(mount: Mount, rounds: int) -> None:
    """Make all kinds of requests to the source that does not hang, and check the answers."""
    sound = mount.path / "sound/two.kas"
    for turn in range(rounds):
        number = turn % FILES
        shown, expected = sound / f"a{number:02d}.npy", npy(array("two", number))
        assert os.stat(shown).st_size == len(expected)
        assert not (sound / f"none{turn}").exists()
        assert len(os.listdir(sound)) == FILES
        assert os.listdir(mount.path / "sound") == ["two.kas"]
        assert os.statvfs(mount.path).f_bsize > 0
        assert read(shown) == shown.read_bytes() == expected
        assert mount.status()["pid"] == mount.pid


def size_of(path: Path) -> bytes:
    """Make the kernel look up the path again, and return the size as text."""
    return b"%d" % path.stat().st_size


@pytest.mark.parametrize(("disk", "ask", "count"), [
    pytest.param(FOREVER, read, 64, id="reads", marks=pytest.mark.slow),
    pytest.param(0, read, 64, id="everything"),
    # The kernel limits requests in the background; here are more than that.
    pytest.param(FOREVER, Path.read_bytes, FILES, id="read-ahead", marks=pytest.mark.slow),
    # There are more look-ups than threads, and the look-up in the root hangs.
    pytest.param(0, size_of, 160, id="look-ups", marks=pytest.mark.slow),
], indirect=["disk"])
def test_hanging_readers_delay_no_other_process(
    mounted: Mounted, disk: HangingDisk, tmp_path: Path, ask: Callable[[Path], bytes], count: int,
) -> None:
    """All readers get the right bytes when the source answers again."""
    expected = [npy(array("one", number)) for number in range(FILES)]
    with mounted(disk.path, tmp_path / "sound") as mount:
        slow = mount.path / "disk/one.kas"
        assert len(os.listdir(slow)) == FILES
        # Other tests make the kernel drop unused names, and two look-ups of a dropped one make one request.
        names = [os.open(slow / f"a{number:02d}.npy", os.O_PATH) for number in range(FILES)]
        use_sound_source(mount, 3)
        connection = Connection(mount.path)
        if ask is size_of:
            time.sleep(2 * settings.cached_unwatched)
            expected = [b"%d" % len(data) for data in expected]
        disk.stop()
        numbers = [number % FILES for number in range(count)]
        pool = ThreadPoolExecutor(count)
        try:
            waiting = [pool.submit(ask, slow / f"a{number:02d}.npy") for number in numbers]
            wait_until(lambda: connection.waiting >= count)
            Child(use_sound_source, mount, 5).result(PATIENCE)  # most files are not in the page cache
            assert not any(reader.done() for reader in waiting)
            assert mount.threads() < MAX_THREADS
        finally:
            disk.go_on()
            answers = [reader.result(PATIENCE) for reader in waiting]
            pool.shutdown()
            for name in names:
                os.close(name)
        assert answers == [expected[number] for number in numbers]
        wait_until(lambda: mount.threads() < IDLE_THREADS)
        assert mount.status()["errors"] == 0


@pytest.mark.slow
@hanging
def test_sound_source_changes_while_another_hangs(mounted: Mounted, disk: HangingDisk, tmp_path: Path) -> None:
    with mounted(disk.path, tmp_path / "sound") as mount, ThreadPoolExecutor(1) as pool:
        slow, sound = mount.path / "disk/one.kas/a00.npy", mount.path / "sound/two.kas/a00.npy"
        assert (slow.stat().st_size, sound.read_bytes()) == (sound.stat().st_size, npy(array("two", 0)))
        disk.stop()
        try:
            waiting = pool.submit(read, slow)
            with KastoreWriter(tmp_path / "new") as store:
                store.add("a00", array("two", 7))
            (tmp_path / "new").replace(tmp_path / "sound/two.kas")
            Child(wait_until, lambda: gives(sound, npy(array("two", 7)))).result(2 * PATIENCE)
        finally:
            disk.go_on()
        assert waiting.result(PATIENCE) == npy(array("one", 0))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(("disk", "what"), [(FOREVER, "read"), (0, "look-up")], indirect=["disk"])
def test_process_waiting_for_a_hanging_source_can_be_killed(
    mounted: Mounted, disk: HangingDisk, tmp_path: Path, what: str, number: signal.Signals,
) -> None:
    with mounted(disk.path, tmp_path / "sound") as mount:
        shown = mount.path / "disk/one.kas/a00.npy"
        if what == "read":
            assert shown.stat().st_size > 0
        connection = Connection(mount.path)
        disk.stop()
        try:
            reader = subprocess.Popen(["cat", shown], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until(lambda: connection.waiting > 0)
            reader.send_signal(number)
            assert reader.wait(PATIENCE) == -number
            Child(use_sound_source, mount, 1).result(PATIENCE)
        finally:
            disk.go_on()
        wait_until(lambda: Child(read, shown).result(PATIENCE) == npy(array("one", 0)))
        assert is_running(mount.pid)


@pytest.mark.slow
@hanging
def test_sigterm_ends_the_mount_while_a_source_hangs(mounted: Mounted, disk: HangingDisk, tmp_path: Path) -> None:
    """Waiting readers get an error."""
    with mounted(disk.path, tmp_path / "sound") as mount, ThreadPoolExecutor(8) as pool:
        shown = [mount.path / f"disk/one.kas/a{number:02d}.npy" for number in range(8)]
        assert all(path.stat().st_size for path in shown)
        connection = Connection(mount.path)
        disk.stop()
        try:
            waiting = [pool.submit(read, path) for path in shown]
            wait_until(lambda: connection.waiting == len(shown))
            os.kill(mount.pid, signal.SIGTERM)
            for reader in waiting:
                error = reader.exception(PATIENCE)
                assert isinstance(error, OSError)
                assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
            wait_until(lambda: not os.path.ismount(mount.path))
        finally:
            disk.go_on()
        wait_until(lambda: not is_running(mount.pid))
