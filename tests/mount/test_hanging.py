"""A source that hangs: who reads in it waits, and nobody else does (A9)."""

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

from tests.conftest import Scale
from tests.mount.changing import REFUSALS
from tests.mount.conftest import Mounted
from tests.mount.connections import Connection
from tests.mount.gallery import npy
from tests.mount.hanging import HangingDisk
from tests.mount.mounts import PATIENCE, Mount, is_running
from tests.security.users import Child
from tests.waiting import wait_until

READERS = 64
LOOKERS = 160
FILES = 40
BOUND = 200
"""Threads of a daemon, whatever hangs."""
QUIET = 40
"""Threads of a daemon that has nothing to do."""
PLACES = ("one", "two")
pytestmark = pytest.mark.usefixtures("libfuse3")


def array(name: str, number: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Large enough for the kernel to read ahead, in requests that nobody waits for."""
    return np.arange(number, number + 200_000, dtype="<u4") * (1 + PLACES.index(name))


@pytest.fixture
def disk(as_root: None, libfuse3: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HangingDisk]:
    """A disk with ``one.kas`` beside a folder ``sound`` with ``two.kas``; for what it remembers, see HangingDisk."""
    for folder, name in (("behind", "one"), ("sound", "two")):
        (tmp_path / folder).mkdir()
        with KastoreWriter(tmp_path / folder / f"{name}.kas") as store:
            for number in range(FILES):
                store.add(f"a{number:02d}", array(name, number))
    (tmp_path / "disk").mkdir()
    found = HangingDisk(tmp_path / "behind", tmp_path / "disk", request.param)
    yield found
    found.end()


ONLY_READS = pytest.param(10**6, id="reads")
EVERYTHING = pytest.param(0, id="everything")
hanging = pytest.mark.parametrize("disk", [ONLY_READS, EVERYTHING], indirect=True)


@pytest.fixture
def interruptible(fuse: str) -> None:
    """libfuse 2 waits for the thread that answers, whoever has given up the request, and also at the end."""
    if fuse == "2":
        pytest.skip("libfuse 2 does not take requests back")


def read(path: Path) -> bytes:
    """As its reader has it, whatever the kernel keeps; into whole pages, so that it is one request."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        pages = mmap.mmap(-1, 1 << 20)
        return pages[: os.preadv(descriptor, [pages], 0)]
    finally:
        os.close(descriptor)


def gives(path: Path, expected: bytes) -> bool:
    """Whether a file has these bytes; not yet, if it is being exchanged."""
    try:
        return path.read_bytes() == expected
    except OSError as error:
        assert error.errno in REFUSALS
        return False


def threads(mount: Mount) -> int:
    return len(os.listdir(f"/proc/{mount.pid}/task"))


def looks(mount: Mount, rounds: int) -> dict[str, list[float]]:
    """What others do meanwhile, and how many seconds each took. Raises where an answer is wrong."""
    sound = mount.path / "sound/two.kas"
    took: dict[str, list[float]] = {}

    def timed(what: str, ask: Callable[[], bool]) -> None:
        begun = time.perf_counter()
        assert ask(), what
        took.setdefault(what, []).append(time.perf_counter() - begun)

    for turn in range(rounds):
        number = turn % FILES
        shown, expected = sound / f"a{number:02d}.npy", npy(array("two", number))
        timed("stat", lambda shown=shown, expected=expected: os.stat(shown).st_size == len(expected))
        timed("stat of what is not there", lambda turn=turn: not (sound / f"none{turn}").exists())
        timed("ls", lambda: len(os.listdir(sound)) == FILES)
        timed("ls of a folder", lambda: os.listdir(mount.path / "sound") == ["two.kas"])
        timed("df", lambda: os.statvfs(mount.path).f_bsize > 0)
        timed("read, not cached", lambda shown=shown, expected=expected: read(shown) == expected)
        timed("cat", lambda shown=shown, expected=expected: shown.read_bytes() == expected)
        timed("status", lambda: mount.status()["pid"] == mount.pid)
    return took


@hanging
def test_hanging_readers_delay_no_other_process(
    mounted: Mounted, disk: HangingDisk, tmp_path: Path, scale: Scale, record_property: Callable[[str, object], None],
) -> None:
    """64 of them, in different files and in the same; later they all get the right bytes."""
    with mounted(disk.path, tmp_path / "sound") as mount:
        slow = mount.path / "disk/one.kas"
        assert len(os.listdir(slow)) == FILES
        looks(mount, 3)
        connection = Connection(mount.path)
        disk.stop()
        numbers = [number % FILES if number % 2 else 0 for number in range(READERS)]
        pool = ThreadPoolExecutor(READERS)
        try:
            waiting = [pool.submit(read, slow / f"a{number:02d}.npy") for number in numbers]
            wait_until(lambda: connection.waiting == READERS)
            took = Child(looks, mount, scale(10, 100)).result(PATIENCE)
            assert not any(reader.done() for reader in waiting)
            assert threads(mount) < BOUND
        finally:
            disk.go_on()
            answers = [reader.result(PATIENCE) for reader in waiting]
            pool.shutdown()
        assert answers == [npy(array("one", number)) for number in numbers]
        wait_until(lambda: threads(mount) < QUIET)
        assert mount.status()["errors"] == 0
    for what, seconds in took.items():
        record_property(f"p99 of {what} in ms", round(1000 * sorted(seconds)[int(0.99 * len(seconds))], 1))


@pytest.mark.slow
@pytest.mark.parametrize("disk", [ONLY_READS], indirect=True)
def test_hanging_read_ahead_delays_no_other_process(
    mounted: Mounted, disk: HangingDisk, tmp_path: Path,
) -> None:
    """The kernel has only so many such requests at a time: more than come together here."""
    with mounted(disk.path, tmp_path / "sound") as mount, ThreadPoolExecutor(FILES) as pool:
        slow = mount.path / "disk/one.kas"
        assert len(os.listdir(slow)) == FILES
        looks(mount, 3)
        connection = Connection(mount.path)
        disk.stop()
        try:
            waiting = [pool.submit((slow / f"a{number:02d}.npy").read_bytes) for number in range(FILES)]
            wait_until(lambda: connection.waiting >= FILES)
            Child(looks, mount, 10).result(PATIENCE)  # other files than before, which the kernel does not have
            assert not any(reader.done() for reader in waiting)
        finally:
            disk.go_on()
        assert [reader.result(PATIENCE) for reader in waiting] == [
            npy(array("one", number)) for number in range(FILES)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("disk", [EVERYTHING], indirect=True)
def test_many_lookups_of_a_hanging_source(mounted: Mounted, disk: HangingDisk, tmp_path: Path) -> None:
    """More of them than it may take up threads: it is their own look-up in the root that hangs."""
    with mounted(disk.path, tmp_path / "sound") as mount:
        shown = mount.path / "disk/one.kas/a00.npy"
        size = shown.stat().st_size
        connection = Connection(mount.path)
        time.sleep(1.0)  # until the kernel asks for the source again
        disk.stop()
        pool = ThreadPoolExecutor(LOOKERS)
        try:
            waiting = [pool.submit(os.stat, shown) for _ in range(LOOKERS)]
            wait_until(lambda: connection.waiting == LOOKERS)
            assert Child(looks, mount, 3).result(PATIENCE)
            assert threads(mount) < BOUND
        finally:
            disk.go_on()
            sizes = {reader.result(PATIENCE).st_size for reader in waiting}
            pool.shutdown()
        assert sizes == {size}


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
@pytest.mark.parametrize("what", ["read", "look-up"])
@hanging
def test_process_waiting_for_a_hanging_source_can_be_killed(
    mounted: Mounted, interruptible: None, disk: HangingDisk, tmp_path: Path, what: str, number: signal.Signals,
) -> None:
    """By Ctrl-C and by kill, though the source still hangs."""
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
            assert Child(looks, mount, 1).result(PATIENCE)
        finally:
            disk.go_on()
        wait_until(lambda: Child(read, shown).result(PATIENCE) == npy(array("one", 0)))
        assert is_running(mount.pid)


@hanging
def test_unmounting_and_signals_while_a_source_hangs(
    mounted: Mounted, interruptible: None, disk: HangingDisk, tmp_path: Path,
) -> None:
    """SIGTERM ends the mount; whoever waits gets an error."""
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
