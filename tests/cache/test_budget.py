"""The memory budget: who waits, who goes first, what is evicted, and that everything is released."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from glassfs import work
from glassfs.cache.budget import MemoryBudget, Ticket
from glassfs.settings import settings
from glassfs.work import Work
from tests.cache.recipes import in_line, interrupted
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is granted because nothing was released for a while, on the slowest machine."""
    monkeypatch.setattr(settings, "memory", 600)
    monkeypatch.setattr(settings, "nested_memory", 600)


class Cache:
    """Blocks of 10 bytes; evicts as many as are needed, but not those that are pinned."""

    def __init__(self, limit: int, blocks: int = 0) -> None:
        self.blocks, self.pinned = blocks, 0
        self.memory = MemoryBudget(limit, self.evict)
        self.memory.release(0, 10 * blocks)

    def evict(self, wanted: int) -> int:
        count = min(self.blocks - self.pinned, -(-wanted // 10))
        self.blocks -= count
        return 10 * count


def take(memory: MemoryBudget, size: int, taken: list[int], ticket: Ticket | None = None) -> None:
    """Reserve some bytes, note that, and release them."""
    memory.reserve(size, ticket)
    taken.append(size)
    memory.release(size)


def test_no_more_is_evicted_than_a_granted_request_needs() -> None:
    cache = Cache(100, blocks=4)
    cache.memory.reserve(60)
    with ThreadPoolExecutor(1) as threads:
        waiting = in_line(threads, cache.memory, cache.memory.reserve, 75)
        assert cache.blocks == 4, "nothing is evicted for a request that waits"
        cache.memory.release(60)
        waiting.result(60)
    assert (cache.blocks, cache.memory.used) == (2, 95)


def test_requests_are_granted_in_fifo_order() -> None:
    memory, taken = Cache(100).memory, list[int]()
    memory.reserve(60)
    with ThreadPoolExecutor(3) as threads:
        for size in (90, 80, 70):
            in_line(threads, memory, take, memory, size, taken)
        assert not memory.reserve_now(10), "memory is free, but other requests came first"
        memory.release(60)
    assert (taken, memory.used) == ([90, 80, 70], 0)


def test_users_are_granted_equal_numbers_of_bytes() -> None:
    """The first in line of one user does not fit; a small request of another one does. Neither starves the other."""
    memory, order = Cache(100).memory, []

    def reserve(owner: int, size: int) -> None:
        work.begin(Work(owner))
        memory.reserve(size)
        order.append((owner, size))
        memory.release(size)
        work.begin(None)

    memory.reserve(60)
    with ThreadPoolExecutor(9) as threads:
        for _ in range(3):
            in_line(threads, memory, reserve, 1, 90)
        wait([threads.submit(reserve, 2, 10)], 10)
        first = list(order)
        for _ in range(6):
            in_line(threads, memory, reserve, 2, 50)
        memory.release(60)
    assert first == [(2, 10)]
    assert order[1:] == [(2, 50), (1, 90), (2, 50), (2, 50), (1, 90), (2, 50), (2, 50), (1, 90), (2, 50)]
    assert memory.used == 0


def test_request_beyond_the_limit_is_granted_alone() -> None:
    memory = Cache(100).memory
    memory.reserve(1)
    with ThreadPoolExecutor(1) as threads:
        waiting = in_line(threads, memory, memory.reserve, 500)
        memory.release(1)
        waiting.result(60)
    assert memory.used == 500


def test_excess_is_evicted_once_it_is_unpinned() -> None:
    cache = Cache(100)
    cache.blocks = cache.pinned = 15
    cache.memory.release(0, 150)
    assert cache.memory.used == 150
    cache.pinned = 0
    cache.memory.recheck()
    assert cache.memory.used == 100


def test_thread_that_holds_everything_gets_more() -> None:
    """There is no other thread to wait for."""
    memory = Cache(100).memory
    memory.reserve(90)
    with memory.nested():
        memory.reserve(90)
        assert memory.used == 180
        memory.release(90)
    memory.release(90)
    assert memory.used == 0


def test_two_threads_that_hold_everything_take_turns() -> None:
    memory, used = Cache(100).memory, list[int]()
    both = threading.Barrier(2, timeout=60)

    def work() -> None:
        memory.reserve(50)
        with memory.nested():
            both.wait()
            memory.reserve(60)
            used.append(memory.used)
            wait_until(lambda: memory._queue or len(used) == 2)  # the other one waits, or is granted as well
            memory.release(60)
        memory.release(50)

    with ThreadPoolExecutor(2) as threads:
        for job in [threads.submit(work), threads.submit(work)]:
            job.result(60)
    assert (max(used), memory.used) == (160, 0)


def test_hurried_request_is_granted_first() -> None:
    memory, taken, ticket = Cache(100).memory, list[int](), Ticket()
    memory.reserve(100)
    with ThreadPoolExecutor(2) as threads:
        in_line(threads, memory, take, memory, 70, taken)
        second = in_line(threads, memory, take, memory, 80, taken, ticket)
        memory.hurry(ticket)
        assert taken == []
        with memory.waiting():
            second.result(60)
        memory.release(100)
    assert taken == [80, 70]


@pytest.mark.parametrize("is_nested", [False, True])
def test_no_request_waits_forever(monkeypatch: pytest.MonkeyPatch, is_nested: bool) -> None:
    """The thread that holds the memory may wait for this one without saying so."""
    monkeypatch.setattr(settings, "nested_memory" if is_nested else "memory", 0.05)
    memory = Cache(100).memory
    memory.reserve(100)

    def work() -> None:
        if is_nested:
            with memory.nested():
                memory.reserve(50)
        else:
            memory.reserve(50)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result(60)
    assert memory.used == 150


def test_interrupted_request_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Cache(100).memory
    memory.reserve(100)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait", interrupted)
        with ThreadPoolExecutor(1) as threads, pytest.raises(KeyboardInterrupt):
            threads.submit(memory.reserve, 50).result(60)
    memory.release(100)
    assert memory.used == 0
    assert memory.reserve_now(100)


def test_everything_is_released_whatever_happens_together() -> None:
    memory, most = Cache(1000).memory, []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(50):
            size, more = chance.randrange(1, 400), chance.randrange(1, 400)
            memory.reserve(size)
            with memory.nested():
                memory.reserve(more)
                most.append(memory.used)
                memory.release(more)
            memory.release(size)

    with ThreadPoolExecutor(8) as threads:
        for job in [threads.submit(work, seed) for seed in range(8)]:
            job.result(120)
    assert (memory.used, memory._idle, len(memory._queue)) == (0, 0, 0)
    assert max(most) <= 1400, "one thread at a time may exceed the limit"
