"""The threads that answer: which requests wait for which, and that none is lost. Requests come from a queue here."""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from glassfs.errors import Unavailable
from glassfs.mount.engines import crew as crew_module
from glassfs.mount.engines import libfuse3
from glassfs.mount.engines.crew import (
    IDLE_THREADS,
    MAX_COMPUTING,
    MAX_OF_VOLUME,
    MAX_READERS,
    SHARED_TICKS,
    Crew,
    Task,
    Worker,
)
from glassfs.mount.engines.libfuse3 import Libfuse3
from glassfs.mount.engines.wire import Opcode
from glassfs.mount.errors import Failures
from tests.conftest import Scale
from tests.waiting import SECONDS, wait_for, wait_until

VOLUME = 1_000_000
"""Node ids of one volume."""
LONG = 1 << 20


class Bench:
    """A crew at work. Requests about a volume that ``hangs`` are answered when it is released."""

    def __init__(self) -> None:
        self.coming: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.answered: Counter[int] = Counter()
        self.busy: Counter[tuple[str, bool]] = Counter()
        self.most: Counter[tuple[str, bool]] = Counter()
        self.gates: dict[str, threading.Event] = {}
        self.are_computing = False
        """Whether requests that hang use the processor meanwhile."""
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
            task.is_waiting = not self.are_computing
            gate.wait()
        with self.changed:
            self.busy[kind] -= 1
            self.answered[task.unique] += 1
            self.changed.notify_all()

    def hang(self, volume: int) -> None:
        self.gates[str(volume)] = threading.Event()

    def release(self, volume: int) -> None:
        self.gates.pop(str(volume)).set()

    def ask(self, opcode: Opcode, volume: int, times: int = 1, size: int = 0, owner: int = 1000) -> list[int]:
        """Send requests of a user about nodes of a volume; return their numbers."""
        numbers = []
        for _ in range(times):
            self.unique += 1
            numbers.append(self.unique)
            self.coming.put(Task(opcode, self.unique, volume * VOLUME + self.unique, b"", size, owner=owner))
        return numbers

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, SECONDS)

    def wait_for_answers(self, numbers: list[int]) -> None:
        self.wait(lambda: all(self.answered[number] for number in numbers))

    def wait_for_deferral(self, numbers: list[int]) -> None:
        """Wait until each of these hanging requests was begun or deferred."""
        wait_until(lambda: self.deferred + sum(self.busy.values()) == len(numbers))

    @property
    def deferred(self) -> int:
        return sum(map(len, self.crew._queues.values()))

    def close(self) -> None:
        for volume in list(self.gates):
            self.release(int(volume))
        self.coming.put(None)
        wait_for(self.ended)
        with self.crew._lock:
            while self.crew._parked:
                self.crew._parked.pop().release()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.crew.start()
    yield made
    made.close()


@pytest.mark.parametrize(("kind", "count", "least", "most"), [
    (Opcode.READ, 1000, 1, MAX_READERS), (Opcode.LOOKUP, 3 * MAX_OF_VOLUME, MAX_READERS + 1, MAX_OF_VOLUME),
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
    assert bench.crew.size <= most + len(stats) + 2 * IDLE_THREADS
    bench.release(1)
    bench.wait_for_answers(hanging + stats)
    assert set(bench.answered.values()) == {1}
    assert bench.most["1", is_read] <= most
    assert bench.deferred == 0
    wait_until(lambda: bench.crew.size <= IDLE_THREADS)


def test_deferred_requests_cost_the_others_little(bench: Bench) -> None:
    bench.hang(1)
    bench.wait_for_deferral(bench.ask(Opcode.READ, 1, 1000))
    asked = bench.asked
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2))
    wait_until(lambda: sum(bench.busy.values()) == bench.busy["1", True])
    assert bench.asked - asked <= 10 * MAX_READERS


