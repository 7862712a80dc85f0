"""The threads that answer: who waits for whom, and that nothing is lost. Requests come from a queue here."""

from __future__ import annotations

import errno
import logging
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from glassfs.mount.engines import crew as crew_module
from glassfs.mount.engines import libfuse3
from glassfs.mount.engines.crew import KEPT, OF_ONE_VOLUME, READERS, Crew, Task, Worker
from glassfs.mount.engines.libfuse3 import Libfuse3
from glassfs.mount.engines.wire import Opcode
from glassfs.mount.errors import Failures
from tests.conftest import Scale

PATIENCE = 60.0
"""Seconds after which what should come at once is not expected any more."""
VOLUME = 1_000_000
"""Node ids of one volume."""


class Bench:
    """A crew at work. What is on a volume that ``hangs`` is answered when that is let go."""

    def __init__(self) -> None:
        self.coming: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.answered: Counter[int] = Counter()
        self.busy: Counter[tuple[str, bool]] = Counter()
        self.most: Counter[tuple[str, bool]] = Counter()
        self.gates: dict[str, threading.Event] = {}
        self.begun: list[int] = []
        self.asked = 0
        self.ended = threading.Event()
        self.changed = threading.Condition()
        self.unique = 0
        self.make_state: Callable[[], None] = lambda: None
        self.crew: Crew[None] = Crew(self.take, self.answer, lambda: self.make_state(), self.volume_of, self.ended.set)

    def take(self, worker: Worker[None]) -> Task | None:
        task = self.coming.get()
        if task is None:
            self.coming.put(None)
        return task

    def volume_of(self, ident: int) -> str:
        self.asked += 1
        return str(ident // VOLUME)

    def answer(self, worker: Worker[None], task: Task) -> None:
        kind = str(task.ident // VOLUME), task.opcode == Opcode.READ
        with self.changed:
            self.begun.append(task.unique)
            self.busy[kind] += 1
            self.most[kind] = max(self.most[kind], self.busy[kind])
            self.changed.notify_all()
        gate = self.gates.get(kind[0])
        if gate is not None:
            gate.wait()
        with self.changed:
            self.busy[kind] -= 1
            self.answered[task.unique] += 1
            self.changed.notify_all()

    def hang(self, volume: int) -> None:
        self.gates[str(volume)] = threading.Event()

    def let_go(self, volume: int) -> None:
        self.gates.pop(str(volume)).set()

    def ask(self, opcode: Opcode, volume: int, times: int = 1, size: int = 0) -> list[int]:
        """Requests about nodes of a volume; their numbers."""
        numbers = []
        for _ in range(times):
            self.unique += 1
            numbers.append(self.unique)
            self.coming.put(Task(opcode, self.unique, volume * VOLUME + self.unique, b"", size))
        return numbers

    def wait(self, condition: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, PATIENCE)

    def is_answered(self, numbers: list[int]) -> bool:
        """Waits for that."""
        return self.wait(lambda: all(self.answered[number] for number in numbers))

    def waits_for(self, condition: Callable[[], bool]) -> bool:
        """The same for what nobody tells of."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    @property
    def put_off(self) -> int:
        return sum(map(len, self.crew._queues.values()))

    def close(self) -> None:
        for volume in list(self.gates):
            self.let_go(int(volume))
        self.coming.put(None)
        self.ended.wait(PATIENCE)
        with self.crew._lock:
            while self.crew._parked:
                self.crew._parked.pop().release()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.crew.start()
    yield made
    made.close()


def put_off_all(bench: Bench, numbers: list[int]) -> bool:
    """Waits until all of these requests that hang were either begun or put off."""
    return bench.waits_for(lambda: bench.put_off + sum(bench.busy.values()) == len(numbers))


@pytest.mark.parametrize("count", [64, 1000])
def test_reads_that_hang_leave_all_others_answered(bench: Bench, count: int) -> None:
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, count)
    assert put_off_all(bench, hanging)
    assert 0 < bench.busy["1", True] <= READERS
    for opcode, volume in ((Opcode.READ, 2), (Opcode.LOOKUP, 2), (Opcode.READDIRPLUS, 0), (Opcode.STATFS, 0)):
        assert bench.is_answered(bench.ask(opcode, volume, 50))
    # What is only looked at on the volume itself is begun beside its reads, and hangs by itself if it has to.
    looked = bench.ask(Opcode.GETATTR, 1, 10)
    assert bench.wait(lambda: set(looked) <= set(bench.begun))
    assert bench.crew.size <= READERS + len(looked) + 2 * KEPT
    bench.let_go(1)
    assert bench.is_answered(hanging + looked)
    assert set(bench.answered.values()) == {1}
    assert bench.most["1", True] <= READERS
    assert bench.put_off == 0
    assert bench.waits_for(lambda: bench.crew.size <= KEPT)


def test_looks_that_hang_are_bounded_too(bench: Bench) -> None:
    bench.hang(1)
    hanging = bench.ask(Opcode.LOOKUP, 1, 3 * OF_ONE_VOLUME)
    assert put_off_all(bench, hanging)
    assert READERS < bench.busy["1", False] <= OF_ONE_VOLUME
    assert bench.is_answered(bench.ask(Opcode.LOOKUP, 2, 50) + bench.ask(Opcode.READ, 2, 50))
    assert bench.crew.size <= OF_ONE_VOLUME + 2 * KEPT
    bench.let_go(1)
    assert bench.is_answered(hanging)
    assert set(bench.answered.values()) == {1}
    assert bench.waits_for(lambda: bench.crew.size <= KEPT)


def test_what_was_put_off_is_begun_in_its_order(bench: Bench) -> None:
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, 200)
    assert put_off_all(bench, hanging)
    before = len(bench.begun)
    queued = [task.unique for waiting in bench.crew._queues.values() for task in waiting]
    with bench.changed:
        bench.gates["1"].set()
    assert bench.is_answered(hanging)
    begun = bench.begun[before:]
    place = {number: index for index, number in enumerate(queued)}
    # As far as threads let that be seen: each one is begun beside those that were taken out just before.
    assert all(abs(place[number] - index) <= READERS + KEPT for index, number in enumerate(begun))


def test_a_busy_kernel_has_each_request_answered_once(bench: Bench, scale: Scale) -> None:
    """Whatever hangs for a while, with threads that are interrupted all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        asked = []
        for _ in range(scale(5, 50)):
            bench.hang(1)
            asked += bench.ask(Opcode.READ, 1, 70) + bench.ask(Opcode.LOOKUP, 1, 20) + bench.ask(Opcode.READ, 2, 70)
            time.sleep(0.002)
            bench.let_go(1)
            asked += bench.ask(Opcode.READ, 1, 70, size=1 << 20)
        assert bench.is_answered(asked)
    finally:
        sys.setswitchinterval(before)
    assert bench.answered == Counter(asked)


def test_nothing_that_was_put_off_is_forgotten(monkeypatch: pytest.MonkeyPatch, scale: Scale) -> None:
    """One is put off just as those before it are done: there is nobody else who would come by later."""
    for name, value in (("KEPT", 3), ("READERS", 1), ("OF_ONE_VOLUME", 2)):
        monkeypatch.setattr(crew_module, name, value)
    bench = Bench()
    bench.crew.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(scale(200, 3000)):
            asked = bench.ask(Opcode.READ, 1, 6) + bench.ask(Opcode.LOOKUP, 1, 2)
            assert bench.is_answered(asked)
    finally:
        sys.setswitchinterval(before)
        bench.close()
    assert bench.most["1", True] <= 3


def test_it_goes_on_when_one_of_too_many_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEPT", 2), ("MOST", 6)):
        monkeypatch.setattr(crew_module, name, value)
    bench = Bench()
    bench.crew.start()
    for volume in range(1, 7):
        bench.hang(volume)
        bench.ask(Opcode.READ, volume)
        assert bench.waits_for(lambda volume=volume: sum(bench.busy.values()) == volume)  # type: ignore[misc]
    waiting = bench.ask(Opcode.LOOKUP, 9, 20)
    assert bench.waits_for(lambda: bench.put_off == 20)
    bench.let_go(3)
    assert bench.is_answered(waiting)
    bench.close()


def test_requests_that_were_put_off_cost_the_others_little(bench: Bench) -> None:
    bench.hang(1)
    assert put_off_all(bench, bench.ask(Opcode.READ, 1, 1000))
    before = bench.asked
    assert bench.is_answered(bench.ask(Opcode.LOOKUP, 2))
    assert bench.waits_for(lambda: sum(bench.busy.values()) == bench.busy["1", True])
    assert bench.asked - before <= 10 * READERS


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """No worker can be started while this has something in it."""
    lacks: list[bool] = []
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if lacks and thread.name == "glassfs-worker":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    yield lacks
    lacks.clear()


def test_a_thread_that_cannot_be_started_loses_no_request(
    bench: Bench, no_threads: list[bool], caplog: pytest.LogCaptureFixture,
) -> None:
    assert bench.is_answered(bench.ask(Opcode.LOOKUP, 2))
    no_threads.append(True)
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, size=1 << 20)
    for _ in range(KEPT):
        hanging += bench.ask(Opcode.READ, 1, size=1 << 20)
    assert bench.waits_for(lambda: not bench.crew._waiting)
    assert bench.waits_for(lambda: bench.crew._is_short)
    others = bench.ask(Opcode.LOOKUP, 2, 10)
    time.sleep(0.05)  # nobody is there to answer, and it is tried again and again
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    no_threads.clear()
    assert bench.is_answered(others)
    bench.let_go(1)
    assert bench.is_answered(hanging)
    assert set(bench.answered.values()) == {1}


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
def test_a_thread_without_memory_loses_no_request(
    bench: Bench, error: Exception,
) -> None:
    assert bench.is_answered(bench.ask(Opcode.LOOKUP, 2))
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise error

    bench.make_state = fail
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, KEPT + 5, size=1 << 20)
    assert failed.wait(PATIENCE)
    others = bench.ask(Opcode.LOOKUP, 2, 10)
    bench.make_state = lambda: None
    assert bench.is_answered(others)
    bench.let_go(1)
    assert bench.is_answered(hanging)


