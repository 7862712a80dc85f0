"""Worker processes: what they may do, and what becomes of containers whose worker dies or hangs."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import glassfs
from glassfs import work
from glassfs.errors import Damaged, GlassfsError
from glassfs.sandbox import client, pool, seccomp, server, wire
from glassfs.sandbox.client import Sandbox
from tests.formats.hdf5_files import h5py
from tests.helpers import local
from tests.waiting import wait_until


@pytest.fixture
def workers() -> Iterator[pool.Pool]:
    """Yield the pool, which has no workers before and after the test."""
    found = pool.pool()
    found.close()
    yield found
    found.close()


def made(path: Path, count: int = 3) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(count):
            file[f"group{number}/x"] = np.arange(number + 3)
    return path


LIST = {"do": "list", "path": [], "first": 0, "count": 9}


def test_worker_that_is_killed_is_replaced_once(tmp_path: Path, workers: pool.Pool) -> None:
    sandbox, other = (Sandbox(local(made(tmp_path / name)), "hdf5") for name in ("a.h5", "b.h5"))
    for attempt in range(2):
        assert sandbox.ask(dict(LIST))[0]["count"] == 3
        process = workers.processes[-1]
        assert other.ask(dict(LIST))[0]["count"] == 3
        os.kill(process, signal.SIGKILL)
        with pytest.raises(Damaged, match="its worker process was killed"):
            sandbox.ask(dict(LIST))
        assert len(workers.processes) == 1, attempt
    with pytest.raises(Damaged, match="its worker process was killed"):
        sandbox.ask(dict(LIST))
    assert other.ask(dict(LIST))[0]["count"] == 3


def test_no_more_than_four_workers_live(tmp_path: Path, workers: pool.Pool) -> None:
    paths = [made(tmp_path / f"{number}.h5") for number in range(9)]
    opened = [glassfs.open(path) for path in paths]
    for one in opened:
        assert one["group1/x"].numpy().tolist() == [0, 1, 2, 3]
        assert len(workers.processes) <= pool.MOST_WORKERS
    assert opened[0]["group2/x"].numpy().tolist() == [0, 1, 2, 3, 4]
    for one in opened:
        one.close()


def test_idle_workers_and_their_server_end(
    tmp_path: Path, workers: pool.Pool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_idle_seconds", 0.1)
    monkeypatch.setattr(pool, "KEEPER_SECONDS", 0.05)
    with glassfs.open(made(tmp_path / "a.h5")) as opened:
        list(opened)
        process = workers.processes[0]
        wait_until(lambda: not workers.processes)
        wait_until(lambda: not os.path.exists(f"/proc/{process}"))
        assert opened["group1/x"].numpy().tolist() == [0, 1, 2, 3]


def test_worker_of_a_dropped_container_ends(tmp_path: Path, workers: pool.Pool) -> None:
    sandbox = Sandbox(local(made(tmp_path / "a.h5")), "hdf5")
    sandbox.ask({"do": "open"})
    process = workers.processes[0]
    assert os.path.exists(f"/proc/{process}")
    del sandbox
    wait_until(lambda: not os.path.exists(f"/proc/{process}"))


def test_forked_process_has_workers_of_its_own(tmp_path: Path, workers: pool.Pool) -> None:
    path = made(tmp_path / "a.h5")
    with glassfs.open(path) as opened:
        list(opened)
        process = os.fork()
        if not process:
            with glassfs.open(path) as mine:
                os._exit(0 if mine["group1/x"].numpy().tolist() == [0, 1, 2, 3] else 1)
        assert os.waitpid(process, 0)[1] == 0
        assert opened["group2/x"].numpy().tolist() == [0, 1, 2, 3, 4]


def test_canceled_request_ends_soon_and_leaves_the_container_readable(tmp_path: Path, workers: pool.Pool) -> None:
    sandbox = Sandbox(local(made(tmp_path / "a.h5")), "hdf5")
    sandbox.ask({"do": "open"})
    os.kill(workers.processes[0], signal.SIGSTOP)
    canceled = work.Work()
    canceled.cancel()
    with pytest.raises(work.Canceled):
        work.done_for(canceled, lambda: sandbox.ask(dict(LIST)))
    answer, _ = sandbox.ask(dict(LIST))
    assert answer["count"] == 3


def test_worker_that_hangs_is_damage(
    tmp_path: Path, workers: pool.Pool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "SILENT_SECONDS", 0.3)
    sandbox = Sandbox(local(made(tmp_path / "a.h5")), "hdf5")
    sandbox.ask({"do": "open"})
    process = workers.processes[0]
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(Damaged, match="does not answer"):
        sandbox.ask({"do": "open"})
    assert not os.path.exists(f"/proc/{process}")


@pytest.mark.parametrize("messages", [
    pytest.param([(wire.ANSWER, b"{")], id="half", marks=pytest.mark.slow),
    pytest.param([(wire.ANSWER, b"[" * 100_000)], id="deep"),
    pytest.param([(wire.DATA, bytes(100))], id="surplus", marks=pytest.mark.slow),
    pytest.param([(b"?", b"")], id="kind", marks=pytest.mark.slow),
    pytest.param([(wire.READ, b"short")], id="read", marks=pytest.mark.slow),
    pytest.param([(wire.READ, wire.RANGE.pack(0, 1 << 30))], id="large"),
])
def test_nonsense_of_a_worker_is_damage(
    tmp_path: Path, workers: pool.Pool, messages: list[tuple[bytes, bytes]],
) -> None:
    """The worker is stopped, and another end of its socket says what a taken over one might."""
    import socket
    import threading

    sandbox = Sandbox(local(made(tmp_path / "a.h5")), "hdf5")
    sandbox.ask({"do": "open"})
    worker = workers._workers[0]
    mine, its = socket.socketpair()
    mine.setblocking(False)
    worker.connection = mine

    def lie() -> None:
        server.receive(its)
        for kind, payload in messages:
            server.send(its, kind, payload)

    thread = threading.Thread(target=lie)
    thread.start()
    with pytest.raises(Damaged, match="its worker process sends"):
        sandbox.ask({"do": "open"}, 50)
    thread.join()
    its.close()


def worker_that(act: Callable[[], object]) -> int:
    """Return how a confined process that does something ends."""
    parent = os.getpid()
    process = os.fork()
    if not process:
        try:
            server._confine(parent)
            act()
        except (MemoryError, OSError):
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("act", [
    lambda: os.open("/etc/passwd", os.O_RDONLY), lambda: bytearray(1 << 30), lambda: __import__("socket").socket(),
], ids=["file", "memory", "network"])
def test_worker_has_limits(act: Callable[[], object]) -> None:
    assert worker_that(lambda: None) == 0
    assert worker_that(act) == 3


@pytest.mark.parametrize("act", [
    lambda: os.stat("/"), lambda: os.kill(os.getppid(), 0), os.fork, lambda: os.execv("/bin/true", ["true"]), os.pipe,
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE), lambda: os.write(2, b""),
], ids=["stat", "kill", "fork", "exec", "pipe", "limits", "write"])
def test_worker_can_only_compute(act: Callable[[], object]) -> None:
    """Without privileges, it has the user id of the daemon, which it must not reach."""
    pid = os.fork()
    if not pid:
        libc = ctypes.CDLL(None)
        libc.prctl(38, 1, 0, 0, 0)
        os._exit(2 if seccomp.restrict() else 0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        pytest.skip("this system has no filters for system calls")
    assert worker_that(act) == 3


@pytest.mark.parametrize(("machine", "header"), [(0, "*/asm/unistd_64.h"), (1, "asm-generic/unistd.h")])
def test_numbers_of_system_calls_are_those_of_the_headers(machine: int, header: str) -> None:
    path = next(Path("/usr/include").glob(header), None)
    if path is None:
        pytest.skip("the kernel's headers are not installed")
    told = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    allowed = {**seccomp.ALLOWED, **seccomp.OWN}
    assert {name: numbers[machine] for name, numbers in allowed.items()} == {name: int(told[name]) for name in allowed}


def test_error_of_the_source_is_not_taken_for_damage(tmp_path: Path, workers: pool.Pool) -> None:
    path = made(tmp_path / "a.h5")
    source = local(path)
    sandbox = Sandbox(source, "hdf5")
    sandbox.ask({"do": "open"})
    source.close()
    workers.close()
    with pytest.raises(GlassfsError) as raised:
        sandbox.ask(dict(LIST))
    assert not isinstance(raised.value, Damaged)
