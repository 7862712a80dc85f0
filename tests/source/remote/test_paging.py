"""Reading by pages: what it gives, what memory it takes, and what goes wrong."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from glassfs.errors import Changed, Damaged, DeviceFailed, GlassfsError, NotAllowed, Unavailable
from glassfs.source.remote import paging
from glassfs.source.remote.paging import PageCache, PagedObject
from glassfs.source.remote.server import Facts
from glassfs.source.scattered import Scattered, Spans
from tests.source.remote.counting import (
    BLOCK,
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
)
from tests.waiting import wait_until


@pytest.fixture
def server() -> CountingServer:
    return CountingServer()


# What is read.


@pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, PAGE + 1, PAGE + BLOCK, PAGE + BLOCK + 1])
def test_objects_of_all_sizes(server: CountingServer, size: int) -> None:
    facts = server.put(size)
    assert read(PageCache(M).object(server, PATH, facts), 0, size) == content(facts, 0, size)
    paged = opened(server, facts)
    assert read(paged, size - 1, 1) == content(facts, size - 1, 1)
    assert read(paged, 0, size) == content(facts, 0, size)


def test_an_empty_object_costs_nothing(server: CountingServer) -> None:
    facts = server.put(0)
    assert read(opened(server, facts), 0, 0) == b""
    assert server.requests == []


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (100, 1), (-1, 1), (1 << 70, 1)])
def test_what_lies_outside_is_damage(server: CountingServer, offset: int, size: int) -> None:
    paged = opened(server, server.put(100))
    with pytest.raises(Damaged, match=r"fake://server/run\.kdb"):
        read(paged, offset, size)
    assert server.requests == []


def test_several_buffers_are_filled_one_after_another(server: CountingServer) -> None:
    facts = server.put(3 * M)
    paged = opened(server, facts)
    sizes = [1, 0, PAGE, 100, 0, BLOCK, M, 7]
    buffers = [memoryview(bytearray(size)) for size in sizes]
    paged.scatter(buffers, 1000)
    assert b"".join(buffers) == content(facts, 1000, sum(sizes))
    row = memoryview(bytearray(100_000))
    paged.scatter(Scattered(row, Spans((start, 10) for start in range(0, 100_000, 1000))), PAGE - 500)
    assert b"".join(row[start : start + 10] for start in range(0, 100_000, 1000)) == content(facts, PAGE - 500, 1000)


def test_a_head_that_is_too_short_is_of_no_use(server: CountingServer) -> None:
    facts = server.put(M)
    paged = PageCache(M).object(server, PATH, facts)
    paged.put_head(content(facts, 0, PAGE - 1))
    assert read(paged, 0, 10) == content(facts, 0, 10)
    assert server.requests == [(0, PAGE)]


def test_equal_versions_share_pages_and_others_do_not(server: CountingServer) -> None:
    facts = server.put(M)
    pages = PageCache(8 * M)
    read(pages.object(server, PATH, facts), 0, M)
    before = len(server.requests)
    assert read(pages.object(server, (*PATH,), Facts(*facts)), 0, M) == content(facts, 0, M)
    assert len(server.requests) == before
    other = server.put(M, "two")
    assert read(pages.object(server, PATH, other), 0, M) == content(other, 0, M)
    assert len(server.requests) > before


# Memory.


def test_memory_is_what_the_budget_says_and_what_is_waited_for(server: CountingServer) -> None:
    facts = server.put(200 * M)
    paged = opened(server, facts, 4 * M)
    read_all(paged, facts, 128 * K, 0, 4 * M)
    gate = Gate(server)
    with ThreadPoolExecutor(48) as threads:
        readers = [threads.submit(read, paged, 10 * M + place * 3 * M, 4 * K) for place in range(48)]
        wait_until(lambda: len(gate.waiting) >= 48)
        assert paged._cache.used <= 4 * M + 48 * PAGE
        gate.open()
        for place, reader in enumerate(readers):
            assert reader.result() == content(facts, 10 * M + place * 3 * M, 4 * K)
    assert paged._cache.used <= 4 * M


@pytest.mark.parametrize("budget", [0, PAGE, BLOCK])
def test_hardly_any_budget(server: CountingServer, budget: int) -> None:
    facts = server.put(5 * M)
    paged = opened(server, facts, budget)
    read_all(paged, facts, 512 * K)
    assert read(paged, 0, facts.size) == content(facts, 0, facts.size)
    assert paged._cache.used <= budget


def test_those_used_longest_ago_go_first(server: CountingServer) -> None:
    facts = server.put(100 * M)
    pages = PageCache(4 * M)
    paged = pages.object(server, PATH, facts)
    for place in range(6):
        read(paged, place * 10 * M + PAGE, 4 * K)
        read(paged, PAGE, 4 * K)
    for place in range(6, 10):
        read(paged, place * 10 * M + PAGE, 4 * K)
    del server.requests[:]
    read(paged, PAGE, 4 * K)
    read(paged, 50 * M + PAGE, 4 * K)
    assert server.requests == []
    read(paged, 10 * M + PAGE, 4 * K)
    assert len(server.requests) == 1


def test_what_was_fetched_ahead_stays_for_who_reads_on(server: CountingServer) -> None:
    """Whatever others read meanwhile that are not waiting, and read ahead."""
    facts = server.put(200 * M)
    paged = opened(server, facts, 16 * M)
    read_all(paged, facts, 128 * K, 0, 8 * M)
    fetched = PAGE + server.fetched
    assert fetched > 12 * M
    read_all(paged, facts, 128 * K, 100 * M, 130 * M)
    assert paged._cache.used <= 16 * M
    before = len(server.requests)
    read_all(paged, facts, 128 * K, 8 * M, 10 * M)
    assert all(offset >= fetched for offset, _ in server.requests[before:])


@pytest.mark.parametrize("patience", [60.0, -1.0])
def test_what_was_fetched_ahead_for_nobody_goes_in_the_end(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch, patience: float,
) -> None:
    """Until then, who reads somewhere else has less ahead of him."""
    facts = server.put(400 * M)
    paged = opened(server, facts, 16 * M)
    for start in (0, 100 * M):
        read_all(paged, facts, 128 * K, start, start + 10 * M)
    monkeypatch.setattr("glassfs.source.remote.pages.UNREAD_SECONDS", patience)
    before = len(server.requests)
    read_all(paged, facts, 128 * K, 200 * M, 230 * M)
    assert (len(server.requests) - before <= 40) == (patience < 0)


def test_what_was_passed_by_gives_room(server: CountingServer) -> None:
    facts = server.put(400 * M)
    paged = opened(server, facts, 20 * M)
    for start in range(0, 300 * M, 22 * M):
        read_all(paged, facts, 128 * K, start, start + 10 * M)
    assert len(server.requests) <= 14 * 16


def test_closing_leaves_pages_and_forgetting_does_not(server: CountingServer) -> None:
    facts = server.put(100 * M)
    pages = PageCache(64 * M)
    paged, other = pages.object(server, PATH, facts), pages.object(server, PATH, facts)
    read_all(paged, facts, 128 * K, 0, 4 * M)
    used = pages.used
    for one in (paged, paged, other):
        one.close()
    assert pages.used == used > 4 * M
    assert read(paged, 0, 4 * M) == content(facts, 0, 4 * M)
    pages.clear()
    assert pages.used == 0
    assert read(paged, M, 4 * K) == content(facts, M, 4 * K)


def test_what_is_forgotten_while_it_is_fetched_is_not_kept(server: CountingServer) -> None:
    facts = server.put(10 * M)
    pages = PageCache(64 * M)
    paged = pages.object(server, PATH, facts)
    gate = Gate(server)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read, paged, 0, M)
        wait_until(lambda: gate.waiting)
        pages.clear()
        gate.open()
        assert reader.result() == content(facts, 0, M)
    assert pages.used == 0


# What goes wrong.


def test_one_request_however_many_wait(server: CountingServer) -> None:
    facts = server.put(10 * M)
    paged = opened(server, facts)
    gate = Gate(server)
    with ThreadPoolExecutor(16) as threads:
        readers = [threads.submit(read, paged, M + place * K, 4 * K) for place in range(16)]
        wait_until(lambda: gate.waiting)
        assert read(paged, 0, 4 * K) == content(facts, 0, 4 * K)
        gate.open()
        for place, reader in enumerate(readers):
            assert reader.result() == content(facts, M + place * K, 4 * K)
    assert len(server.requests) == 1


def waiting_readers(paged: PagedObject, threads: ThreadPoolExecutor, count: int) -> list[Future[bytes]]:
    """Readers of one page, which all wait for it."""
    readers = [threads.submit(read, paged, M + place, 1) for place in range(count)]
    page = paged._pages.pages
    wait_until(lambda: M // PAGE in page and page[M // PAGE].users == count)
    return readers


def test_an_error_reaches_all_who_wait_and_nobody_else(server: CountingServer) -> None:
    facts = server.put(10 * M)
    paged = opened(server, facts)
    gate = Gate(server)
    with ThreadPoolExecutor(8) as threads:
        readers = waiting_readers(paged, threads, 8)
        gate.open(NotAllowed("the server does not allow it"))
        errors = [reader.exception() for reader in readers]
    assert {str(error) for error in errors} == {"fake://server/run.kdb: the server does not allow it"}
    assert all(type(error) is NotAllowed for error in errors)
    assert len(set(map(id, errors))) == 8
    assert read(paged, M, 4 * K) == content(facts, M, 4 * K)


@pytest.mark.parametrize("length", [0, BLOCK - 1, BLOCK + 1, 2 * BLOCK])
def test_an_answer_of_another_length_is_no_answer(server: CountingServer, length: int) -> None:
    facts = server.put(10 * M)
    paged = opened(server, facts)
    server.answer = lambda future, data: future.set_result((data * 2)[:length])
    with pytest.raises(DeviceFailed, match=r"run\.kdb: the server sends"):
        read(paged, M, 4 * K)
    server.answer = None
    assert read(paged, M, 4 * K) == content(facts, M, 4 * K)


@pytest.mark.parametrize(("error", "kind"), [
    (RuntimeError("https://user:secret@host"), DeviceFailed), (MemoryError("secret"), Unavailable),
    (DeviceFailed("no answer", "a name"), DeviceFailed),
])
@pytest.mark.parametrize("is_at_once", [False, True])
def test_any_other_error_is_told_without_what_it_says(
    server: CountingServer, error: Exception, kind: type[GlassfsError], is_at_once: bool,
) -> None:
    paged = opened(server, server.put(10 * M))

    def fail(future: Future[bytes], data: bytes) -> None:
        if is_at_once:
            raise error
        future.set_exception(error)

    server.answer = fail
    with pytest.raises(kind) as caught:
        read(paged, M, 4 * K)
    assert "secret" not in str(caught.value)
    assert caught.value is not error
    assert paged._cache.used == PAGE


def test_a_read_ahead_that_fails_is_not_told(server: CountingServer) -> None:
    facts = server.put(20 * M)
    paged = opened(server, facts)
    read_all(paged, facts, 128 * K, 0, M)
    gate = Gate(server)
    start = next(number for number in range(4, 80) if number not in paged._pages.pages) * PAGE
    read_all(paged, facts, 128 * K, M, start)
    assert gate.waiting
    gate.open(DeviceFailed("silence"))
    read_all(paged, facts, 128 * K, start)


def test_pages_of_what_has_changed_are_dropped(server: CountingServer) -> None:
    facts = server.put(10 * M)
    pages = PageCache(64 * M)
    paged = pages.object(server, PATH, facts)
    read(paged, 0, M)
    other = server.put(10 * M, "two")
    with pytest.raises(Changed, match=r"fake://server/run\.kdb: has other bytes now"):
        read(paged, 5 * M, 4 * K)
    assert pages.used == 0
    assert read(pages.object(server, PATH, other), 5 * M, 4 * K) == content(other, 5 * M, 4 * K)


def test_silence_ends_with_an_error_and_the_next_one_asks_again(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "FAIL_FAST_SECONDS", 0.0)
    monkeypatch.setattr(paging, "GRACE_SECONDS", 0.0)
    facts = server.put(10 * M)
    paged = opened(server, facts)
    server.timeout = 0.05
    gate = Gate(server)
    with pytest.raises(DeviceFailed, match=r"fake://server/run\.kdb: no answer within 0.05 seconds"):
        read(paged, M, 4 * K)
    assert gate.waiting[0][0].cancelled()
    assert paged._cache.used == PAGE
    server.answer = None
    server.timeout = 60.0
    assert read(paged, M, 4 * K) == content(facts, M, 4 * K)


def test_an_answer_that_comes_too_late_is_not_taken(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "FAIL_FAST_SECONDS", 0.0)
    monkeypatch.setattr(paging, "GRACE_SECONDS", 0.0)
    facts = server.put(10 * M)
    paged = opened(server, facts)
    server.timeout = 0.05
    late: list[Future[bytes]] = []

    def answer(future: Future[bytes], data: bytes) -> None:
        future.set_running_or_notify_cancel()  # cannot be given up any more
        late.append(future)

    server.answer = answer
    with pytest.raises(DeviceFailed):
        read(paged, M, 4 * K)
    late[0].set_result(bytes(server.requests[0][1]))
    assert paged._cache.used == PAGE
    server.answer = None
    assert read(paged, M, 4 * K) == content(facts, M, 4 * K)


def test_who_waits_holds_up_nobody(server: CountingServer) -> None:
    facts = server.put(10 * M)
    paged = opened(server, facts)
    gate = Gate(server)
    with ThreadPoolExecutor(40) as threads:
        readers = [threads.submit(read, paged, M + place * BLOCK // 4, 1) for place in range(32)]
        wait_until(lambda: len(gate.waiting) >= 4)
        for _ in range(100):
            assert read(paged, 100, 100) == content(facts, 100, 100)
        assert not any(reader.done() for reader in readers)
        gate.open()
        for place, reader in enumerate(readers):
            assert reader.result() == content(facts, M + place * BLOCK // 4, 1)


# The disk.


class Disk:
    """PageCache in a dictionary. ``wait`` is for who puts one."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, int, int], bytes] = {}
        self.wait = threading.Event()
        self.wait.set()

    def get(self, object_key: str, validator: str, number: int, size: int) -> bytes | None:
        return self.kept.get((object_key, validator, number, size))

    def put(self, object_key: str, validator: str, number: int, data: bytes) -> None:
        self.wait.wait(60)
        self.kept[object_key, validator, number, len(data)] = bytes(data)


