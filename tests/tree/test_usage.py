"""The size of the sources: summed up in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from glassfs.errors import DeviceFailed
from glassfs.settings import settings
from glassfs.source import Entry, Path
from glassfs.tree.containers.containers import Location
from glassfs.tree.sources.walk import Usage
from tests.memory_store import MemoryStore
from tests.tree.made import made
from tests.tree.trees import sources_of
from tests.waiting import wait_until


def test_all_files_at_and_below_the_places_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_wait", 60)
    store = MemoryStore({"a": b"1", "folder/b": b"22", "folder/deep/c": b"333", "other/d": b"4444"})
    assert Usage([Location(store, ())])() == 10
    assert Usage([Location(store, ("a",)), Location(store, ("folder",)), Location(store, ("missing",))])() == 6


def test_parts_of_a_single_container_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder they are found there; beside a container they are no source of their own."""
    monkeypatch.setattr(settings, "usage_wait", 60)
    manifest, parts = made(parts=["p", "q"]), {"x/p": bytes(1000), "x/q": bytes(20_000)}
    store = MemoryStore({"x/m": manifest, **parts, "x/other": bytes(300_000)})
    for names, expected in ((["x/m"], len(manifest) + 21_000), (["x"], len(manifest) + 321_000)):
        sources = sources_of(store, *names)
        assert Usage(sources.locations.values(), sources.made_of)() == expected


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


def test_unlistable_folders_are_left_out_of_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_wait", 60)
    store = MemoryStore({"a": b"1", "bad/b": b"22"})
    list_all = store.list

    def failing(path: Path) -> Iterator[tuple[str, Entry]]:
        if path == ("bad",):
            raise DeviceFailed("no")
        return list_all(path)

    monkeypatch.setattr(store, "list", failing)
    assert Usage([Location(store, ())])() == 1


def test_without_a_thread_the_last_sum_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usage_wait", 0.0)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    usage = Usage([Location(MemoryStore({"a": b"1"}), ())])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert usage() == usage() == 0
    wait_until(lambda: usage() == 1)
