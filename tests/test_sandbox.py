"""Worker processes: what they may do, and what becomes of containers whose worker dies or hangs."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import glassfs
from glassfs import work
from glassfs.errors import Damaged, GlassfsError, Unavailable
from glassfs.sandbox import client, confinement, pool, server
from glassfs.sandbox.client import Sandbox
from glassfs.settings import settings
from tests.formats.hdf5_files import h5py
from tests.helpers import in_fork, local, worker_processes
from tests.waiting import is_waiting, wait_until


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


def sandboxed(path: Path) -> Sandbox:
    return Sandbox(local(made(path)))


@pytest.fixture
def sandbox(tmp_path: Path, workers: pool.Pool) -> Sandbox:
    return sandboxed(tmp_path / "a.h5")


@pytest.fixture
def other(tmp_path: Path, workers: pool.Pool) -> Sandbox:
    return sandboxed(tmp_path / "b.h5")


def listed(sandbox: Sandbox) -> int:
    """Return the number of groups, which a worker lists."""
    answer, _ = sandbox.ask({"do": "list", "path": [], "first": 0, "count": 9})
    return int(answer["count"])


def test_worker_and_server_that_are_killed_are_replaced(sandbox: Sandbox, other: Sandbox, workers: pool.Pool) -> None:
    for _ in range(3):
        assert listed(sandbox) == 3
        process = worker_processes(workers)[-1]
        assert listed(other) == 3
        os.kill(process, signal.SIGKILL)
        assert listed(sandbox) == 3
        assert len(worker_processes(workers)) == 2
        server = server_of(workers)._process
        server.kill()
        server.wait()  # a request that reaches it while it dies is Unavailable


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_container_whose_workers_are_killed_is_not_damaged(
    sandbox: Sandbox, number: signal.Signals, monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed(sandbox)
    run = client._Conversation.run

    def killed(conversation: client._Conversation, request: bytes) -> client.Outcome:
        if not conversation.worker.process:
            run(conversation, request)
        process = conversation.worker.process
        os.kill(process, number)
        wait_until(lambda: has_ended(process))
        return run(conversation, request)

    with monkeypatch.context() as patched:
        patched.setattr(client._Conversation, "run", killed)
        for _ in range(3):
            with pytest.raises(Unavailable, match="its worker process was killed"):
                listed(sandbox)
    assert listed(sandbox) == 3


def has_ended(process: int) -> bool:
    """Return whether a process has ended, perhaps without having been waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_worker_that_crashes_is_damage(sandbox: Sandbox, workers: pool.Pool) -> None:
    sandbox.ask({"do": "open"})
    os.kill(worker_processes(workers)[0], signal.SIGSEGV)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"its worker process crashed \(SIGSEGV\)"):
            listed(sandbox)
    assert not worker_processes(workers)


def test_kernel_ends_workers_first_when_memory_runs_short(sandbox: Sandbox, workers: pool.Pool) -> None:
    listed(sandbox)
    (process,) = worker_processes(workers)
    assert Path(f"/proc/{process}/oom_score_adj").read_text().strip() == "1000"


def server_of(workers: pool.Pool) -> pool._Server:
    return workers._servers["hdf5"]


def test_stopped_server_delays_no_worker_that_is_ready(sandbox: Sandbox, other: Sandbox, workers: pool.Pool) -> None:
    """It is killed when it starts no worker in time, and at the end."""
    sandbox.ask({"do": "open"})
    stopped = server_of(workers)
    os.kill(stopped._process.pid, signal.SIGSTOP)
    stopped.patience = 1e6
    waiting = work.Work()
    thread = threading.Thread(target=lambda: cancelable(lambda: work.done_for(waiting, lambda: listed(other))))
    thread.start()
    wait_until(lambda: len(worker_processes(workers)) == 2)
    assert listed(sandbox) == 3
    waiting.cancel()
    thread.join()
    stopped.patience = 0.2
    with pytest.raises(Unavailable, match="does not start in time"):
        listed(other)
    assert stopped._process.poll() == -signal.SIGKILL
    assert listed(other) == 3
    os.kill(server_of(workers)._process.pid, signal.SIGSTOP)
    last = server_of(workers)._process
    pool.close()
    assert last.poll() == -signal.SIGKILL