def test_what_was_fetched_is_on_disk_for_the_next_process(server: CountingServer) -> None:
    facts = server.put(12 * M + 5)
    disk = Disk()
    paged = PageCache(64 * M, disk).object(server, PATH, facts)
    read_all(paged, facts, 128 * K)
    wait_until(lambda: sum(map(len, disk.kept.values())) == facts.size)
    del server.requests[:]
    again = PageCache(64 * M, disk).object(server, PATH, facts)
    read_all(again, facts, 128 * K)
    assert server.requests == []
    other = server.put(12 * M + 5, "two")
    assert read(PageCache(64 * M, disk).object(server, PATH, other), 0, M) == content(other, 0, M)


def test_a_head_that_came_with_an_answer_is_on_disk(server: CountingServer) -> None:
    facts = server.put(M)
    disk = Disk()
    pages = PageCache(64 * M, disk)
    pages.object(server, PATH, facts).put_head(content(facts, 0, PAGE))
    pages.finish()
    assert [(key[1:3], data) for key, data in disk.kept.items()] == [((facts.etag, 0), content(facts, 0, PAGE))]
    assert server.requests == []


def test_who_ends_waits_for_the_disk(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "FINISH_SECONDS", 60.0)
    facts = server.put(2 * M)
    disk = Disk()
    disk.wait.clear()
    pages = PageCache(64 * M, disk)
    read(pages.object(server, PATH, facts), 0, 2 * M)
    threading.Timer(0.1, disk.wait.set).start()
    pages.finish()
    assert sum(map(len, disk.kept.values())) == facts.size


