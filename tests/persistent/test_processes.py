"""The disk cache and its processes: several at a time, forked off, and killed while they write."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassfs.persistent import cache as cache_module
from glassfs.persistent import files as files_module
from glassfs.persistent.files import NEW
from glassfs.source.remote.server import Facts
from tests.conftest import Scale
from tests.persistent.test_blocks import BLOCK, BUDGET, INDEX, blocks, content, kept, opened, taken, used


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


WRITER = """
import random, sys
from glassfs.source.remote.disk import DiskCache
from glassfs.source.remote.server import Facts
folder, budget, block, seed, count = sys.argv[1], *map(int, sys.argv[2:])
cache = DiskCache(folder, budget)
chance = random.Random(seed)
print("begun", flush=True)
for turn in range(count):
    number = chance.randrange(60)
    data = random.Random(number).randbytes(block)
    cache.put("key", "tag", number, data)
    cache.note_facts(f"key {number}", Facts(number, "tag", 0))
    number = chance.randrange(60)
    found = cache.get("key", "tag", number, block)
    assert found is None or found == random.Random(number).randbytes(block), number
print("done", flush=True)
"""


def writer(folder: Path, seed: int, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, os.fspath(folder), *map(str, (BUDGET, BLOCK, seed, count))]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_two_processes_share_the_bound(small_disk: Path, scale: Scale) -> None:
    folder = small_disk / "kept"
    both = [writer(folder, seed, scale(200, 3000)) for seed in range(2)]
    most = 0
    while any(process.poll() is None for process in both):
        most = max(most, used(small_disk))
    for process in both:
        assert process.communicate()[0] == "done\n"
        assert process.returncode == 0
    assert BUDGET // 2 < most <= BUDGET + 2 * BLOCK
    assert taken(folder) <= BUDGET
    assert kept(opened(folder, BUDGET), range(60))


def test_killed_while_it_writes(folder: Path, scale: Scale) -> None:
    """Every block is right or missing, the bound is kept, and nothing is left over."""
    for turn in range(scale(4, 60, 400)):
        pair = [writer(folder, 2 * turn + which, 1_000_000) for which in range(2)]
        time.sleep(random.Random(turn).random() * 0.1)
        for process in pair:
            process.kill()
        for process in pair:
            process.communicate()
        assert taken(folder) <= BUDGET + 2 * BLOCK
        cache = opened(folder, BUDGET)
        assert not list(folder.glob(f"{NEW}*"))
        assert kept(cache, range(60))
        for number in range(60):
            assert cache.facts(f"key {number}") in (None, Facts(number, "tag", 0))
        cache.put("key", "tag", 0, content(0))
        assert taken(folder) <= BUDGET
        for number in range(30):
            cache.put("key", "tag", number, content(number))
        assert kept(cache, range(30))[-2:] == [28, 29]
        cache.close()


def test_what_a_living_process_writes_is_not_swept_away(folder: Path) -> None:
    opened(folder)
    files = files_module.Files(os.fspath(folder))
    (folder / f"{NEW}dead").write_bytes(b"half of a")
    os.symlink("/etc/passwd", folder / f"{NEW}link")
    with files.written(b"header", b"data", 0):
        assert len(list(folder.glob(f"{NEW}*"))) == 3
        opened(folder)
        names = {path.name for path in folder.glob(f"{NEW}*")}
        assert f"{NEW}dead" not in names and len(names) == 2
    assert not (folder / f"{NEW}dead").exists()


def test_sweeping_disturbs_no_writer(folder: Path, scale: Scale, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(folder)
    files = files_module.Files(os.fspath(folder))
    numbers = range(scale(150, 2000))
    is_done = threading.Event()

    def sweep() -> None:
        while not is_done.is_set():
            files.sweep()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for number in numbers:
            cache.put("key", "tag", number, content(number, 1000))
    finally:
        is_done.set()
        thread.join()
    assert kept(cache, numbers, size=1000) == list(numbers)
    assert not caplog.records


def before_first(monkeypatch: pytest.MonkeyPatch, owner: object, call: str, do: Callable[[], None]) -> None:
    """Has something happen before a function is called for the first time."""
    real = getattr(owner, call)

    def called(*arguments: object, **named: object) -> object:
        monkeypatch.setattr(owner, call, real)
        do()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, call, called)


def test_what_was_swept_before_it_was_locked_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(folder)
    before_first(monkeypatch, files_module.fcntl, "flock", files_module.Files(os.fspath(folder)).sweep)
    cache.put("key", "tag", 0, content(0))
    assert kept(cache, range(1)) == [0]


def test_a_block_that_was_given_up_while_it_was_written_is_not_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would count it any more."""
    def give_up() -> None:
        connection = sqlite3.connect(folder / INDEX)
        connection.executescript("DELETE FROM blocks; UPDATE totals SET bytes = 0")
        connection.close()

    cache = opened(folder)
    before_first(monkeypatch, os, "writev", give_up)
    cache.put("key", "tag", 0, content(0))
    assert not blocks(folder) and not list(folder.glob(f"{NEW}*"))


