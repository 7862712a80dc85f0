"""Room in the budget: who waits, who goes first, what is given up, and that nothing is counted for ever."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from glassfs.cache import budget as budget_module
from glassfs.cache.budget import MemoryBudget, Ticket
from tests.cache.recipes import wait_until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes ahead because nothing happens for a while, on the slowest machine."""
    monkeypatch.setattr(budget_module, "TIMEOUT_SECONDS", 600)
    monkeypatch.setattr(budget_module, "NESTED_TIMEOUT_SECONDS", 600)


class Keeper:
    """Keeps blocks of 10 bytes, and gives up as many as are asked for, but not those that are pinned."""

    def __init__(self, budget: int, blocks: int = 0) -> None:
        self.blocks, self.pinned = blocks, 0
        self.memory = MemoryBudget(budget, self.free)
        self.memory.release(0, 10 * blocks)

    def free(self, wanted: int) -> int:
        count = min(self.blocks - self.pinned, -(-wanted // 10))
        self.blocks -= count
        return 10 * count


def taken(memory: MemoryBudget, size: int) -> None:
    memory.reserve(size)
    memory.release(size)


def test_what_is_kept_goes_for_what_is_needed() -> None:
    keeper = Keeper(100, blocks=10)
    keeper.memory.reserve(35)
    assert (keeper.blocks, keeper.memory.used) == (6, 95)
    keeper.memory.release(35)
    assert keeper.memory.used == 60


def test_nothing_is_given_up_in_vain() -> None:
    keeper = Keeper(100, blocks=4)
    keeper.memory.reserve(60)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(taken, keeper.memory, 50)
        wait_until(lambda: len(keeper.memory._queue) == 1)
        assert keeper.blocks == 4
        keeper.memory.release(60)
        waiting.result(60)


def test_those_who_came_first_go_first() -> None:
    memory, order = Keeper(100).memory, []

    def take(size: int) -> None:
        memory.reserve(size)
        order.append(size)
        memory.release(size)

    memory.reserve(60)
    with ThreadPoolExecutor(3) as threads:
        waiting: list[Future[None]] = []
        for count, size in enumerate((90, 80, 70)):
            waiting.append(threads.submit(take, size))
            wait_until(lambda count=count: len(memory._queue) == count + 1)  # type: ignore[misc]
        assert not memory.reserve_now(10), "there is memory, but others came first"
        memory.release(60)
        for one in waiting:
            one.result(60)
    assert order == [90, 80, 70]
    assert memory.used == 0


def test_more_than_there_is_goes_alone() -> None:
    memory = Keeper(100).memory
    memory.reserve(1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(memory.reserve, 500)
        wait_until(lambda: len(memory._queue) == 1)
        memory.release(1)
        waiting.result(60)
    assert memory.used == 500


def test_a_block_that_is_read_no_longer_makes_room() -> None:
    keeper = Keeper(100, blocks=8)
    keeper.pinned = 8
    keeper.memory.reserve(10)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(taken, keeper.memory, 50)
        wait_until(lambda: len(keeper.memory._queue) == 1)
        keeper.pinned = 0
        keeper.memory.recheck()
        waiting.result(60)


def test_what_could_not_be_given_up_is_given_up_later() -> None:
    keeper = Keeper(100)
    keeper.blocks = keeper.pinned = 15
    keeper.memory.release(0, 150)
    assert keeper.memory.used == 150
    keeper.pinned = 0
    keeper.memory.recheck()
    assert keeper.memory.used == 100


def test_one_who_holds_all_gets_more() -> None:
    """There is nobody to wait for."""
    memory = Keeper(100).memory
    memory.reserve(90)
    with memory.nested():
        memory.reserve(90)
        assert memory.used == 180
        memory.release(90)
    memory.release(90)
    assert memory.used == 0


def test_two_who_hold_all_and_need_more_go_one_after_the_other() -> None:
    memory = Keeper(100).memory
    both = threading.Barrier(2, timeout=60)
    lock, now, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal now, most
        memory.reserve(50)
        with memory.nested():
            both.wait()
            memory.reserve(60)
            with lock:
                now += 1
                most = max(most, now)
            with lock:
                now -= 1
            memory.release(60)
        memory.release(50)

    with ThreadPoolExecutor(2) as threads:
        for job in [threads.submit(work), threads.submit(work)]:
            job.result(60)
    assert most == 1
    assert memory.used == 0


def test_a_ticket_that_is_hurried_goes_before_all_others() -> None:
    memory, order, ticket = Keeper(100).memory, [], Ticket()

    def take(size: int, ticket: Ticket | None) -> None:
        memory.reserve(size, ticket)
        order.append(size)
        memory.release(size)

    memory.reserve(100)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(take, 70, None)
        wait_until(lambda: len(memory._queue) == 1)
        second = threads.submit(take, 80, ticket)
        wait_until(lambda: len(memory._queue) == 2)
        memory.hurry(ticket)
        assert order == []
        with memory.waiting():
            second.result(60)
        memory.release(100)
        first.result(60)
    assert order == [80, 70]


@pytest.mark.parametrize("is_inside", [False, True])
def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch, is_inside: bool) -> None:
    """Whoever holds the memory may wait for this one in a way that the memory does not know."""
    monkeypatch.setattr(budget_module, "NESTED_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(budget_module, "TIMEOUT_SECONDS", 0.05)
    memory = Keeper(100).memory
    memory.reserve(100)

    def work() -> None:
        if is_inside:
            with memory.nested():
                memory.reserve(50)
        else:
            memory.reserve(50)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result(60)
    assert memory.used == 150


def test_one_who_is_interrupted_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Keeper(100).memory
    memory.reserve(100)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(memory._condition, "wait", interrupted)
        with ThreadPoolExecutor(1) as threads, pytest.raises(KeyboardInterrupt):
            threads.submit(memory.reserve, 50).result(60)
    memory.release(100)
    assert memory.used == 0
    assert memory.reserve_now(100)


def test_all_that_is_taken_is_given_back_whatever_comes_together() -> None:
    keeper, most = Keeper(1000), []
    memory = keeper.memory

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
    assert max(most) <= 1400, "one at a time may have more than there is"
