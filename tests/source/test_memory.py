"""The store for tests keeps what every store promises, and can be slow and fail."""

from __future__ import annotations

import pytest

from glassfs.errors import DeviceFailed, Unavailable
from glassfs.source import Path
from tests.memory_store import MemoryStore
from tests.source.store_suite import Lab, StoreSuite


class MemoryLab(Lab):
    def __init__(self) -> None:
        self.store: MemoryStore = MemoryStore()

    def put(self, path: str, data: bytes) -> None:
        self.store.put(path, data)

    def rewrite(self, path: str, data: bytes) -> None:
        self.store.rewrite(path, data)

    def remove(self, path: str) -> None:
        self.store.remove(path)

    def link(self, path: str, target: str) -> None:
        self.store.link(path, target)

    def set_permissions(self, path: str, permissions: int) -> None:
        self.store.set_permissions(path, permissions)


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def lab(self) -> Lab:
        return MemoryLab()


def test_configured_failures_are_raised() -> None:
    store = MemoryStore({"a": b"a", "b": b"b"})
    store.opening["a"], store.reading["b"] = Unavailable("later"), DeviceFailed("never")
    with pytest.raises(Unavailable):
        store.open(("a",))
    source = store.open(("b",))
    with pytest.raises(DeviceFailed):
        source.read(0, 1)
    store.opening.clear()
    store.reading.clear()
    assert source.read(0, 1) + store.open(("a",)).read(0, 1) == b"ba"


def test_reads_are_counted() -> None:
    store = MemoryStore({"a": b"abc"})
    store.open(("a",)).read(0, 2)
    assert (store.opens, store.reads, store.bytes_read) == (1, 1, 2)


def test_held_sources_are_recorded() -> None:
    store = MemoryStore({"a": b"abc"})
    source = store.open(("a",))
    assert store.held == {source}
    source.park()
    source.read(0, 1)
    assert store.held == set()
    source.keep()
    source.read(0, 1)
    assert store.held == {source}
    source.close()
    assert store.held == set()


def test_watches_end_with_their_folder_and_when_they_are_lost() -> None:
    told: list[tuple[Path, str]] = []
    store = MemoryStore({"runs/a": b"", "b": b""})
    for path in ((), ("runs",)):
        assert store.watch(path, lambda path, name: told.append((path, name)))
    store.remove("runs/a")
    assert sorted(told) == [((), "runs"), (("runs",), ""), (("runs",), "a")]
    assert list(store.watched) == [()]
    told.clear()
    store.end_watches()
    store.put("c", b"")
    assert told == [((), "")]
    store.can_watch = False
    assert not store.watch((), lambda path, name: None)
