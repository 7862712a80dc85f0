"""The threads that answer: which requests wait for which, that none is lost, which the engine ends, users' shares."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from glassfs.errors import Unavailable
from glassfs.mount.engines import engine as engine_module
from glassfs.mount.engines import wire
from glassfs.mount.engines.answers import Buffers
from glassfs.mount.engines.crew import Shares, Task, Worker
from glassfs.mount.engines.engine import Engine
from glassfs.mount.engines.wire import Opcode
from glassfs.mount.errors import Failures
from glassfs.settings import settings
from tests.conftest import Scale
from tests.mount_unit.crews import OWN, Bench, progress
from tests.mount_unit.protocol import kernel_of
from tests.waiting import wait_for, wait_until

LONG = 1 << 20
SHARES = Shares()


@pytest.mark.parametrize(("kind", "count", "least", "most"), [
    (Opcode.READ, 1000, 1, SHARES.volume), (Opcode.LOOKUP, 3 * SHARES.volume, 50, SHARES.volume),
])
def test_hanging_requests_leave_others_answered(
    bench: Bench, kind: Opcode, count: int, least: int, most: int,
) -> None:
    bench.hang(1)
    hanging = bench.ask(kind, 1, count)
    bench.wait_for_deferral(hanging)
    is_read = kind == Opcode.READ
    wait_until(lambda: bench.busy["1", is_read] >= least)
    for opcode, volume in ((Opcode.READ, 2), (Opcode.LOOKUP, 2), (Opcode.READDIRPLUS, 0), (Opcode.STATFS, 0)):
        bench.wait_for_answers(bench.ask(opcode, volume, 50))
    # Other requests about the hanging volume are begun beside its reads.
    stats = bench.ask(Opcode.GETATTR, 1, 10) if is_read else []
    bench.wait(lambda: set(stats) <= set(bench.begun))
    assert len(bench.crew._workers) <= most + len(stats) + 2 * SHARES.idle
    bench.release(1)
    bench.wait_for_answers(hanging + stats)
    assert set(bench.answered.values()) == {1}
    assert bench.most["1", is_read] <= most
    assert bench.deferred == 0
    wait_until(lambda: not bench.crew.is_crowded)


@pytest.mark.usefixtures("quick_switches")
def test_no_deferred_request_is_forgotten(scale: Scale) -> None:
    """One is deferred just as those before it are done: no later request would take it along."""
    bench = Bench(Shares(free=3, volume=1))
    bench.crew.start()
    for _ in range(scale(200, 3000)):
        bench.wait_for_answers(bench.ask(Opcode.READ, 1, 6) + bench.ask(Opcode.LOOKUP, 1, 2))
    bench.close()
    assert bench.most["1", True] <= 3


def test_deferred_requests_begin_when_another_is_done() -> None:
    bench = Bench(Shares(free=2, user=6))
    bench.crew.start()
    for volume in range(1, 7):
        bench.hang(volume)
        bench.ask(Opcode.READ, volume)
        wait_until(lambda volume=volume: sum(bench.busy.values()) == volume)  # type: ignore[misc]
    waiting = bench.ask(Opcode.LOOKUP, 9, 20)
    wait_until(lambda: bench.deferred == 20)
    bench.release(3)
    bench.wait_for_answers(waiting)
    bench.close()


class Shortage:
    """While ``is_on`` no worker can be started; ``failed`` counts the attempts."""

    is_on = False
    failed = 0


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shortage]:
    found = Shortage()
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if found.is_on and thread.name == "glassfs-worker":
            found.failed += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    yield found
    found.is_on = False


def test_shortage_of_threads_loses_no_request(
    bench: Bench, shortage: Shortage, caplog: pytest.LogCaptureFixture,
) -> None:
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2))
    bench.hang(1)
    shortage.is_on = True
    hanging = bench.ask(Opcode.READ, 1, SHARES.idle + 1, size=LONG)
    wait_until(lambda: shortage.failed > 10)  # the supervisor tries again and again
    others = bench.ask(Opcode.LOOKUP, 2, 10)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len({record.getMessage() for record in caplog.records}) == 1  # the log drops what it has already
    shortage.is_on = False
    bench.wait_for_answers(others)
    bench.release(1)
    bench.wait_for_answers(hanging)
    assert set(bench.answered.values()) == {1}


def test_thread_without_memory_loses_no_request(bench: Bench) -> None:
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2))
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise OSError(errno.ENOMEM, "no memory")

    bench.make_state = fail
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, SHARES.idle + 5, size=LONG)
    wait_for(failed)
    others = bench.ask(Opcode.LOOKUP, 2, 10)
    bench.make_state = lambda: None
    bench.wait_for_answers(others)
    bench.release(1)
    bench.wait_for_answers(hanging)


@pytest.mark.parametrize("place", ["_answer", "_leave", "_fits", "_take"])
def test_lack_of_memory_costs_one_request(bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Wherever it occurs, threads are neither lost nor miscounted."""
    before = getattr(bench.crew, place)
    failures = 0

    def fail(*arguments: object) -> object:
        nonlocal failures
        failures += 1
        if failures % 3 == 1:
            raise MemoryError
        return before(*arguments)

    monkeypatch.setattr(bench.crew, place, fail)
    for _ in range(20):
        bench.hang(1)
        bench.ask(Opcode.READ, 1, 3 * SHARES.idle)
        wait_until(lambda: bench.coming.empty())
        bench.release(1)
        wait_until(lambda: len({*bench.answered, *bench.refused}) == bench.unique)
    assert failures
    monkeypatch.undo()
    bench.wait_for_answers(bench.ask(Opcode.READ, 1, 100))
    wait_until(lambda: not bench.crew.is_crowded)
    assert len(bench.crew._waiting) >= 1
    assert bench.crew._waiting <= bench.crew._workers