def test_who_ends_does_not_wait_for_a_disk_that_is_stuck(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paging, "FINISH_SECONDS", 0.01)
    facts = server.put(2 * M)
    disk = Disk()
    disk.wait.clear()
    pages = PageCache(64 * M, disk)
    pages.finish()
    read(pages.object(server, PATH, facts), 0, 2 * M)
    pages.finish()
    assert disk.kept == {}
    disk.wait.set()


def test_holes_on_disk_are_fetched(server: CountingServer) -> None:
    facts = server.put(4 * M)
    disk = Disk()
    read(PageCache(64 * M, disk).object(server, PATH, facts), 0, 2 * M)
    wait_until(lambda: len(disk.kept) == 8)
    keys = sorted(disk.kept, key=lambda key: key[2])
    del disk.kept[keys[2]]
    disk.kept[keys[5]] = b"short"
    del server.requests[:]
    assert read(PageCache(64 * M, disk).object(server, PATH, facts), 0, 2 * M) == content(facts, 0, 2 * M)
    assert server.requests == [(2 * PAGE, PAGE), (5 * PAGE, PAGE)]


@pytest.mark.parametrize("etag", ["", 'W/"one"'])
def test_what_has_no_lasting_version_is_not_on_disk(server: CountingServer, etag: str) -> None:
    facts = server.put(M, etag)
    disk = Disk()
    pages = PageCache(64 * M, disk)
    read(pages.object(server, PATH, facts), 0, M)
    told = server.put(M, "two")
    read(pages.object(server, PATH, told), 0, M)
    wait_until(lambda: len(disk.kept) == 4)
    assert {key[1] for key in disk.kept} == {"two"}


def test_a_slow_disk_holds_up_no_reader(server: CountingServer) -> None:
    """What cannot be written soon is left out, and memory stays within the budget."""
    facts = server.put(20 * M)
    disk = Disk()
    disk.wait.clear()
    pages = PageCache(8 * M, disk)
    paged = pages.object(server, PATH, facts)
    read_all(paged, facts, 128 * K)
    assert pages.used <= 8 * M
    assert server.fetched == facts.size
    disk.wait.set()
    wait_until(lambda: len(disk.kept) >= 4 * M // PAGE)


