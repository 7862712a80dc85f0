"""A4: df is answered at once, however much there is in the source and however many ask."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.security.conftest import Shared
from tests.security.places import make_folder
from tests.security.users import STRANGER, Child
from tests.waiting import wait_until

FILES, FOLDERS = 60_000, 60
CALLERS = 16


def walk(folder: Path) -> int:
    """The bytes of all files, as df has to find them."""
    total = 0
    for place, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
    return total


def asking(path: Path) -> float:
    """Seconds until df was answered."""
    begin = time.monotonic()
    os.statvfs(path)
    return time.monotonic() - begin


def looking(path: Path) -> float:
    """The longest of some stats, in seconds."""
    longest = 0.0
    for number in range(50):
        begin = time.monotonic()
        os.stat(path / f"{number % FOLDERS:03d}")
        longest = max(longest, time.monotonic() - begin)
        time.sleep(0.01)
    return longest


@pytest.mark.slow
def test_many_df_of_many_files(shared: Shared, place: Path) -> None:
    """Compared with how long one walk through the source takes here and now: sixteen walks take far longer."""
    source = make_folder(place / "source")
    for folder in range(FOLDERS):
        made = make_folder(source / f"{folder:03d}")
        for number in range(FILES // FOLDERS):
            with open(made / f"{number:04d}", "wb") as file:
                file.truncate(1000)
    begin = time.monotonic()
    assert walk(source) == 1000 * FILES
    one_walk = time.monotonic() - begin
    daemon = shared(source)
    spent = daemon.cpu_seconds()
    callers = [Child(asking, daemon.path, user=STRANGER) for _ in range(CALLERS)]
    beside = Child(looking, daemon.path, user=STRANGER)
    times, longest_look = [caller.result() for caller in callers], beside.result()
    assert max(times) < 2 + one_walk / 2, times
    assert longest_look < 2 + one_walk / 2
    wait_until(lambda: os.statvfs(daemon.path).f_blocks * os.statvfs(daemon.path).f_frsize >= 1000 * FILES)
    assert daemon.cpu_seconds() - spent < 1 + 10 * one_walk, "the source was walked through more than once or twice"
    assert os.statvfs(daemon.path).f_bfree == 0
