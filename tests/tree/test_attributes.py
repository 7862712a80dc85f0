"""Attributes: who may read what, how much work finding a size may take, and the sum of all sizes."""

from __future__ import annotations

import itertools
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from glassfs import work
from glassfs.content.data import Data
from glassfs.errors import DeviceFailed, TooLarge
from glassfs.settings import settings
from glassfs.source import Entry, Path
from glassfs.tree.containers.containers import Location
from glassfs.tree.lease import Lease
from glassfs.tree.nodes import EXPANSION, SIZING_BYTES, Access, File
from glassfs.tree.sources.walk import Usage
from tests.memory_store import MemoryStore
from tests.tree.made import made
from tests.tree.trees import entry, origin, sources_of
from tests.waiting import wait_until

# Access: what all files of a container grant together, and what becomes of it when a file's mode changes.

ENTRIES = st.lists(
    st.builds(entry, st.integers(0, 0o777), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4,
)
PEOPLE = [(uid, groups) for uid in range(4) for size in range(4) for groups in itertools.combinations(range(4), size)]


def granted(permissions: int, owner: int, group: int, uid: int, groups: tuple[int, ...]) -> int:
    """What the kernel grants a user: the first class that matches counts."""
    if uid == owner:
        return permissions >> 6 & 7
    return permissions >> 3 & 7 if group in groups else permissions & 7


@given(ENTRIES)
@examples(deadline=None, max_examples=300)
def test_no_user_gets_more_than_every_file_grants(entries: list[Entry]) -> None:
    access = Access.of(entries)
    for uid, groups in PEOPLE:
        least = 7
        for file in entries:
            least &= granted(file.permissions, file.uid, file.gid, uid, groups)
        assert granted(*access, uid, groups) & ~least == 0


@given(st.builds(entry, st.integers(0, 0o777), st.integers(0, 2), st.integers(0, 2)), st.integers(1, 3))
@examples(deadline=None)
def test_equal_files_grant_what_each_does(file: Entry, count: int) -> None:
    assert Access.of([file] * count) == (file.permissions, file.uid, file.gid)


@given(st.integers(0, 0o777))
@examples(deadline=None)
def test_modes_have_no_write_bits_and_search_where_readable(permissions: int) -> None:
    made_with = replace(origin(), access=Access(permissions, 0, 0))
    assert stat.S_IMODE(made_with.file_mode) == permissions & 0o444
    for shift in (0, 3, 6):
        bits = stat.S_IMODE(made_with.directory_mode) >> shift & 7
        assert bits == (5 if permissions >> shift & 4 else 0)


@pytest.mark.parametrize("names", [(), ("some",)], ids=["in a folder", "named"])
def test_a_changed_mode_shows_and_drops_cached_blocks(names: tuple[str, ...]) -> None:
    """S5: the bytes may have changed along without a trace, so they are read again; who has them open goes on."""
    store = MemoryStore()
    raw = bytes(range(256)) * 100
    store.put("some", made({"x.z": raw}))
    sources = sources_of(store, *names)
    root = "" if names else "/some"
    node = sources.tree.file(f"{root}/x.z.bin")
    with node.origin.lease:
        assert node.read(0, 1 << 20) == raw
        reads, misses = store.reads, sources.containers.services.cache.misses
        assert node.read(0, 1 << 20) == raw
        assert store.reads == reads
        store.set_permissions("some", 0o600)
        assert sources.refresh() == [root]
        assert sources.refresh() == []
        again = sources.tree.file(f"{root}/x.z.bin")
        assert (node.mode, again.mode, again.ino) == (0o100444, 0o100400, node.ino)
        assert again.read(0, 1 << 20) == node.read(0, 1 << 20) == raw
        assert store.reads > reads
        assert sources.containers.services.cache.misses == misses + 1
        assert not node.origin.lease.is_retired


# B8: how much work finding the size of a file may take, compared with the size of its container.

STORED = 1000
ALLOWED = SIZING_BYTES + EXPANSION * STORED


class Laborious(Data):
    """Data whose size is found by reading ``needed`` bytes."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.passes = 0

    is_sized = False

    @property
    def size(self) -> int:
        self.passes += 1
        for _ in range(10):
            work.check(self.needed // 10)
        return 7

    def read_into(self, buffer: memoryview, offset: int) -> None:
        raise NotImplementedError


def file_of(data: Data, stored: int = STORED) -> File:
    source = cast(Any, SimpleNamespace(size=stored, name="a.kdb"))
    return File("a.parquet", 5, replace(origin(), lease=Lease([source] if stored else [])), data)


def test_size_beyond_the_budget_is_refused_once_and_for_all() -> None:
    data = Laborious(ALLOWED + 100)
    file = file_of(data)
    for _ in range(2):
        with pytest.raises(TooLarge, match=r"^a\.kdb: a\.parquet: its size takes too long"):
            _ = file.size
    assert data.passes == 1
    work.check(ALLOWED)  # the budget is over


def test_processor_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, *[11.0] * 10])
    monkeypatch.setattr(work, "time", SimpleNamespace(thread_time=lambda: next(times)))
    with pytest.raises(TooLarge):
        _ = file_of(Laborious(0)).size


def test_what_is_of_no_container_has_limits_of_its_own() -> None:
    assert file_of(Laborious(1 << 50), stored=0).size == 7


# The size of the sources: summed up in the background.


def test_all_files_at_and_below_the_places_count_that_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_wait", 60)
    store = MemoryStore({"a": b"1", "folder/b": b"22", "folder/deep/c": b"333", "other/d": b"4444", "bad/e": b"55555"})
    list_all = store.list

    def failing(path: Path) -> Iterator[tuple[str, Entry]]:
        if path == ("bad",):
            raise DeviceFailed("no")
        return list_all(path)

    monkeypatch.setattr(store, "list", failing)
    assert Usage([Location(store, ())])() == 10
    assert Usage([Location(store, ("a",)), Location(store, ("folder",)), Location(store, ("missing",))])() == 6


def test_parts_of_a_single_container_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder they are found there; beside a container they are no source of their own."""
    monkeypatch.setattr(settings, "usage_wait", 60)
    manifest, parts = made(parts=["p", "q"]), {"x/p": bytes(1000), "x/q": bytes(20_000)}
    store = MemoryStore({"x/m": manifest, **parts, "x/other": bytes(300_000)})
    for names, expected in ((["x/m"], len(manifest) + 21_000), (["x"], len(manifest) + 321_000)):
        sources = sources_of(store, *names)
        assert Usage(sources.locations.values(), sources.containers.watcher.find)() == expected


class Blocked(MemoryStore):
    """A store that lists nothing before ``go`` is set."""

    def __init__(self) -> None:
        super().__init__({"a": b"1", "folder/b": b"22"})
        self.go = threading.Event()
        self.listings = 0

    def list(self, path: Path) -> Iterator[tuple[str, Entry]]:
        self.listings += 1
        assert self.go.wait(60)
        return super().list(path)


def test_callers_do_not_wait_for_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_wait", 0.001)
    store = Blocked()
    usage = Usage([Location(store, ())])
    assert [usage() for _ in range(20)] == [0] * 20
    assert store.listings == 1  # by one for all
    store.go.set()
    wait_until(lambda: usage() == 3)
    store.put("c", bytes(100))
    assert usage() == 3  # good for a while


def test_the_sum_is_made_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_valid", 0.0)
    monkeypatch.setattr(settings, "usage_valid_times", 0)
    store = MemoryStore({"a": b"1"})
    usage = Usage([Location(store, ())])
    wait_until(lambda: usage() == 1)
    store.put("b", bytes(100))
    wait_until(lambda: usage() == 101)


def test_without_a_thread_the_last_sum_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_wait", 0.0)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    usage = Usage([Location(MemoryStore({"a": b"1"}), ())])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert usage() == usage() == 0
    wait_until(lambda: usage() == 1)
