"""Reading by blocks: the bytes, the memory they take, errors, and the disk cache."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from glassfs.cache import BlockCache
from glassfs.errors import Changed, DeviceFailed, GlassfsError, NotAllowed, Unavailable
from glassfs.settings import settings
from glassfs.source.remote.blocks import DiskCache, RemoteBlocks
from tests.source.remote.counting import (
    PAGE,
    PATH,
    CountingServer,
    Gate,
    K,
    M,
    content,
    opened,
    read,
    read_all,
    remote_source,
    used,
)
from tests.waiting import wait_for, wait_until


@pytest.fixture
def server() -> CountingServer:
    return CountingServer()


def blocks_of(budget: int, disk: DiskCache | None = None) -> RemoteBlocks:
    return RemoteBlocks(BlockCache(budget), disk)


def used_by(blocks: RemoteBlocks) -> int:
    return blocks._cache.used  # type: ignore[attr-defined]


# Bytes


# Errors


def test_waiting_readers_share_one_request(server: CountingServer) -> None:
    facts = server.put(10 * M)
    remote = opened(server, facts)
    gate = Gate(server)
    with ThreadPoolExecutor(16) as threads:
        readers = [threads.submit(read, remote, M + place * K, 4 * K) for place in range(16)]
        wait_until(lambda: gate.waiting)
        assert read(remote, 0, 4 * K) == content(facts, 0, 4 * K)
        gate.open()
        for place, reader in enumerate(readers):
            assert reader.result() == content(facts, M + place * K, 4 * K)
    assert len(server.requests) == 1


def test_error_reaches_all_waiting_readers_only(server: CountingServer) -> None:
    facts = server.put(10 * M)
    remote = opened(server, facts)
    gate = Gate(server)
    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, remote, M + place, 1) for place in range(8)]
        wait_until(lambda: gate.waiting)
        gate.open(NotAllowed("the server does not allow it"))
        errors = [reader.exception() for reader in readers]
    assert {str(error) for error in errors} == {"fake://server/run.kdb: the server does not allow it"}
    assert all(type(error) is NotAllowed for error in errors)
    assert len(set(map(id, errors))) == 8
    assert read(remote, M, 4 * K) == content(facts, M, 4 * K)


@pytest.mark.parametrize(("error", "kind"), [
    (RuntimeError("https://user:secret@host"), DeviceFailed), (MemoryError("secret"), Unavailable),
    (DeviceFailed("no answer", "a name"), DeviceFailed),
])
@pytest.mark.parametrize("is_at_once", [False, True])
def test_unexpected_errors_are_reported_without_secrets(
    server: CountingServer, error: Exception, kind: type[GlassfsError], is_at_once: bool,
) -> None:
    remote = opened(server, server.put(10 * M))

    def fail(future: Future[bytes], data: bytes) -> None:
        if is_at_once:
            raise error
        future.set_exception(error)

    server.answer = fail
    with pytest.raises(kind) as caught:
        read(remote, M, 4 * K)
    assert "secret" not in str(caught.value)
    assert caught.value is not error
    assert used(remote) == PAGE


def test_failed_read_ahead_is_not_reported(server: CountingServer) -> None:
    facts = server.put(20 * M)
    remote = opened(server, facts)
    read_all(remote, facts, 128 * K, 0, M)
    gate = Gate(server)
    start = (PAGE + server.fetched) // PAGE * PAGE
    read_all(remote, facts, 128 * K, M, start)
    assert gate.waiting
    gate.open(DeviceFailed("silence"))
    read_all(remote, facts, 128 * K, start)


@pytest.mark.parametrize("is_late", [False, True])
def test_request_that_times_out_is_canceled(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch, is_late: bool,
) -> None:
    """An answer that comes later is ignored, and the next read makes a request again."""
    monkeypatch.setattr(settings, "server_fail_fast", 0.0)
    monkeypatch.setattr(settings, "server_grace", 0.0)
    facts = server.put(10 * M)
    remote = opened(server, facts)
    server.timeout = 0.05
    begun: list[Future[bytes]] = []

    def answer(future: Future[bytes], data: bytes) -> None:
        if is_late:
            future.set_running_or_notify_cancel()  # cannot be canceled any more
        begun.append(future)

    server.answer = answer
    with pytest.raises(DeviceFailed, match=r"fake://server/run\.kdb: no answer within 0.05 seconds"):
        read(remote, M, 4 * K)
    if is_late:
        begun[0].set_result(bytes(server.requests[0][1]))
    else:
        assert begun[0].cancelled()
    assert used(remote) == PAGE
    server.answer = None
    server.timeout = 60.0
    assert read(remote, M, 4 * K) == content(facts, M, 4 * K)


def test_pages_of_a_changed_object_are_dropped(server: CountingServer) -> None:
    facts = server.put(10 * M)
    blocks = blocks_of(64 * M)
    remote = remote_source(blocks, server, PATH, facts)
    read(remote, 0, M)
    other = server.put(10 * M, "two")
    with pytest.raises(Changed, match=r"fake://server/run\.kdb: has other bytes now"):
        read(remote, 5 * M, 4 * K)
    assert used_by(blocks) == 0
    assert read(remote_source(blocks, server, PATH, other), 5 * M, 4 * K) == content(other, 5 * M, 4 * K)


# The disk cache


class Disk(DiskCache):
    """A disk cache in a dictionary. Writes wait for the event ``wait``."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, int, int], bytes] = {}
        self.wait = threading.Event()
        self.wait.set()

    def get(self, object_key: str, validator: str, sizes: Mapping[int, int]) -> list[bytes] | None:
        found = [self.kept.get((object_key, validator, *block)) for block in sizes.items()]
        parts = [part for part in found if part is not None]
        return parts if len(parts) == len(found) else None

    def put(self, object_key: str, validator: str, number: int, data: bytes | bytearray | memoryview) -> None:
        wait_for(self.wait)
        self.kept[object_key, validator, number, len(data)] = bytes(data)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_finish_waits_for_the_disk_but_not_forever(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch, is_stuck: bool,
) -> None:
    monkeypatch.setattr(settings, "disk_finish", 0.01 if is_stuck else 60.0)
    facts = server.put(2 * M)
    disk = Disk()
    disk.wait.clear()
    blocks = blocks_of(64 * M, disk)
    read(remote_source(blocks, server, PATH, facts), 0, 2 * M)

    def written_by_finish() -> int:
        blocks.finish()
        return sum(map(len, disk.kept.values()))

    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(written_by_finish)
        if is_stuck:
            assert written.result() == 0
        disk.wait.set()
        assert written.result() == (0 if is_stuck else facts.size)


def test_blocks_with_holes_on_disk_are_fetched_whole(server: CountingServer) -> None:
    facts = server.put(4 * M)
    disk = Disk()
    read(remote_source(blocks_of(64 * M, disk), server, PATH, facts), 0, 2 * M)
    wait_until(lambda: len(disk.kept) == 8)
    keys = sorted(disk.kept, key=lambda key: key[2])
    del disk.kept[keys[2]]
    del disk.kept[keys[5]]
    del server.requests[:]
    assert read(remote_source(blocks_of(64 * M, disk), server, PATH, facts), 0, 2 * M) == content(facts, 0, 2 * M)
    assert server.requests == [(0, 2 * M)]


def test_slow_disk_delays_no_reader(server: CountingServer) -> None:
    """Pages that cannot be written soon are not written, and memory stays within the budget."""
    facts = server.put(20 * M)
    disk = Disk()
    disk.wait.clear()
    blocks = blocks_of(8 * M, disk)
    remote = remote_source(blocks, server, PATH, facts)
    read_all(remote, facts, 128 * K)
    assert used_by(blocks) <= 8 * M
    assert server.fetched == facts.size
    disk.wait.set()
    wait_until(lambda: len(disk.kept) >= 2 * M // PAGE)
