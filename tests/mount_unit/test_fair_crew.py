"""How users share the threads of a mount, and the processors."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from glassfs.mount.engines import crew as crew_module
from glassfs.mount.engines.crew import IDLE_THREADS, MAX_COMPUTING, MAX_OWN, MAX_READERS, SHARED_TICKS, Crew
from glassfs.mount.engines.wire import Opcode
from tests.mount_unit.crews import OWN, Bench, progress
from tests.waiting import wait_until


def test_requests_of_a_user_that_compute_leave_others_answered(bench: Bench) -> None:
    bench.are_computing = True
    bench.hang(1)
    computing = bench.ask(Opcode.LOOKUP, 1, 300)
    bench.wait_for_deferral(computing)
    assert MAX_COMPUTING <= sum(bench.busy.values()) <= IDLE_THREADS
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2, 20, owner=2000) + bench.ask(Opcode.FORGET, 3, 20))
    waiting = bench.ask(Opcode.LOOKUP, 2, 20)
    bench.wait_for_deferral(computing + waiting)
    assert not set(waiting) & set(bench.answered)
    bench.release(1)
    bench.wait_for_answers(computing + waiting)


def test_users_share_the_threads_of_a_volume(bench: Bench) -> None:
    """What one user's requests that hang have taken does not count against another user."""
    bench.hang(1)
    first = bench.ask(Opcode.READ, 1, 200)
    bench.wait_for_deferral(first)
    wait_until(lambda: bench.busy["1", True] == MAX_READERS)
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2, owner=2000))
    bench.crew.tick()
    assert bench.crew.is_shared
    second = bench.ask(Opcode.READ, 1, 200, owner=2000)
    bench.wait_for_deferral(first + second)
    wait_until(lambda: bench.busy["1", True] == MAX_READERS + MAX_READERS // 2)
    bench.release(1)
    bench.wait_for_answers(first + second)
    for _ in range(SHARED_TICKS + 1):
        bench.crew.tick()
    assert not bench.crew.is_shared


def test_user_without_requests_is_answered_though_all_threads_are_busy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew_module, "MOST_THREADS", IDLE_THREADS)
    for volume in (1, 2):
        bench.hang(volume)
        bench.ask(Opcode.LOOKUP, volume, IDLE_THREADS // 2, owner=volume)
    bench.wait(lambda: sum(bench.busy.values()) == IDLE_THREADS)
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 3, owner=3))
    more = bench.ask(Opcode.LOOKUP, 3, owner=1)
    wait_until(lambda: bench.deferred == 1)
    assert not bench.answered[more[0]]


def test_requests_of_a_user_about_the_mount_itself_are_limited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew_module, "IDLE_THREADS", 1)
    bench.hang(OWN)
    asked = bench.ask(Opcode.LOOKUP, OWN, 10 * MAX_OWN)
    bench.wait_for_deferral(asked)
    assert bench.busy[str(OWN), False] <= MAX_OWN + 1
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2, 10))
    other = bench.ask(Opcode.LOOKUP, OWN, owner=2000)
    bench.wait(lambda: other[0] in bench.begun)
    bench.release(OWN)
    bench.wait_for_answers(asked + other)


def test_deferred_requests_begin_once_others_wait(bench: Bench) -> None:
    bench.are_computing = True
    bench.hang(1)
    bench.wait_for_deferral(bench.ask(Opcode.LOOKUP, 1, 100))
    bench.hang(2)
    waiting = bench.ask(Opcode.LOOKUP, 2, 3)
    wait_until(lambda: set(waiting) <= set(progress(bench.crew)))
    assert not set(waiting) & set(bench.begun)
    for task in bench.crew.tasks():
        task.is_waiting = task.unique in bench.begun
    bench.wait(lambda: len(bench.begun) > IDLE_THREADS)


def tick_after(crew: Crew[None], monkeypatch: pytest.MonkeyPatch, used: float) -> dict[int, list[float]]:
    """Call ``tick`` as if so many processors had been used; return the slowdowns of requests by user."""
    crew._measured = 0.0, 0.0
    fake = SimpleNamespace(**{name: getattr(time, name) for name in ("sleep", "perf_counter", "thread_time")})
    fake.monotonic, fake.process_time = lambda: 10.0, lambda: 10.0 * used
    with monkeypatch.context() as patch:
        patch.setattr(crew_module, "time", fake)
        crew.tick()
    slowed: dict[int, list[float]] = {}
    for task in sorted(crew.tasks(), key=lambda task: task.unique):
        slowed.setdefault(task.owner, []).append(task.slowdown)
    return slowed


@pytest.mark.parametrize(("used", "many", "one"), [
    (0.5, 7.0, 1.0), (1.2, 7.0, 1.0), (2.0, 0.0, 0.0), (3.0, 0.0, 0.0), (3.8, 1.0, 0.0),
])
def test_users_are_slowed_where_there_is_not_enough(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, used: float, many: float, one: float,
) -> None:
    """Threads that wait for the interpreter use one processor, those that decode use many, of 4 here."""
    monkeypatch.setattr(crew_module, "CORES", 4)
    bench.are_computing = True
    bench.hang(1)
    hanging = bench.ask(Opcode.LOOKUP, 1, 4) + bench.ask(Opcode.LOOKUP, 1, owner=2000)
    bench.wait(lambda: sum(bench.busy.values()) == len(hanging))
    assert tick_after(bench.crew, monkeypatch, used) == {1000: [many] * 4, 2000: [one]}


def test_requests_of_many_users_together_compute_no_more_than_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench.are_computing = True
    bench.hang(1)
    for owner in range(5):
        bench.ask(Opcode.LOOKUP, 1, 1 + owner % 3, owner=owner)
    bench.wait(lambda: sum(bench.busy.values()) == 9)
    slowed = tick_after(bench.crew, monkeypatch, 1.0)
    assert sum(1 / (1 + slowdown) for each in slowed.values() for slowdown in each) == pytest.approx(1.0)


def test_what_is_computed_for_another_user_counts_for_that_user(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench.are_computing = True
    bench.hang(1)
    bench.ask(Opcode.LOOKUP, 1, 2)
    bench.ask(Opcode.LOOKUP, 1, 2, owner=2000)
    bench.wait(lambda: sum(bench.busy.values()) == 4)
    holder, same, other, server = sorted(bench.crew.tasks(), key=lambda task: task.unique)
    holder.holds = ("lock",)
    for task, thing in ((same, "lock"), (other, "lock"), (server, "answer of a server")):
        task.is_waiting, task.awaits = True, thing
    assert tick_after(bench.crew, monkeypatch, 1.0) == {1000: [1.0, 1.0], 2000: [1.0, 1.0]}