def test_upgrade_is_no_damage_and_is_not_remembered(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as upgraded:
        upgraded.setattr(client, "__version__", "another")
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"another version: glassfs was upgraded; mount.*again"):
                listed(sandbox)
    assert listed(sandbox) == 3


def test_lack_of_memory_is_no_damage_and_is_not_remembered(
    sandbox: Sandbox, other: Sandbox, workers: pool.Pool,
) -> None:
    sandbox.ask({"do": "open"})
    process = server_of(workers)._process.pid
    before = resource.prlimit(process, resource.RLIMIT_AS)
    used = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(process, resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"192 MiB of memory are not available \(see ulimit -v\)"):
            listed(other)
    resource.prlimit(process, resource.RLIMIT_AS, before)
    assert listed(other) == 3


@pytest.mark.parametrize("is_running", [False, True])
def test_lack_of_descriptors_is_no_damage_and_is_not_remembered(
    sandbox: Sandbox, other: Sandbox, is_running: bool,
) -> None:
    if is_running:
        sandbox.ask({"do": "open"})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(Unavailable, match="no worker process can be started"):
            listed(other)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert listed(other) == 3


@pytest.mark.parametrize("name", ["restrict", "open"])
def test_process_that_cannot_be_confined_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, name, mock.Mock(side_effect=OSError("not here")), raising=False)
    assert worker_that(lambda: None) == 3
    monkeypatch.undo()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(OSError, match="on Linux on x86-64 and ARM64 only, not on riscv64"):
        confinement.confine(os.getppid())


def test_processor_time_that_is_limited_already_is_no_damage(
    sandbox: Sandbox, other: Sandbox, workers: pool.Pool,
) -> None:
    sandbox.ask({"do": "open"})
    resource.prlimit(server_of(workers)._process.pid, resource.RLIMIT_CPU, (100, 100))
    assert listed(other) == 3


class Thing:
    """What stands for a sandbox in the pool."""


def acquired(workers: pool.Pool, thing: Thing, owner: int) -> pool.SandboxWorker:
    return work.done_for(work.Work(owner), lambda: workers.acquire(thing, 0))


def test_user_waits_for_no_worker_of_another_one(workers: pool.Pool) -> None:
    things = [Thing() for _ in range(8)]
    mine = [acquired(workers, thing, 1) for thing in things[: pool.MOST_WORKERS]]
    other = acquired(workers, things[5], 2)
    for owner in (1, 2):
        further = work.Work(owner)
        thread = threading.Thread(target=lambda further=further, owner=owner: cancelable(
            lambda: work.done_for(further, lambda: workers.acquire(things[6], 0)),
        ))
        thread.start()
        wait_until(lambda thread=thread: is_waiting(thread))  # type: ignore[misc]
        further.cancel()
        thread.join()
    for worker in (*mine, other):
        workers.release(worker)
    assert len(worker_processes(workers)) == pool.MOST_WORKERS


