"""How users share the threads of a mount, and the processors."""

from __future__ import annotations

from collections import Counter

from glassfs.mount.engines.crew import Shares
from glassfs.mount.engines.wire import Opcode
from tests.mount_unit.crews import OWN, Bench, progress
from tests.waiting import wait_until

SHARES = Shares()


def test_requests_of_a_user_that_compute_leave_others_answered(bench: Bench) -> None:
    bench.computes = True
    bench.hang(1)
    computing = bench.ask(Opcode.LOOKUP, 1, 300)
    bench.wait_for_deferral(computing)
    assert SHARES.user_computing <= sum(bench.busy.values()) <= SHARES.idle
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2, 20, owner=2000) + bench.ask(Opcode.FORGET, 3, 20))
    waiting = bench.ask(Opcode.LOOKUP, 2, 20)
    bench.wait_for_deferral(computing + waiting)
    assert not set(waiting) & set(bench.answered)
    bench.release(1)
    bench.wait_for_answers(computing + waiting)


def test_many_users_who_compute_have_one_request_each() -> None:
    bench = Bench(Shares(free=2, computing=6))
    bench.crew.start()
    bench.computes = True
    bench.hang(1)
    for owner in range(10):  # one by one, as the first ones would use what there is
        bench.ask(Opcode.LOOKUP, 1, owner=owner)
        bench.wait(lambda owner=owner: sum(bench.busy.values()) == owner + 1)  # type: ignore[misc]
    more = [number for owner in range(10) for number in bench.ask(Opcode.LOOKUP, 1, 3, owner=owner)]
    wait_until(lambda: bench.deferred == len(more))
    begun = Counter(task.owner for task in bench.crew.tasks() if task.unique in bench.begun)
    assert set(begun.values()) == {1}
    bench.close()
    wait_until(lambda: not bench.crew.tasks())


def test_users_have_shares_of_their_own_in_a_volume(bench: Bench) -> None:
    """What one user's requests that hang have taken does not count against another user."""
    bench.hang(1)
    asked = []
    for number, owner in enumerate((1000, 2000), 1):
        asked += bench.ask(Opcode.READ, 1, SHARES.volume + 10, owner=owner)
        bench.wait_for_deferral(asked)
        wait_until(lambda number=number: bench.busy["1", True] == number * SHARES.volume)  # type: ignore[misc]
    bench.release(1)
    bench.wait_for_answers(asked)


def test_user_without_requests_is_answered_though_all_threads_are_busy() -> None:
    bench = Bench(Shares(threads=10))
    bench.crew.start()
    hanging = []
    for volume in (1, 2):
        bench.hang(volume)
        hanging += bench.ask(Opcode.LOOKUP, volume, 8, owner=volume)
    bench.wait_for_deferral(hanging)
    deferred = bench.deferred
    assert deferred
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 3, owner=3))
    more = bench.ask(Opcode.LOOKUP, 3, owner=1)
    wait_until(lambda: bench.deferred == deferred + 1)
    assert not bench.answered[more[0]]
    bench.close()


def test_requests_of_a_user_about_the_mount_itself_are_limited() -> None:
    bench = Bench(Shares(free=1))
    bench.crew.start()
    bench.hang(OWN)
    asked = bench.ask(Opcode.LOOKUP, OWN, 10 * SHARES.own)
    bench.wait_for_deferral(asked)
    assert bench.busy[str(OWN), False] <= SHARES.own + 1
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2, 10))
    other = bench.ask(Opcode.LOOKUP, OWN, owner=2000)
    bench.wait(lambda: other[0] in bench.begun)
    bench.release(OWN)
    bench.wait_for_answers(asked + other)
    bench.close()


def test_deferred_requests_begin_once_others_stop_computing(bench: Bench) -> None:
    bench.computes = True
    bench.hang(1)
    bench.wait_for_deferral(bench.ask(Opcode.LOOKUP, 1, 100))
    bench.hang(2)
    waiting = bench.ask(Opcode.LOOKUP, 2, 3)
    wait_until(lambda: set(waiting) <= set(progress(bench.crew)))
    assert not set(waiting) & set(bench.begun)

    def have_begun() -> bool:
        for task in bench.crew.tasks():  # as a tick finds that they wait
            task.has_computed = False
        return set(waiting) <= set(bench.begun) or len(bench.begun) > SHARES.idle

    bench.wait(have_begun)


def test_crew_is_busy_while_requests_are_in_progress(bench: Bench) -> None:
    bench.hang(1)
    asked = bench.ask(Opcode.READ, 1)
    bench.wait(lambda: asked[0] in bench.begun)
    for _ in range(2):
        bench.crew.busy.clear()
        bench.crew.tick()
        assert bench.crew.busy.is_set()
    assert bench.crew.computing == 0
    bench.release(1)
    wait_until(lambda: not bench.crew.tasks())
    bench.crew.busy.clear()
    bench.crew.tick()
    assert not bench.crew.busy.is_set()