def test_whoever_starts_it_is_told_that_there_are_no_threads(no_threads: list[bool]) -> None:
    no_threads.append(True)
    with pytest.raises(RuntimeError):
        Bench().crew.start()


def test_the_end_is_told() -> None:
    bench = Bench()
    bench.crew.start()
    assert bench.is_answered(bench.ask(Opcode.LOOKUP, 1))
    bench.coming.put(None)
    assert bench.ended.wait(PATIENCE)
    bench.close()


# Requests that somebody gave up


def test_what_is_withdrawn_is_not_begun(bench: Bench) -> None:
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, 100)
    assert put_off_all(bench, hanging)
    begun = set(bench.begun)
    given_up = [number for number in hanging if number not in begun][::2]
    assert given_up
    assert all(bench.crew.has(number) for number in hanging)
    for number in given_up:
        bench.crew.withdraw(number)
    assert not any(bench.crew.has(number) for number in given_up)
    bench.crew.withdraw(next(iter(begun)))
    bench.crew.withdraw(12345)
    assert all(bench.crew.has(number) for number in begun)
    bench.let_go(1)
    assert bench.is_answered([number for number in hanging if number not in given_up])
    assert bench.waits_for(lambda: sum(bench.busy.values()) == 0)
    assert not set(given_up) & set(bench.begun)
    assert not any(bench.crew.has(number) for number in hanging)


