"""Several processes share a persistent cache, fork, and are killed while they write."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from glassfs.persistent import cache as cache_module
from glassfs.settings import settings
from glassfs.source.remote.blocks import FILE
from tests.conftest import Scale
from tests.persistent.test_blocks import BLOCK, BUDGET, OVERHEAD, cached, content, fill, opened, taken
from tests.waiting import wait_for, wait_until

WRITER = """
import random, sys
from glassfs.source.remote.blocks import DiskCache
folder, budget, block, seed, count = sys.argv[1], *map(int, sys.argv[2:])
cache = DiskCache(folder, budget)
chance = random.Random(seed)
for turn in range(count):
    number = chance.randrange(60)
    data = random.Random(number).randbytes(block)
    cache.put("key", "tag", number, data)
    if not turn:
        print("begun", flush=True)
    number = chance.randrange(60)
    found = cache.get("key", "tag", {number: block})
    assert found is None or found[0] == random.Random(number).randbytes(block), number
print("done", flush=True)
"""


def writer(folder: Path, seed: int, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, os.fspath(folder), *map(str, (BUDGET, BLOCK, seed, count))]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.slow
def test_processes_share_the_budget(folder: Path, scale: Scale) -> None:
    both = [writer(folder, seed, scale(200, 1500)) for seed in range(2)]
    seen = []

    def have_ended() -> bool:
        seen.append(taken(folder))
        return all(process.poll() is not None for process in both)

    wait_until(have_ended, 600)
    for process in both:
        assert process.communicate()[0] == "done\n"
        assert process.returncode == 0
    assert BUDGET // 2 < max(seen) <= BUDGET + OVERHEAD
    assert cached(opened(folder, BUDGET), range(60))


@pytest.mark.slow
def test_killed_writers_leave_whole_blocks_within_budget(folder: Path, scale: Scale) -> None:
    """Every block is right or missing."""
    for turn in range(scale(4, 30, 400)):
        pair = [writer(folder, 2 * turn + which, 1_000_000) for which in range(2)]
        time.sleep(random.Random(turn).random() * 0.1)
        for process in pair:
            process.kill()
        for process in pair:
            process.communicate()
        assert taken(folder) <= BUDGET + OVERHEAD
        cache = opened(folder, BUDGET)
        assert cached(cache, range(60))
        cache.put("key", "tag", 0, content(0))
        assert taken(folder) <= BUDGET + OVERHEAD
        fill(cache, range(30))
        assert cached(cache, range(30))[-2:] == [28, 29]
        cache.close()


def test_fork_waits_for_threads_that_change_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes use the cache afterwards."""
    monkeypatch.setattr(settings, "disk_lock", 60)
    cache = opened(folder)
    is_inside, is_forking = threading.Event(), threading.Event()

    count_bytes = cache_module._bytes_in_use

    def wait(connection: sqlite3.Connection) -> int:
        if not is_inside.is_set():
            is_inside.set()
            wait_for(is_forking)
        return count_bytes(connection)

    monkeypatch.setattr(cache_module, "_bytes_in_use", wait)
    os.register_at_fork(before=is_forking.set)  # called before those that were registered earlier
    thread = threading.Thread(target=cache.put, args=("key", "tag", 0, content(0)))
    thread.start()
    wait_for(is_inside)
    child = os.fork()
    if not child:
        status = 1
        try:
            cache.put("key", "tag", 1, content(1))
            status = 0 if cached(cache, range(3)) == [0, 1] else 2
            cache.close()
        finally:
            os._exit(status)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    cache.put("key", "tag", 2, content(2))
    assert cached(cache, range(4)) == [0, 1, 2]


def test_locked_file_delays_readers_for_a_moment_only(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(folder)
    cache.put("key", "tag", 0, content(0))
    other = sqlite3.connect(folder / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert cached(cache, range(1)) == []
    cache.put("key", "tag", 1, content(1))
    other.execute("ROLLBACK")
    assert cached(cache, range(2)) == [0]
    cache.put("key", "tag", 1, content(1))
    assert cached(cache, range(2)) == [0, 1]
    other.close()
    assert not caplog.records
