"""Room in the budget: who waits, who goes first, what is given up, and that nothing is counted for ever."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from glassfs.cache import room as room_module
from glassfs.cache.room import Room, Ticket
from tests.cache.recipes import wait_until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes ahead because nothing happens for a while, on the slowest machine."""
    monkeypatch.setattr(room_module, "PATIENCE", 600)
    monkeypatch.setattr(room_module, "PATIENCE_INSIDE", 600)


class Keeper:
    """Keeps blocks of 10 bytes, and gives up as many as are asked for, but not those that are pinned."""

    def __init__(self, budget: int, blocks: int = 0) -> None:
        self.blocks, self.pinned = blocks, 0
        self.room = Room(budget, self.free)
        self.room.settle(0, 10 * blocks)

    def free(self, wanted: int) -> int:
        count = min(self.blocks - self.pinned, -(-wanted // 10))
        self.blocks -= count
        return 10 * count


def taken(room: Room, size: int) -> None:
    room.take(size)
    room.settle(size, 0)


def test_what_is_kept_goes_for_what_is_needed() -> None:
    keeper = Keeper(100, blocks=10)
    keeper.room.take(35)
    assert (keeper.blocks, keeper.room.used) == (6, 95)
    keeper.room.settle(35, 0)
    assert keeper.room.used == 60


def test_nothing_is_given_up_in_vain() -> None:
    keeper = Keeper(100, blocks=4)
    keeper.room.take(60)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(taken, keeper.room, 50)
        wait_until(lambda: len(keeper.room._waiting) == 1)
        assert keeper.blocks == 4
        keeper.room.settle(60, 0)
        waiting.result(60)


def test_those_who_came_first_go_first() -> None:
    room, order = Keeper(100).room, []

    def take(size: int) -> None:
        room.take(size)
        order.append(size)
        room.settle(size, 0)

    room.take(60)
    with ThreadPoolExecutor(3) as threads:
        waiting: list[Future[None]] = []
        for count, size in enumerate((90, 80, 70)):
            waiting.append(threads.submit(take, size))
            wait_until(lambda count=count: len(room._waiting) == count + 1)  # type: ignore[misc]
        assert not room.take_now(10), "there is room, but others came first"
        room.settle(60, 0)
        for one in waiting:
            one.result(60)
    assert order == [90, 80, 70]
    assert room.used == 0


def test_more_than_there_is_goes_alone() -> None:
    room = Keeper(100).room
    room.take(1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(room.take, 500)
        wait_until(lambda: len(room._waiting) == 1)
        room.settle(1, 0)
        waiting.result(60)
    assert room.used == 500


def test_a_block_that_is_read_no_longer_makes_room() -> None:
    keeper = Keeper(100, blocks=8)
    keeper.pinned = 8
    keeper.room.take(10)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(taken, keeper.room, 50)
        wait_until(lambda: len(keeper.room._waiting) == 1)
        keeper.pinned = 0
        keeper.room.look_again()
        waiting.result(60)


def test_what_could_not_be_given_up_is_given_up_later() -> None:
    keeper = Keeper(100)
    keeper.blocks = keeper.pinned = 15
    keeper.room.settle(0, 150)
    assert keeper.room.used == 150
    keeper.pinned = 0
    keeper.room.look_again()
    assert keeper.room.used == 100


def test_one_who_holds_all_gets_more() -> None:
    """There is nobody to wait for."""
    room = Keeper(100).room
    room.take(90)
    with room.inside():
        room.take(90)
        assert room.used == 180
        room.settle(90, 0)
    room.settle(90, 0)
    assert room.used == 0


def test_two_who_hold_all_and_need_more_go_one_after_the_other() -> None:
    room = Keeper(100).room
    both = threading.Barrier(2, timeout=60)
    lock, now, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal now, most
        room.take(50)
        with room.inside():
            both.wait()
            room.take(60)
            with lock:
                now += 1
                most = max(most, now)
            with lock:
                now -= 1
            room.settle(60, 0)
        room.settle(50, 0)

    with ThreadPoolExecutor(2) as threads:
        for job in [threads.submit(work), threads.submit(work)]:
            job.result(60)
    assert most == 1
    assert room.used == 0


def test_a_ticket_that_is_hurried_goes_before_all_others() -> None:
    room, order, ticket = Keeper(100).room, [], Ticket()

    def take(size: int, ticket: Ticket | None) -> None:
        room.take(size, ticket)
        order.append(size)
        room.settle(size, 0)

    room.take(100)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(take, 70, None)
        wait_until(lambda: len(room._waiting) == 1)
        second = threads.submit(take, 80, ticket)
        wait_until(lambda: len(room._waiting) == 2)
        room.hurry(ticket)
        assert order == []
        with room.idle():
            second.result(60)
        room.settle(100, 0)
        first.result(60)
    assert order == [80, 70]


@pytest.mark.parametrize("is_inside", [False, True])
def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch, is_inside: bool) -> None:
    """Whoever holds the room may wait for this one in a way that the room does not know."""
    monkeypatch.setattr(room_module, "PATIENCE_INSIDE", 0.05)
    monkeypatch.setattr(room_module, "PATIENCE", 0.05)
    room = Keeper(100).room
    room.take(100)

    def work() -> None:
        if is_inside:
            with room.inside():
                room.take(50)
        else:
            room.take(50)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result(60)
    assert room.used == 150


def test_one_who_is_interrupted_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Keeper(100).room
    room.take(100)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(room._condition, "wait", interrupted)
        with ThreadPoolExecutor(1) as threads, pytest.raises(KeyboardInterrupt):
            threads.submit(room.take, 50).result(60)
    room.settle(100, 0)
    assert room.used == 0
    assert room.take_now(100)


def test_all_that_is_taken_is_given_back_whatever_comes_together() -> None:
    keeper, most = Keeper(1000), []
    room = keeper.room

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(50):
            size, more = chance.randrange(1, 400), chance.randrange(1, 400)
            room.take(size)
            with room.inside():
                room.take(more)
                most.append(room.used)
                room.settle(more, 0)
            room.settle(size, 0)

    with ThreadPoolExecutor(8) as threads:
        for job in [threads.submit(work, seed) for seed in range(8)]:
            job.result(120)
    assert (room.used, room._idle, len(room._waiting)) == (0, 0, 0)
    assert max(most) <= 1400, "one at a time may have more than there is"