def test_deferred_requests_begin_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one reader at a time, so that no thread can be late between taking a request and answering it."""
    for name, value in (("IDLE_THREADS", 2), ("MAX_READERS", 1)):
        monkeypatch.setattr(crew_module, name, value)
    bench = Bench()
    bench.crew.start()
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, 200)
    bench.wait_for_deferral(hanging)
    before = len(bench.begun)
    queued = [task.unique for waiting in bench.crew._queues.values() for task in waiting]
    bench.gates["1"].set()
    bench.wait_for_answers(hanging)
    assert bench.begun[before:] == queued
    bench.close()


@pytest.mark.usefixtures("quick_switches")
def test_each_request_is_answered_once(bench: Bench, scale: Scale) -> None:
    asked = []
    for _ in range(scale(5, 50)):
        bench.hang(1)
        asked += bench.ask(Opcode.READ, 1, 70) + bench.ask(Opcode.LOOKUP, 1, 20) + bench.ask(Opcode.READ, 2, 70)
        bench.wait(lambda: bench.busy["1", True] > 0)
        bench.release(1)
        asked += bench.ask(Opcode.READ, 1, 70, size=LONG)
    bench.wait_for_answers(asked)
    assert bench.answered == Counter(asked)


@pytest.mark.usefixtures("quick_switches")
def test_no_deferred_request_is_forgotten(monkeypatch: pytest.MonkeyPatch, scale: Scale) -> None:
    """One is deferred just as those before it are done: no later request would take it along."""
    for name, value in (("IDLE_THREADS", 3), ("MAX_READERS", 1), ("MAX_OF_VOLUME", 2)):
        monkeypatch.setattr(crew_module, name, value)
    bench = Bench()
    bench.crew.start()
    for _ in range(scale(200, 3000)):
        bench.wait_for_answers(bench.ask(Opcode.READ, 1, 6) + bench.ask(Opcode.LOOKUP, 1, 2))
    bench.close()
    assert bench.most["1", True] <= 3


def test_deferred_requests_begin_when_another_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("IDLE_THREADS", 2), ("MAX_BUSY", 6)):
        monkeypatch.setattr(crew_module, name, value)
    bench = Bench()
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
    hanging = bench.ask(Opcode.READ, 1, IDLE_THREADS + 1, size=LONG)
    wait_until(lambda: shortage.failed > 10)  # the supervisor tries again and again
    others = bench.ask(Opcode.LOOKUP, 2, 10)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    shortage.is_on = False
    bench.wait_for_answers(others)
    bench.release(1)
    bench.wait_for_answers(hanging)
    assert set(bench.answered.values()) == {1}


def test_thread_begun_before_a_shortage_does_not_end_it(
    bench: Bench, shortage: Shortage, caplog: pytest.LogCaptureFixture,
) -> None:
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2))
    coming, may_come = threading.Event(), threading.Event()

    def late() -> None:
        coming.set()
        wait_for(may_come)

    bench.make_state = late
    bench.hang(1)
    bench.ask(Opcode.READ, 1, size=LONG)
    while not coming.is_set():  # a thread that was parked takes the next request, at most IDLE_THREADS times
        begun = len(bench.begun)
        bench.ask(Opcode.READ, 1, size=LONG)
        wait_until(lambda begun=begun: len(bench.begun) > begun or coming.is_set())  # type: ignore[misc]
    shortage.is_on = True
    bench.crew._relieve()
    assert len(caplog.records) == 1
    may_come.set()
    bench.ask(Opcode.READ, 1, size=LONG)
    wait_until(lambda: shortage.failed > 10)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
def test_thread_without_memory_loses_no_request(bench: Bench, error: Exception) -> None:
    bench.wait_for_answers(bench.ask(Opcode.LOOKUP, 2))
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise error

    bench.make_state = fail
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, IDLE_THREADS + 5, size=LONG)
    wait_for(failed)
    others = bench.ask(Opcode.LOOKUP, 2, 10)
    bench.make_state = lambda: None
    bench.wait_for_answers(others)
    bench.release(1)
    bench.wait_for_answers(hanging)


def test_starting_without_threads_raises(shortage: Shortage) -> None:
    shortage.is_on = True
    with pytest.raises(Unavailable):
        Bench().crew.start()


def progress(crew: Crew[None]) -> dict[int, Task]:
    """The requests that are not answered yet."""
    return {task.unique: task for task in crew.tasks()}


def test_canceled_requests_are_not_begun(bench: Bench) -> None:
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, 100)
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


def test_interrupted_requests_that_hang_are_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(libfuse3, "time", SimpleNamespace(monotonic=lambda: now))
    answered: list[tuple[int, int]] = []
    engine = Libfuse3(cast(Any, SimpleNamespace(fuse_version=lambda: 314)), Failures())
    engine._crew = cast(Any, bench.crew)
    engine._answers = cast(Any, SimpleNamespace(fail=lambda unique, number: answered.append((unique, number))))
    bench.hang(1)
    hanging = bench.ask(Opcode.READ, 1, 100)
    bench.wait_for_deferral(hanging)
    done = bench.ask(Opcode.LOOKUP, 2)
    bench.wait_for_answers(done)
    wait_until(lambda: done[0] not in progress(bench.crew))
    begun = bench.begun[0]
    task = progress(bench.crew)[begun]
    waiting = next(number for number in hanging if number not in bench.begun)
    for number in (begun, done[0], waiting):
        engine._interrupted.append((now + libfuse3.INTERRUPT_SECONDS, number))
    engine.tick()
    assert answered == []
    now += libfuse3.INTERRUPT_SECONDS
    engine.tick()
    engine.tick()
    assert sorted(answered) == sorted([(begun, errno.EINTR), (waiting, errno.EINTR)])
    assert task.is_canceled
    assert waiting not in progress(bench.crew)
    bench.release(1)
    bench.wait_for_answers([number for number in hanging if number != waiting])
    assert waiting not in bench.begun


def test_counts_of_ended_threads_stay() -> None:
    engine = Libfuse3(cast(Any, SimpleNamespace(fuse_version=lambda: 314)), Failures())
    states = [engine._thread_state() for _ in range(3)]
    for state in states:
        state.payload.counts[Opcode.READ] += 2
    assert engine.requests() == {"READ": 6}
    del state
    states.clear()
    assert engine.requests() == {"READ": 6}
    assert len(engine._counts) == 1


@pytest.mark.parametrize(("used", "is_slowed"), [(0.5, True), (1.2, True), (4.0, False), (12.0, False), (15.0, True)])
def test_users_are_slowed_where_there_is_not_enough(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, used: float, is_slowed: bool,
) -> None:
    """Threads that wait for the interpreter use one processor, those that decode use many, of 16 here."""
    monkeypatch.setattr(crew_module, "CORES", 16)
    bench.are_computing = True
    bench.hang(1)
    hanging = bench.ask(Opcode.LOOKUP, 1, 4) + bench.ask(Opcode.LOOKUP, 1, owner=2000)
    bench.wait(lambda: sum(bench.busy.values()) == len(hanging))
    times = iter([(0.0, 0.0), (10.0, 10 * used)])
    bench.crew._measured = next(times)
    monotonic, process = next(times)
    fake = SimpleNamespace(**{name: getattr(time, name) for name in ("sleep", "perf_counter", "thread_time")})
    fake.monotonic, fake.process_time = lambda: monotonic, lambda: process
    with monkeypatch.context() as patch:
        patch.setattr(crew_module, "time", fake)
        bench.crew.tick()
    slowed = {task.unique: task.slowdown for task in bench.crew.tasks()}
    assert slowed == {number: 3.0 if is_slowed and number in hanging[:4] else 0.0 for number in hanging}
