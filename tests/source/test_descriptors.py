"""Test the descriptor pool: a bounded number, the oldest closed first, and exhaustion."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from glassfs.errors import Changed, Unavailable
from glassfs.source import descriptors
from glassfs.source.descriptors import Descriptors
from glassfs.source.local import LocalStore
from tests.conftest import ROOT
from tests.source.test_local import held


class Holder:
    def __init__(self) -> None:
        self.is_open = True
        self.has_name = True

    def evict(self, is_forced: bool = False) -> bool:
        self.is_open = not (self.has_name or is_forced)
        return not self.is_open


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Descriptors:
    """Return a pool for four descriptors."""
    monkeypatch.setattr(descriptors, "limit", lambda: 4)
    return Descriptors()


def test_the_oldest_descriptors_are_closed_first(few: Descriptors) -> None:
    holders = [Holder() for _ in range(6)]
    for holder in holders:
        few.add(holder)
    assert [holder.is_open for holder in holders] == [False, False, True, True, True, True]


def test_deleted_files_stay_open_while_there_is_room(few: Descriptors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "room_for_lost", lambda: 3)
    lost = [Holder() for _ in range(5)]
    for holder in lost:
        holder.has_name = False
    for holder in lost[:3]:
        few.add(holder)
    others = [Holder() for _ in range(40)]
    for holder in others:
        few.add(holder)
    assert all(holder.is_open for holder in lost[:3])
    assert sum(holder.is_open for holder in others) == 4
    few.discard(lost[0])
    for holder in (*lost[3:], *(Holder() for _ in range(10))):
        few.add(holder)
    assert [holder.is_open for holder in lost[1:]] == [False, True, True, True]
    few.release_all()
    assert [holder.is_open for holder in lost[1:]] == [False, True, True, True]
    few.release_lost()
    assert not any(holder.is_open for holder in lost[1:])


def test_the_limit_follows_the_process_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, expected, lost in (
        (64, 16, 0), (256, 112, 0), (1024, 128, 368), (1 << 20, 128, 3968), (10, 8, 0),
        (resource.RLIM_INFINITY, 128, 3968),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert (descriptors.limit(), descriptors.room_for_lost()) == (expected, lost)


def test_a_deleted_file_in_use_keeps_its_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept until the source is parked."""
    monkeypatch.setattr(descriptors, "limit", lambda: 4)
    monkeypatch.setattr(descriptors, "room_for_lost", lambda: 3)
    monkeypatch.setattr(descriptors, "pool", Descriptors())
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(b"%02d" % number)
    store = LocalStore(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    deleted, replaced, unused = (store.open((f"{number}",)) for number in range(3))
    unused.park()
    (tmp_path / "2").unlink()
    (tmp_path / "0").unlink()
    (tmp_path / "new").write_bytes(b"else")
    (tmp_path / "new").rename(tmp_path / "1")
    others = [store.open((f"{number}",)) for number in range(3, 20)]
    for _ in range(2):
        for number, source in zip((0, 1, *range(3, 20)), (deleted, replaced, *others), strict=True):
            assert source.read(0, 2) == b"%02d" % number
    with pytest.raises(Changed):
        unused.read(0, 2)
    assert len(os.listdir("/proc/self/fd")) < before + 15
    for source in (deleted, replaced):
        source.park()
        with pytest.raises(Changed):
            source.read(0, 2)
    store.close()


def test_parked_sources_do_not_evict_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 8)
    pool = Descriptors()
    monkeypatch.setattr(descriptors, "pool", pool)
    (tmp_path / "a").write_bytes(b"a")
    store = LocalStore(tmp_path)
    kept = [store.open(("a",)) for _ in range(8)]
    store.close()
    parked = store.source(("a",), kept[0].entry)
    for _ in range(50):
        parked.read(0, 1)
    store.close()
    assert held(tmp_path) == 8


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("has_name", [True, False])
def test_sources_close_theirs_when_none_is_left(
    monkeypatch: pytest.MonkeyPatch, number: int, has_name: bool,
) -> None:
    pool = Descriptors()
    monkeypatch.setattr(descriptors, "pool", pool)
    holders = [Holder() for _ in range(3)]
    for holder in holders:
        holder.has_name = has_name
        pool.add(holder)

    def open_one() -> int:
        if any(holder.is_open for holder in holders):
            raise OSError(number, os.strerror(number))
        return 7

    assert descriptors.opened(open_one) == 7
    holders[0].is_open = True
    with pytest.raises(Unavailable):
        descriptors.opened(open_one)


PROGRAM = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.tree.made import use_made, made
use_made()
import glassfs.errors
from glassfs.library import open_tree
folder = sys.argv[1]
for number in range(500):
    with open(f"{folder}/{number}", "wb") as file:
        file.write(made(a=b"%03d" % number))
tree = open_tree(folder)
spare = []
try:
    while True:
        spare.append(os.open("/", os.O_RDONLY))
except OSError:
    for number in spare[-6:]:
        os.close(number)
def read(number):
    return tree.file(f"{number}/a.bin").read(0, 3)
assert [read(number) for number in range(500)] == [b"%03d" % number for number in range(500)]
nodes = [tree.file(f"{number}/a.bin") for number in range(500)]
assert [node.read(0, 3) for node in nodes] == [b"%03d" % number for number in range(500)]
assert len(tree.root.listing()) == 500
assert len(os.listdir("/proc/self/fd")) <= 64
del nodes
tree.close()
some = []
try:
    while True:
        some.append(os.open("/", os.O_RDONLY))
except OSError:
    pass
try:
    read(1)
    raise AssertionError("there was a descriptor left")
except glassfs.errors.Unavailable:
    pass
for number in some:
    os.close(number)
assert read(1) == b"001"
"""


def test_five_hundred_containers_with_few_descriptors(tmp_path: Path) -> None:
    """No container is shown as a plain file, although nearly all of 64 descriptors are in use."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
