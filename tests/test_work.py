"""Work that is stopped: where it is checked, what waits, and what others get of it; threads and what a fork leaves."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from glassfs import threads, work
from glassfs.cache import BlockCache
from glassfs.content import Rendered
from glassfs.datasets.files import SnapshotFile, TimedCalls
from glassfs.datasets.rows import RowReader, TablePiece
from glassfs.errors import Unavailable
from glassfs.forks import PerProcess
from glassfs.keyed_lock import KeyedLock
from glassfs.source import Version
from glassfs.source.local import LocalStore
from glassfs.threads import DaemonPool
from glassfs.tree import Containers, ContainerSettings
from glassfs.tree.containers.lease import Location
from glassfs.work import Canceled, OverBudget, Work
from tests.helpers import in_fork
from tests.memory_store import MemoryStore
from tests.waiting import SECONDS, is_waiting, wait_for, wait_until


class Doing:
    """A thread that does something as a work of its own."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.work = Work(owner=1000)
        self.result: Future[Any] = Future()
        self._do = do
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result.set_result(work.done_for(self.work, self._do))
        except BaseException as error:
            self.result.set_exception(error)

    def is_stopped(self) -> bool:
        """Cancel it and return whether it ended by that."""
        self.work.cancel()
        return isinstance(self.result.exception(SECONDS), Canceled)


def test_work_is_of_the_thread_that_does_it() -> None:
    mine = Work(owner=7)
    assert work.done_for(mine, work.current) is mine
    assert work.current() is None
    mine.cancel()
    work.check()
    with pytest.raises(Canceled):
        work.done_for(mine, work.check)


def test_shielded_work_goes_on() -> None:
    mine = Work()
    mine.cancel()

    def do() -> None:
        with work.shielded(), work.shielded():
            work.check()
        work.check()

    with pytest.raises(Canceled):
        work.done_for(mine, do)
    with work.shielded():  # without work
        work.check()


def test_budget_of_bytes() -> None:
    def do() -> None:
        work.check(10)
        with pytest.raises(OverBudget):  # the outer budget holds
            work.limited(1 << 30, 60, lambda: work.check(1))

    work.limited(10, 60, do)
    work.check(1 << 40)


def test_budget_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 102.0, 102.1))
    monkeypatch.setattr(work.time, "thread_time", lambda: next(times))

    def do() -> None:
        work.check()
        with pytest.raises(OverBudget):
            work.check()

    work.limited(10, 2.0, do)


def _wait_in_vain() -> None:
    work.patiently(threading.Event().wait)


def _take(lock: threading.Lock) -> None:
    with work.holding(lock), work.holding(lock):
        pass


def _take_key(locks: KeyedLock) -> None:
    locks.once("key", lambda: None, lambda: locks.once("key", lambda: None, int))


@pytest.mark.parametrize("wait", [
    pytest.param(lambda: _take(threading.Lock()), id="lock"),
    pytest.param(lambda: _take_key(KeyedLock()), id="key"),
    pytest.param(_wait_in_vain, id="event"),
    pytest.param(lambda: work.is_done(Future()), id="future"),
    pytest.param(lambda: TimedCalls(SECONDS).call("key", "volume", _wait_in_vain), id="call"),
])
def test_waits_end_with_the_work(wait: Callable[[], object]) -> None:
    doing = Doing(wait)
    wait_until(lambda: is_waiting(doing.thread))
    assert doing.is_stopped()


@pytest.mark.parametrize("mine", [None, Work()])
def test_waits_of_limited_time(mine: Work | None) -> None:
    asked: list[float] = []

    def never(seconds: float) -> bool:
        asked.append(seconds)
        return False

    work.begin(mine)
    try:
        assert not work.patiently(never, 0.1)
    finally:
        work.begin(None)
    assert max(asked) <= 0.1


def test_reads_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    source = LocalStore(tmp_path).open(("file",))
    mine = Work()
    assert work.done_for(mine, lambda: source.read(0, 4)) == b"0123"
    mine.cancel()
    with pytest.raises(Canceled):
        work.done_for(mine, lambda: source.read(0, 4))
    with pytest.raises(Canceled):
        work.done_for(mine, lambda: LocalStore(tmp_path).list(()))
    with pytest.raises(OverBudget):
        work.limited(4, 60, lambda: source.read(0, 5))
    source.close()


