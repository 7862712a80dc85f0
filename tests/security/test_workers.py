"""The processes that read HDF5 for a mount: who they are, and what they may do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.formats.hdf5_files import h5py
from tests.security.conftest import Shared
from tests.security.users import as_user
from tests.waiting import wait_until

NOBODY = "65534"
DAC_AND_ADMIN = 1 << 1 | 1 << 2 | 1 << 21


def write_numbers(path: Path, count: int = 5) -> None:
    with h5py.File(path, "w") as file:
        file["group/x"] = list(range(count))
    path.chmod(0o644)


def facts(process: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}


def children(process: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{process}/task").glob("*/children") for word in path.read_text().split()]


def server_of(daemon: int) -> int:
    """Return the process of a daemon that starts workers; 0 if there is none yet."""
    found = [one for one in children(daemon) if b"glassfs.sandbox.server" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return found[0] if found else 0


def workers_of(daemon: int) -> list[int]:
    server = server_of(daemon)
    return children(server) if server else []


def test_worker_of_a_root_mount_has_no_rights(shared: Shared, source: Path) -> None:
    write_numbers(source / "a.h5")
    daemon = shared(source)
    assert as_user(os.listdir, daemon.path / "a.h5/group") == ["x.npy"]
    (worker,) = workers_of(daemon.pid)
    status = facts(worker)
    assert status["Uid"] == status["Gid"] == " ".join([NOBODY] * 4)
    assert status["Groups"] == ""
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        assert int(status[name], 16) == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    limits = Path(f"/proc/{worker}/limits").read_text().splitlines()[1:]
    for name in ("Max open files", "Max processes", "Max file size", "Max core file size"):
        assert next(line for line in limits if line.startswith(name)).removeprefix(name).split()[:2] == ["0", "0"]
    space = next(line for line in limits if line.startswith("Max address space")).split()
    assert space[3] == space[4] != "unlimited"
    assert int(facts(server_of(daemon.pid))["CapPrm"], 16) == 0b1111 << 5
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        assert int(facts(int(task.name))["CapEff"], 16) == DAC_AND_ADMIN


def test_worker_that_cannot_be_confined_reads_nothing(shared: Shared, source: Path) -> None:
    """The daemon may not change user ids. The file is healthy, and the log says what is wrong."""
    write_numbers(source / "a.h5")
    daemon = shared(source, before=["setpriv", "--bounding-set", "-setuid"])
    with pytest.raises(BlockingIOError):
        os.listdir(daemon.path / "a.h5")
    assert "cannot be confined: cannot become the user nobody: Operation not permitted" in daemon.log_text()
    assert not workers_of(daemon.pid)


def test_stopped_server_does_not_outlive_its_daemon(shared: Shared, source: Path) -> None:
    write_numbers(source / "a.h5")
    daemon = shared(source)
    os.listdir(daemon.path / "a.h5")
    stopped = children(daemon.pid)
    server = server_of(daemon.pid)
    for process in stopped:  # the guard, too
        os.kill(process, signal.SIGSTOP)
    daemon.end()
    for process in (server, *stopped):
        wait_until(lambda process=process: not os.path.exists(f"/proc/{process}"))  # type: ignore[misc]