def test_nothing_is_left_that_only_an_index_knows_which_was_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = opened(folder)
    before_first(monkeypatch, os, "writev", (folder / INDEX).unlink)
    cache.put("key", "tag", 0, content(0))
    assert not blocks(folder) and not list(folder.glob(f"{NEW}*"))


def test_a_block_of_another_length_goes_before_the_new_one_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = opened(folder)
    cache.put("key", "tag", 0, content(0))
    seen: list[Path] = []
    before_first(monkeypatch, os, "writev", lambda: seen.append(folder) if blocks(folder) else None)
    cache.put("key", "tag", 0, content(0, 1000))
    assert not seen
    assert cache.get("key", "tag", 0, 1000) == content(0, 1000)


def test_file_systems_without_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    cache = opened(folder)
    (folder / f"{NEW}other").write_bytes(b"half of a")
    monkeypatch.setattr(files_module.fcntl, "flock", fail)
    files_module.Files(os.fspath(folder)).sweep()
    assert (folder / f"{NEW}other").exists()  # nobody knows whose it is
    cache.put("key", "tag", 0, content(0))
    assert kept(cache, range(1)) == [0]


def test_room_of_the_dead_is_found_while_others_live(folder: Path) -> None:
    """What was counted and never finished goes when its turn comes, and with it what is left of it."""
    cache = opened(folder, BUDGET)
    cache.put("key", "tag", 0, content(0))
    (folder / f"{NEW}dead").write_bytes(bytes(BLOCK))
    connection = sqlite3.connect(folder / INDEX)
    connection.execute("INSERT INTO blocks VALUES (?, ?, 0)", (bytes(16), BLOCK))
    connection.execute("UPDATE totals SET bytes = bytes + ?", (BLOCK,))
    connection.commit()
    connection.close()
    for number in range(40):
        cache.put("key", "tag", number, content(number))
        assert taken(folder) <= BUDGET
    assert not (folder / f"{NEW}dead").exists()


def test_a_process_that_was_forked_off_goes_on_with_it(folder: Path) -> None:
    cache = opened(folder)
    cache.put("key", "tag", 0, content(0))
    child = os.fork()
    if not child:
        status = 1
        try:
            cache.put("key", "tag", 1, content(1))
            status = 0 if kept(cache, range(3)) == [0, 1] else 2
            cache.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    cache.put("key", "tag", 2, content(2))
    assert kept(cache, range(4)) == [0, 1, 2]


def test_forked_off_while_another_thread_changes_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LOCK_TIMEOUT_SECONDS", 60)
    cache = opened(folder)
    is_inside = threading.Event()

    def wait() -> None:
        is_inside.set()
        time.sleep(0.05)

    before_first(monkeypatch, os, "rename", wait)
    thread = threading.Thread(target=cache.put, args=("key", "tag", 0, content(0)))
    thread.start()
    assert is_inside.wait(60)
    child = os.fork()
    if not child:
        status = 1
        try:
            cache.put("key", "tag", 1, content(1))
            status = 0 if kept(cache, range(3)) == [0, 1] else 2
        finally:
            os._exit(status)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    cache.put("key", "tag", 2, content(2))
    assert kept(cache, range(4)) == [0, 1, 2]


def test_an_index_that_another_process_holds_delays_no_reader(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(folder)
    cache.put("key", "tag", 0, content(0))
    other = sqlite3.connect(folder / INDEX, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert kept(cache, range(1)) == [0]
    cache.put("key", "tag", 1, content(1))
    assert kept(cache, range(2)) == [0]
    other.execute("ROLLBACK")
    cache.put("key", "tag", 1, content(1))
    assert kept(cache, range(2)) == [0, 1]
    other.close()
    assert not caplog.records


def test_sqlite_is_for_those_who_need_it() -> None:
    program = "import sys, glassfs.source.remote.disk; assert 'sqlite3' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