def engine_with(bench: Bench, answered: list[tuple[int, int]]) -> Libfuse3:
    """An engine that nothing is mounted by."""
    library = cast(Any, SimpleNamespace(fuse_version=lambda: 314))
    engine = Libfuse3(library, Failures())
    engine._crew = cast(Any, bench.crew)
    engine._answers = cast(Any, SimpleNamespace(fail=lambda unique, number: answered.append((unique, number))))
    return engine


def test_interrupted_requests_are_answered_once_they_hang_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(libfuse3, "time", SimpleNamespace(monotonic=lambda: now))
    answered: list[tuple[int, int]] = []
    engine = engine_with(bench, answered)
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, 100)
    assert put_off_all(bench, hanging)
    done = bench.ask(Opcode.LOOKUP, 2)
    assert bench.is_answered(done)
    assert bench.waits_for(lambda: not bench.crew.has(done[0]))
    begun = bench.begun[0]
    waiting = next(number for number in hanging if number not in bench.begun)
    for number in (begun, done[0], waiting):
        engine._interrupted.append((now + libfuse3.PATIENCE, number))
    engine.tick()
    assert answered == []
    now += libfuse3.PATIENCE
    engine.tick()
    engine.tick()
    assert answered == [(begun, errno.EINTR), (waiting, errno.EINTR)]
    assert not bench.crew.has(waiting)
    bench.let_go(1)
    assert bench.is_answered([number for number in hanging if number != waiting])
    assert waiting not in bench.begun


def test_what_a_thread_worked_with_goes_with_it() -> None:
    """Its counts stay."""
    engine = Libfuse3(cast(Any, SimpleNamespace(fuse_version=lambda: 314)), Failures())
    rooms = [engine._room() for _ in range(3)]
    for room in rooms:
        room.payload.counts[Opcode.READ] += 2
    assert engine.requests() == {"READ": 6}
    del room
    rooms.clear()
    assert engine.requests() == {"READ": 6}
    assert len(engine._counts) == 1
