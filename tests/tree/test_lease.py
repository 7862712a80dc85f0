"""Leases: sources stay open while a version is in use, and are parked with the last release."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from glassfs.tree.lease import Lease
from tests.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore({"a": b"a", "b": b"b"})


def lease_of(store: MemoryStore) -> Lease:
    return Lease([store.source((name,), store.entry((name,))) for name in "ab"])


def read(lease: Lease) -> bytes:
    return b"".join(source.read(0, 1) for source in lease.sources)


def test_sources_stay_open_until_the_last_release(store: MemoryStore) -> None:
    lease = lease_of(store)
    assert read(lease) == b"ab"
    assert not store.held
    with lease, lease:
        assert read(lease) == b"ab"
        assert store.held == set(lease.sources)
        with lease:
            pass
        assert store.held == set(lease.sources)
    assert not store.held
    with lease:
        assert read(lease) == b"ab"
        assert store.held == set(lease.sources)
    assert not store.held


def test_releasing_too_often_raises_and_changes_nothing(store: MemoryStore) -> None:
    lease = lease_of(store)
    with lease:
        pass
    with pytest.raises(RuntimeError):
        lease.release()
    with lease:
        read(lease)
        assert len(store.held) == 2
    assert not store.held


def test_threads_come_and_go(store: MemoryStore) -> None:
    lease = lease_of(store)
    start = threading.Barrier(8)

    def use(_: int) -> None:
        start.wait(60)
        for _ in range(300):
            with lease:
                assert read(lease) == b"ab"
                assert len(store.held) == 2

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert not store.held
