"""Daemon threads, locks by key, and what a fork leaves of them."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable

import pytest

from glassfs import threads
from glassfs.errors import Unavailable
from glassfs.forks import PerProcess, generation
from glassfs.keyed_lock import KeyedLock
from glassfs.threads import DaemonPool
from tests.waiting import wait_for, wait_until


def in_fork(check: Callable[[], bool]) -> bool:
    """Return what ``check`` returns in a forked process."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pool_runs_no_more_tasks_at_a_time_than_it_has_threads() -> None:
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
    pool.close()
    wait_until(lambda: "glassfs-test" not in {thread.name for thread in threading.enumerate()})


def test_abandoned_tasks_do_not_count_and_are_canceled_while_they_wait() -> None:
    pool = DaemonPool("test", most=1)
    begun, release = threading.Event(), threading.Event()

    def task() -> str:
        begun.set()
        wait_for(release)
        return "late"

    late = pool.submit(task)
    wait_for(begun)
    waiting = pool.submit(lambda: pytest.fail("was cancelled"))
    pool.abandon(waiting)
    pool.abandon(late)
    assert pool.submit(lambda: "next").result(60) == "next" and waiting.cancelled()
    release.set()
    assert late.result(60) == "late"
    assert pool.submit(lambda: "again").result(60) == "again"


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
    parent = generation()
    before = value.get()
    assert value.get() is before is value.made
    assert in_fork(lambda: (
        value.made is None and value.get() == [os.getpid()] and generation() != parent
        and pool.submit(lambda: 2).result(60) == 2
    ))
    assert (value.get(), generation()) == (before, parent)


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
