"""B2: requests of some users do not stop those of another, and end soon after the process that asked was killed.

The attacker's container is nearly all holes. Each list of its images goes through billions of frames of which only the
first has a picture, and would take minutes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassfs.sandbox.pool import MOST_WORKERS
from tests.conftest import Scale
from tests.formats.hdf5_files import h5py
from tests.security.bombs import EPISODES, write_holes
from tests.security.conftest import Shared
from tests.security.daemons import Daemon
from tests.security.test_workers import workers_of, write_numbers
from tests.security.users import STRANGER, Child, User
from tests.waiting import wait_until

VICTIM = User(54322, 54322)
ATTACKERS = STRANGER, User(100_001, 100_001), User(100_002, 100_002)
LARGE_FILES, LINKS = 30, 20_000
AT_MOST_SECONDS = 0.5
"""How long the 99th percentile of another user's requests may take."""
ATTEMPTS = 100

Request = Callable[[Path, int], None]
"""What a user does with a mount, by the number of the request or of the attacker."""


def list_images(at: Path, number: int) -> None:
    os.listdir(at / "holes.kdb/episodes" / str(number % EPISODES) / "images")


def look_around(at: Path, number: int) -> None:
    if number % 3 == 0:
        os.stat(at / "plain" / f"{number}.txt")
    elif number % 3 == 1:
        assert len(os.listdir(at / "plain")) == ATTEMPTS
    else:
        assert (at / "plain" / f"{number}.txt").read_bytes() == b"%d" % number


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def list_group(at: Path, number: int) -> None:
    """List a large group of one of many HDF5 files, again and again."""
    while True:
        os.listdir(at / f"large{number}.h5/group")
        number = (number + len(ATTACKERS)) % LARGE_FILES


def list_small_group(at: Path, number: int) -> None:
    assert os.listdir(at / f"small{number}.h5/group") == ["x.npy"]


def slowest(do: Request, at: Path) -> float:
    """Return how many seconds the slowest but one of another user's requests takes."""
    def seconds() -> list[float]:
        times = [time.monotonic()]
        for number in range(ATTEMPTS):
            do(at, number)
            times.append(time.monotonic())
        return sorted(after - before for before, after in itertools.pairwise(times))

    return float(Child(seconds, user=VICTIM).result()[int(0.99 * ATTEMPTS) - 1])


@contextmanager
def attack(do: Request, at: Path, attackers: int) -> Iterator[None]:
    children = [Child(do, at, number, user=ATTACKERS[number % len(ATTACKERS)]) for number in range(attackers)]
    try:
        yield
    finally:
        for child in children:
            child.kill()


@pytest.fixture
def hdf5_mounted(shared: Shared, place: Path) -> Daemon:
    folder = place / "shown"
    folder.mkdir()
    with h5py.File(folder / "large0.h5", "w", libver="latest") as file:
        group = file.create_group("group")
        for number in range(LINKS):
            group.create_group(f"{number}")
    for number in range(1, LARGE_FILES):
        shutil.copy(folder / "large0.h5", folder / f"large{number}.h5")
    for number in range(ATTEMPTS):
        write_numbers(folder / f"small{number}.h5")
    return shared(folder)


@pytest.fixture
def mounted(shared: Shared, place: Path) -> Daemon:
    folder = place / "shown"
    (folder / "plain").mkdir(parents=True)
    write_holes(folder / "holes.kdb")
    for number in range(ATTEMPTS):
        (folder / "plain" / f"{number}.txt").write_bytes(b"%d" % number)
    return shared(folder)


def idles(daemon: Daemon) -> bool:
    """Whether the daemon takes hardly any processor time."""
    before = processor_seconds(daemon.pid)
    time.sleep(0.5)
    return processor_seconds(daemon.pid) - before < 0.1


@pytest.mark.slow
def test_users_are_answered_beside_an_attack(mounted: Daemon, scale: Scale) -> None:
    with attack(list_images, mounted.path, scale(20, 150)):
        wait_until(lambda: processor_seconds(mounted.pid) > scale(1, 3))
        assert slowest(look_around, mounted.path) < AT_MOST_SECONDS
        begun = time.monotonic()
        assert mounted.status()["pid"] == mounted.pid
        assert time.monotonic() - begun < AT_MOST_SECONDS
    begun = time.monotonic()
    wait_until(lambda: idles(mounted))
    assert time.monotonic() - begun < 3  # two, and the half second that finding out takes


@pytest.mark.slow
def test_users_read_hdf5_beside_an_attack(hdf5_mounted: Daemon, scale: Scale) -> None:
    """Each worker is kept busy by other users, who have more files than there are workers."""
    with attack(list_group, hdf5_mounted.path, scale(20, 60)):
        wait_until(lambda: len(workers_of(hdf5_mounted.pid)) >= MOST_WORKERS)
        assert slowest(list_small_group, hdf5_mounted.path) < AT_MOST_SECONDS
    wait_until(lambda: len(workers_of(hdf5_mounted.pid)) <= MOST_WORKERS)