class TwoReaders:
    """Two readers of one block: the first makes it and waits for the ``gate``, the second waits for the first."""

    def __init__(self) -> None:
        self.cache = BlockCache(1 << 20)
        self.makers: list[Work | None] = []
        self.gate = threading.Event()
        self.first = Doing(self._read)
        wait_until(lambda: bool(self.makers))
        self.second = Doing(self._read)
        wait_until(lambda: is_waiting(self.second.thread))

    def _read(self) -> bytes:
        return Rendered(self.cache, "block", self._make, 4, cost=1 << 20).read(0, 4)

    def _make(self) -> bytes:
        self.makers.append(work.current())
        wait_for(self.gate)
        work.check()
        return b"made"


def test_another_reader_makes_the_block_of_a_stopped_one() -> None:
    readers = TwoReaders()
    readers.first.work.cancel()
    readers.gate.set()
    assert isinstance(readers.first.result.exception(SECONDS), Canceled)
    assert readers.second.result.result(SECONDS) == b"made"
    assert readers.makers == [readers.first.work, readers.second.work]
    assert len(readers.cache.memory._queue) == 0
    readers.cache.clear()
    assert readers.cache.used == 0


def test_waiting_readers_leave_the_maker_alone() -> None:
    readers = TwoReaders()
    assert readers.second.is_stopped()
    readers.gate.set()
    assert readers.first.result.result(SECONDS) == b"made"
    wait_until(lambda: readers.cache.used == 4)
    readers.cache.clear()
    assert readers.cache.used == 0


def test_readers_in_the_queue_for_memory_are_stopped() -> None:
    cache = BlockCache(1 << 20)
    with cache.reserved(1 << 20):
        doing = Doing(lambda: cache.reserved(1 << 19).__enter__())
        wait_until(lambda: len(cache.memory._queue) == 1 and is_waiting(doing.thread))
        assert doing.is_stopped()
        assert len(cache.memory._queue) == 0
    assert cache.used == 0


class Pieces:
    """A block of pieces that each wait for their turn; ``restarts`` counts the decoders."""

    key = "large"
    size = 1 << 20
    cost = stream_cost = 1 << 10

    def __init__(self) -> None:
        self.restarts = 0
        self.begun = threading.Event()
        self.gate = threading.Semaphore(0)

    def whole(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        self.restarts += 1
        for number in range(16):
            self.begun.set()
            assert self.gate.acquire(timeout=SECONDS)
            yield bytes([number]) * (self.size // 16)


def test_another_reader_continues_where_a_stopped_one_was() -> None:
    cache = BlockCache(1 << 20)
    pieces = Pieces()

    def read() -> bytes:
        buffer = bytearray(1)
        cache.read_into(pieces, memoryview(buffer), pieces.size - 1)
        return bytes(buffer)

    first = Doing(read)
    wait_for(pieces.begun)
    second = Doing(read)
    wait_until(lambda: is_waiting(second.thread))
    first.work.cancel()
    for _ in range(16):
        pieces.gate.release()
    assert isinstance(first.result.exception(SECONDS), Canceled)
    assert second.result.result(SECONDS) == b"\x0f"
    assert pieces.restarts == 1


@pytest.mark.parametrize("is_patient", [True, False])
def test_calls_of_a_stopped_caller_are_stopped_and_do_not_count_as_hanging(is_patient: bool) -> None:
    """Otherwise a call would fail for everybody while its thread goes on."""
    calls = TimedCalls(SECONDS)
    called: Future[Work | None] = Future()
    gate, ended = threading.Event(), threading.Event()

    def call() -> None:
        called.set_result(work.current())
        try:
            if is_patient:
                work.patiently(gate.wait)
            wait_for(gate)
        finally:
            ended.set()

    doing = Doing(lambda: calls.call("key", "volume", call))
    derived = called.result(SECONDS)
    assert doing.is_stopped() and derived is not None and derived.owner == 1000
    if is_patient:
        wait_for(ended)
    assert calls.call("key", "volume", lambda: 7) == 7
    gate.set()
    wait_until(lambda: not len(calls._hanging))


def test_a_budget_ends_no_decoder_that_others_share() -> None:
    cache = BlockCache(1 << 20)
    pieces = Pieces()

    def spend() -> Iterator[bytes]:
        for piece in Pieces.pieces(pieces):
            work.check(1 << 20)
            yield piece

    pieces.pieces = spend  # type: ignore[method-assign]
    for _ in range(32):
        pieces.gate.release()
    buffer = memoryview(bytearray(1))
    with pytest.raises(OverBudget):
        work.limited(1 << 20, 60, lambda: cache.read_into(pieces, buffer, pieces.size - 1))
    cache.read_into(pieces, buffer, pieces.size - 1)
    assert buffer[0] == 15
    assert pieces.restarts == 1


def test_what_runs_ahead_is_of_the_same_owner() -> None:
    found: Future[Work | None] = Future()
    Doing(lambda: work.run_ahead(lambda: found.set_result(work.current())))
    ahead = found.result(SECONDS)
    assert ahead is not None
    assert ahead.owner == 1000


@pytest.mark.parametrize("is_canceled", [True, False])
def test_files_read_ahead_are_given_up_with_their_reader(monkeypatch: pytest.MonkeyPatch, is_canceled: bool) -> None:
    """Also when it ends early for another reason."""
    begun, ended = set[Work | None](), threading.Semaphore(0)

    def read(self: RowReader, file: SnapshotFile) -> Iterator[TablePiece]:
        begun.add(work.current())
        try:
            work.patiently(threading.Event().wait)
        finally:
            ended.release()
        yield from ()

    monkeypatch.setattr(RowReader, "_read", read)
    store = MemoryStore(is_remote=True)
    files = [
        SnapshotFile(name, Location(store, (name,)), Version(name), name, "", 0, 0, 0, is_public=True)
        for name in "abc"
    ]
    rows = RowReader(Containers(ContainerSettings(BlockCache())), TimedCalls(60.0))

    def go_on() -> None:
        for _, pieces in rows.of_all(files):
            wait_until(lambda: len(begun) == len(files))
            if not is_canceled:
                return
            list(pieces)

    doing = Doing(go_on)
    if is_canceled:
        wait_until(lambda: is_waiting(doing.thread))
        assert doing.is_stopped()
    else:
        doing.result.result(SECONDS)
    for _ in begun:
        assert ended.acquire(timeout=SECONDS)
    assert {None if one is None else one.owner for one in begun} <= {1000}


# Daemon threads, locks by key, and what a fork leaves of them.


def test_pool_runs_no_more_tasks_at_a_time_than_it_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.1)
    pool = DaemonPool("test", most=2)
    release = threading.Event()
    begun = [threading.Event() for _ in range(3)]

    def task(number: int) -> int:
        begun[number].set()
        wait_for(release)
        return number

    futures = [pool.submit(lambda number=number: task(number)) for number in range(3)]  # type: ignore[misc]
    wait_for(begun[0])
    wait_for(begun[1])
    assert not begun[2].is_set()
    release.set()
    assert [future.result(60) for future in futures] == [0, 1, 2]
    wait_until(lambda: "glassfs-test" not in {thread.name for thread in threading.enumerate()})


def test_errors_of_tasks_reach_the_caller_and_keep_nothing_alive() -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)

    def task(thing: Thing = thing) -> None:
        raise ValueError("wrong")

    pool = DaemonPool("test")
    gc.disable()
    try:
        with pytest.raises(ValueError, match="wrong") as caught:
            pool.submit(task).result(60)
        del task, thing, caught
        wait_until(lambda: gone() is None)
    finally:
        gc.enable()


