"""Who still waits for an answer, as the system sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.mount.engines import engine
from glassfs.mount.engines.crew import Task
from glassfs.mount.engines.engine import Requesters
from tests.waiting import wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def gone(looking: Requesters, *threads: int) -> list[int]:
    asked = [Task(1, thread, 1, b"", thread=thread) for thread in threads]
    assert looking.gone(asked) == []  # was not in progress at the previous call
    return [one.thread for one in looking.gone(asked)]


def test_zombies_and_ended_processes_are_gone(sleeper: subprocess.Popen[bytes]) -> None:
    looking = Requesters()
    assert gone(looking, sleeper.pid, threading.get_native_id(), 0) == []
    sleeper.kill()
    wait_until(lambda: gone(looking, sleeper.pid) == [sleeper.pid])
    assert Path(f"/proc/{sleeper.pid}").exists()
    sleeper.wait()
    assert gone(looking, sleeper.pid, os.getpid()) == [sleeper.pid]


def test_killed_processes_that_have_not_ended_are_gone(sleeper: subprocess.Popen[bytes]) -> None:
    """A signal stays pending in a process that waits uninterruptibly; here the thread blocks it."""
    blocked = threading.Event()
    done = threading.Event()
    found: list[int] = []

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        found.append(threading.get_native_id())
        blocked.set()
        done.wait()
        signal.sigwait([signal.SIGUSR1])

    thread = threading.Thread(target=wait)
    thread.start()
    blocked.wait()
    try:
        with pytest.MonkeyPatch.context() as patch:
            assert gone(Requesters(), *found) == []
            patch.setattr(engine, "_KILLED", 1 << signal.SIGUSR1 - 1)
            assert gone(Requesters(), *found, os.getpid()) == found
    finally:
        done.set()
        thread.join()


def test_only_work_that_was_in_progress_before_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(engine, "_is_waiting", lambda thread: looked_at.append(thread) or True)
    looking, first, second, canceled = Requesters(), *(Task(1, thread, 1, b"", thread=thread) for thread in (1, 2, 3))
    canceled.cancel()
    for asked in ([first, canceled], [first, second, canceled], [second], [first]):
        looking.gone(asked)
    assert looked_at == [1, 2]


def test_numbers_of_another_namespace_are_not_judged(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeper.kill()
    sleeper.wait()
    monkeypatch.setattr(engine.os, "readlink", lambda path: "1")
    assert gone(Requesters(), sleeper.pid, os.getpid()) == []


def test_processes_that_proc_hides_wait(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    looking = Requesters()
    assert gone(looking, sleeper.pid) == []

    def hidden(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(engine, "open", hidden, raising=False)
    assert gone(looking, sleeper.pid) == []
