"""The threads that answer: which requests wait for which, and that none is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from glassfs.errors import Unavailable
from glassfs.mount.engines.crew import Shares
from glassfs.mount.engines.wire import Opcode
from tests.conftest import Scale
from tests.mount_unit.crews import Bench, progress
from tests.waiting import wait_until

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
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    shortage.is_on = False
    bench.wait_for_answers(others)
    bench.release(1)
    bench.wait_for_answers(hanging)
    assert set(bench.answered.values()) == {1}


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
