"""A4: many callers of df share one walk through the source, and none of them waits for its end.

``tests/tree/test_usage.py`` shows with a store that blocks that callers are answered before the walk has ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.security.conftest import Shared
from tests.security.places import make_folder
from tests.security.users import STRANGER, Child
from tests.waiting import wait_until

FILES, FOLDERS = 30_000, 30
CALLERS = 16


def walk(folder: Path) -> int:
    """Sum up the bytes of all files, as df has to."""
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names)


def stat_folders(path: Path) -> int:
    return sum(os.stat(path / f"{number:03d}").st_nlink > 0 for number in range(FOLDERS))


@pytest.mark.slow
def test_concurrent_df_calls_share_one_walk(shared: Shared, place: Path) -> None:
    """Measured in processor time against one walk through the same source: sixteen walks take far more."""
    source = make_folder(place / "source")
    for folder in range(FOLDERS):
        made = make_folder(source / f"{folder:03d}")
        for number in range(FILES // FOLDERS):
            with open(made / f"{number:04d}", "wb") as file:
                file.truncate(1000)
    begin = time.process_time()
    assert walk(source) == 1000 * FILES
    one_walk = time.process_time() - begin
    daemon = shared(source)
    spent = daemon.cpu_seconds()
    callers = [Child(os.statvfs, daemon.path, user=STRANGER) for _ in range(CALLERS)]
    beside = Child(stat_folders, daemon.path, user=STRANGER)
    assert {caller.result().f_bfree for caller in callers} == {0}
    assert beside.result() == FOLDERS

    def shown() -> int:
        status = os.statvfs(daemon.path)
        return status.f_blocks * status.f_frsize

    wait_until(lambda: shown() >= 1000 * FILES)
    assert daemon.cpu_seconds() - spent < 1 + 10 * one_walk