def test_refused_threads_raise_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = DaemonPool("test", most=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(Unavailable, match="no thread can be started"):
            threads.start("test", print)
        with pytest.raises(Unavailable):
            pool.submit(lambda: 0)
    assert pool.submit(lambda: 1).result(60) == 1


def test_forked_process_has_values_and_threads_of_its_own() -> None:
    pool = DaemonPool("test", most=1)
    assert pool.submit(lambda: 1).result(60) == 1
    value: PerProcess[list[int]] = PerProcess(lambda: [os.getpid()])
    before = value.get()
    assert value.get() is before is value.made
    assert in_fork(lambda: (
        value.made is None and value.get() == [os.getpid()] and pool.submit(lambda: 2).result(60) == 2
    ))
    assert value.get() is before


def test_fork_while_a_value_is_made_does_not_block_the_child() -> None:
    making, release = threading.Event(), threading.Event()

    def make() -> int:
        if threading.current_thread() is thread:
            making.set()
            wait_for(release)
        return 1

    value = PerProcess(make)
    thread = threading.Thread(target=value.get)
    thread.start()
    wait_for(making)
    assert in_fork(lambda: value.get() == 1)
    release.set()
    thread.join()


def test_keyed_lock_excludes_equal_keys_only() -> None:
    locks = KeyedLock()
    inside = threading.Event()

    thread = threading.Thread(target=lambda: locks.once(("a", 1), lambda: None, inside.set))

    def held() -> bool:
        thread.start()
        assert locks.once(("a", 2), lambda: None, lambda: len(locks._held)) == 2
        return not inside.is_set()

    assert locks.once(("a", 1), lambda: None, held)
    wait_for(inside)
    thread.join()
    assert not locks._held