def test_starting_without_threads_raises(shortage: Shortage) -> None:
    shortage.is_on = True
    with pytest.raises(Unavailable):
        Bench().crew.start()


def test_canceled_requests_are_not_begun(bench: Bench) -> None:
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, SHARES.volume + 50)
    bench.wait_for_deferral(hanging)
    begun = set(bench.begun)
    canceled = [number for number in hanging if number not in begun][::2]
    tasks = progress(bench.crew)
    assert canceled
    assert set(tasks) == set(hanging)
    bench.crew.cancel([tasks[number] for number in [*canceled, *begun]])
    assert set(progress(bench.crew)) == set(hanging) - set(canceled)
    assert {number for number in hanging if tasks[number].is_canceled} == {*canceled, *begun}
    bench.release(1)
    bench.wait_for_answers([number for number in hanging if number not in canceled])
    wait_until(lambda: not bench.crew.tasks())
    assert not set(canceled) & set(bench.begun)


def engine_of(bench: Bench) -> tuple[Engine, list[tuple[int, int]]]:
    """Return an engine over a crew, and the list of the requests that it answers with an error."""
    answered: list[tuple[int, int]] = []
    engine = Engine(kernel_of().operations, Failures())
    engine._crew = cast(Any, bench.crew)
    engine._answers = cast(Any, SimpleNamespace(fail=lambda unique, number: answered.append((unique, number))))
    return engine, answered


def test_interrupted_requests_go_on_while_their_threads_ask_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    engine, answered = engine_of(bench)
    bench.hang(1)
    numbers = bench.ask(Opcode.LOOKUP, 1, 3)
    bench.wait(lambda: len(bench.begun) == 3)
    first, again, other = (progress(bench.crew)[number] for number in numbers)
    first.thread = again.thread = threading.get_native_id()
    again.ident = first.ident
    engine._interrupted.append((now, first.unique))
    for _ in range(3):
        engine.tick()
        assert answered == [(first.unique, errno.EINTR)]
        assert not first.is_canceled
        assert set(engine._unanswered()) == {again, other}
        now += settings.repetition / 2
    engine._interrupted.append((now, again.unique))
    engine.tick()
    assert again.is_canceled  # it only waits for the first one
    assert not first.is_canceled
    now += settings.repetition
    engine.tick()
    assert first.is_canceled
    assert len(answered) == 2
    bench.release(1)


def test_interrupted_requests_that_hang_are_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now))
    engine, answered = engine_of(bench)
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, Shares().volume + 10)
    bench.wait_for_deferral(hanging)
    done = bench.ask(Opcode.LOOKUP, 2)
    bench.wait_for_answers(done)
    wait_until(lambda: done[0] not in progress(bench.crew))
    begun = bench.begun[0]
    task = progress(bench.crew)[begun]
    waiting = next(number for number in hanging if number not in bench.begun)
    for number in (begun, done[0], waiting):
        engine._interrupted.append((now + settings.interruption, number))
    engine.tick()
    assert answered == []
    now += settings.interruption
    engine.tick()
    now += settings.repetition
    engine.tick()
    assert sorted(answered) == sorted([(begun, errno.EINTR), (waiting, errno.EINTR)])
    assert task.is_canceled
    assert waiting not in progress(bench.crew)
    bench.release(1)
    bench.wait_for_answers([number for number in hanging if number != waiting])
    assert waiting not in bench.begun


def test_requests_without_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, answered = engine_of(Bench())
    engine._descriptor, writable = os.pipe()
    worker = Worker()
    worker.state = Buffers()
    made = iter([MemoryError(), MemoryError(), Task(Opcode.GETATTR, 6, 1, b"")])
    monkeypatch.setattr(engine_module, "Task", Mock(side_effect=made))
    for opcode, unique in ((Opcode.GETATTR, 2), (Opcode.FORGET, 4), (Opcode.GETATTR, 6)):
        os.write(writable, wire.IN_HEADER.pack(wire.IN_HEADER.size, opcode, unique, 1, 0, 0, 1, 0).ljust(4096))
        worker.state.request = worker.state.request[:4096]
    task = engine._take(worker)
    assert task is not None
    assert task.unique == 6
    assert answered == [(2, errno.ENOMEM)]  # there is no answer to the other one
    os.close(writable)
    os.close(engine._descriptor)


# How users share the threads of a mount, and the processors


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