def test_worker_waiting_for_a_silent_source_gives_way(
    tmp_path: Path, workers: pool.Pool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request begins again when the source answers."""
    monkeypatch.setattr(settings, "worker_source", 0.05)
    speaks = threading.Event()
    found: list[int] = []

    def ask(number: int) -> None:
        source = local(made(tmp_path / f"{number}.h5"))
        buffer = source.buffer

        def silent(offset: int, size: int) -> bytearray:
            speaks.wait()
            return buffer(offset, size)

        with mock.patch.object(source, "buffer", silent):
            found.append(listed(Sandbox(source)))

    hanging = [threading.Thread(target=ask, args=(number,)) for number in range(2 * pool.MOST_WORKERS)]
    for thread in hanging:
        thread.start()
    wait_until(lambda: len(workers._workers) == pool.MOST_WORKERS)
    assert listed(sandboxed(tmp_path / "a.h5")) == 3
    assert not found
    speaks.set()
    for thread in hanging:
        thread.join()
    assert found == [3] * len(hanging)


def cancelable(do: Callable[[], object]) -> None:
    with suppress(work.Canceled):
        do()


def test_idle_workers_and_their_server_end(tmp_path: Path, workers: pool.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "worker_idle", 0.1)
    monkeypatch.setattr(settings, "worker_check", 0.05)
    with glassfs.open(made(tmp_path / "a.h5")) as opened:
        list(opened)
        process = worker_processes(workers)[0]
        wait_until(lambda: not worker_processes(workers))
        wait_until(lambda: not os.path.exists(f"/proc/{process}"))
        assert opened["group1/x"].numpy().tolist() == [0, 1, 2, 3]


def test_worker_of_a_dropped_container_ends(tmp_path: Path, workers: pool.Pool) -> None:
    sandbox = sandboxed(tmp_path / "a.h5")
    sandbox.ask({"do": "open"})
    process = worker_processes(workers)[0]
    assert os.path.exists(f"/proc/{process}")
    del sandbox
    wait_until(lambda: not os.path.exists(f"/proc/{process}"))


def test_forked_process_has_workers_of_its_own(tmp_path: Path, workers: pool.Pool) -> None:
    path = made(tmp_path / "a.h5")
    with glassfs.open(path) as opened:
        list(opened)
        assert in_fork(lambda: glassfs.open(path)["group1/x"].numpy().tolist() == [0, 1, 2, 3])
        assert opened["group2/x"].numpy().tolist() == [0, 1, 2, 3, 4]


def test_canceled_request_ends_soon_and_leaves_the_container_readable(sandbox: Sandbox, workers: pool.Pool) -> None:
    sandbox.ask({"do": "open"})
    os.kill(worker_processes(workers)[0], signal.SIGSTOP)
    canceled = work.Work()
    canceled.cancel()
    with pytest.raises(work.Canceled):
        work.done_for(canceled, lambda: listed(sandbox))
    assert listed(sandbox) == 3


def test_worker_that_is_silent_is_replaced(
    sandbox: Sandbox, workers: pool.Pool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "worker_silent", 0.3)
    sandbox.ask({"do": "open"})
    process = worker_processes(workers)[0]
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="does not answer"):
        sandbox.ask({"do": "open"})
    assert not os.path.exists(f"/proc/{process}")
    assert listed(sandbox) == 3


@pytest.mark.parametrize("messages", [
    pytest.param([(server.ANSWER, b"{")], id="half", marks=pytest.mark.slow),
    pytest.param([(server.ANSWER, b"[" * 100_000)], id="deep"),
    pytest.param([(server.DATA, bytes(100))], id="surplus", marks=pytest.mark.slow),
    pytest.param([(b"?", b"")], id="kind", marks=pytest.mark.slow),
    pytest.param([(server.READ, b"short")], id="read", marks=pytest.mark.slow),
    pytest.param([(server.READ, server.RANGE.pack(0, 1 << 30))], id="large"),
])
def test_nonsense_of_a_worker_is_damage(
    sandbox: Sandbox, workers: pool.Pool, messages: list[tuple[bytes, bytes]],
) -> None:
    """The worker is stopped, and another end of its socket says what a taken over one might."""
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
            confinement.confine(parent)
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
    if confinement.why_impossible():
        pytest.skip(confinement.why_impossible())
    assert worker_that(act) == 3


@pytest.mark.parametrize(("machine", "header"), [(0, "*/asm/unistd_64.h"), (1, "asm-generic/unistd.h")])
def test_numbers_of_system_calls_are_those_of_the_headers(machine: int, header: str) -> None:
    path = next(Path("/usr/include").glob(header), None)
    if path is None:
        pytest.skip("the kernel's headers are not installed")
    told = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    allowed = {**confinement.ALLOWED, **confinement.OWN}
    assert {name: numbers[machine] for name, numbers in allowed.items()} == {name: int(told[name]) for name in allowed}


def test_error_of_the_source_is_not_taken_for_damage(tmp_path: Path, workers: pool.Pool) -> None:
    source = local(made(tmp_path / "a.h5"))
    sandbox = Sandbox(source)
    listed(sandbox)
    source.close()
    workers.close()
    with pytest.raises(GlassfsError) as raised:
        listed(sandbox)
    assert not isinstance(raised.value, Damaged)
