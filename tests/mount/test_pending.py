"""While a request is pending, others are answered, changes show, and every process can be killed.

Processes that may have to wait for a gate are never this one, which opens it.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import Scale
from tests.mount.conftest import Mounted
from tests.mount.connections import Connection
from tests.mount.gated import Gates, install
from tests.mount.mounts import Mount, is_mounted
from tests.security.users import Child
from tests.waiting import wait_until

SECONDS = 20.0
"""Limit for what takes milliseconds, while a gate is closed that nothing else opens."""
HAS_EPOCH = tuple(map(int, platform.release().split(".")[:2])) >= (6, 16)


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gates:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    return Gates(tmp_path / "gates")


@pytest.fixture
def folder(gates: Gates, tmp_path: Path) -> Path:
    """A folder with ``gated`` and plain files."""
    path = tmp_path / "folder"
    path.mkdir()
    gates.write(path / "gated")
    for name in ("known", "other", "third"):
        (path / name).write_text("before")
    return path


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)


def answers(*command: str | Path) -> bytes:
    """Return what a command writes. Raises AssertionError if that takes long, and leaves it: it may wait for a gate."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command} gets no answer") from None


@contextmanager
def pending(gates: Gates, gate: str, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command whose request waits at a gate until the end of the block."""
    with gates.closed(gate), running(*command) as process:
        gates.wait(gate)
        yield process
        # Open it before the command is killed: without parallel look-ups others wait behind it.


def states(pid: int) -> set[str]:
    """Return the states of a process's threads, as in proc(5)."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def has_ended(pid: int) -> bool:
    """Return whether no thread of a process is left, also none that waits in the kernel."""
    return states(pid) <= {"Z", "X"}


@pytest.fixture
def mount(mounted: Mounted, folder: Path) -> Iterator[Mount]:
    with mounted(folder) as found:
        yield found


def test_slow_look_up_delays_no_other_in_its_folder(mount: Mount, gates: Gates) -> None:
    with pending(gates, "open", "stat", mount.path / "gated") as slow:
        assert answers("cat", mount.path / "other") == b"before"
        assert slow.poll() is None
    assert (mount.path / "gated/data.bin").stat().st_size == 8 << 20


def stat_under_a_timer(path: Path, interrupted: Path) -> None:
    """Ask again after each interruption, and note those."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    while True:
        try:
            path.stat()
        except InterruptedError:
            with interrupted.open("a") as file:
                file.write(".")
        else:
            return


@pytest.mark.slow
def test_request_after_an_interruption_continues_what_was_begun(mount: Mount, gates: Gates, tmp_path: Path) -> None:
    """Otherwise what takes more than two seconds would never end under an interval timer."""
    interrupted = tmp_path / "interrupted"
    interrupted.touch()
    with gates.closed("open"):
        asking = Child(stat_under_a_timer, mount.path / "gated", interrupted)
        wait_until(lambda: interrupted.stat().st_size >= 3)
        opened = gates.waits("open")
    asking.result()
    assert opened == 1


@pytest.mark.skipif(not HAS_EPOCH, reason="this kernel cannot make names stale without the lock of their folder")
def test_changes_show_while_a_look_up_is_pending(mount: Mount, folder: Path, gates: Gates) -> None:
    """Neither the notifications nor the look-ups after them wait for it."""
    known = mount.path / "known"
    assert answers("cat", known) == b"before"
    assert not (mount.path / "new").exists()
    with pending(gates, "open", "stat", mount.path / "gated") as slow:
        (folder / "known-2").write_text("after")
        (folder / "known-2").rename(folder / "known")
        (folder / "new").write_text("new")
        wait_until(lambda: answers("cat", known) == b"after", SECONDS)
        wait_until(lambda: answers("cat", mount.path / "new") == b"new", SECONDS)
        assert answers("cat", mount.path / "other") == b"before"
        assert slow.poll() is None


def test_daemon_can_be_killed_while_a_look_up_is_pending(mount: Mount, folder: Path, gates: Gates) -> None:
    """The daemon dies at once, though a name of the folder has changed, and so do its callers."""
    with pending(gates, "open", "stat", mount.path / "gated") as slow:
        (folder / "other").chmod(0o600)
        wait_until(lambda: "/other has changed" in mount.log.read_text(), SECONDS)
        os.kill(mount.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(mount.pid), SECONDS, "the end of the daemon")
        assert slow.wait(SECONDS) != 0


@pytest.mark.slow
@pytest.mark.parametrize("change", [pytest.param("chmod", marks=pytest.mark.slow), "rename"])
def test_daemon_and_readers_can_be_killed_while_a_version_changes(
    mounted: Mounted, folder: Path, gates: Gates, change: str, scale: Scale, as_root: None,
) -> None:
    """Also readers that were killed themselves while the kernel reads ahead for them, and those that came later."""
    for number in range(scale(2, 10, 50)):
        with mounted(folder) as mount:
            path = mount.path / "gated/data.bin"
            connection = Connection(mount.path)
            with pending(gates, "read", "cat", path) as reader, running("cat", path) as second:
                if number % 2:
                    second.kill()
                if change == "chmod":
                    (folder / "gated").chmod((0o600, 0o640)[number % 2])
                else:
                    gates.write(folder / "gated-2", "b")
                    (folder / "gated-2").rename(folder / "gated")
                wait_until(lambda: any("/gated has changed" in line for line in mount.log_lines()), SECONDS)
                with running("cat", path) as third:
                    os.kill(mount.pid, signal.SIGKILL)
                    try:
                        wait_until(lambda: has_ended(mount.pid), SECONDS, "the end of the daemon")
                        for process in (reader, second, third):
                            assert process.wait(SECONDS) != 0
                    finally:
                        connection.abort()
        assert not is_mounted(mount.path)
        (folder / "gated").chmod(0o644)


def guards_of(mount: Mount) -> list[int]:
    """Return the ids of the child processes of the daemon."""
    tasks = Path(f"/proc/{mount.pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


@pytest.mark.parametrize("end", [
    *(pytest.param(end, marks=pytest.mark.slow) for end in ("umount", signal.SIGTERM)), signal.SIGKILL,
])
def test_guard_ends_with_its_mount(mounted: Mounted, folder: Path, end: signal.Signals | str, as_root: None) -> None:
    """It is small, has a session of its own, and holds neither the mount nor a terminal or pipe of the caller."""
    with mounted(folder) as mount:
        (guard,) = guards_of(mount)
        wait_until(lambda: b"glassfs-guard" in Path(f"/proc/{guard}/cmdline").read_bytes())
        status = Path(f"/proc/{guard}/status").read_text().splitlines()
        assert next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) < 10 << 10
        held = {number: os.readlink(f"/proc/{guard}/fd/{number}") for number in ("0", "1", "2")}
        assert held["0"].startswith("pipe:")
        assert held["1"].endswith("/abort")
        assert held["2"] == os.devnull
        assert os.getsid(guard) == guard
        if isinstance(end, signal.Signals):
            os.killpg(os.getpgid(mount.pid), end)
        else:
            mount.unmount()
        wait_until(lambda: has_ended(guard), SECONDS, "the end of the guard")
        wait_until(lambda: has_ended(mount.pid), SECONDS, "the end of the daemon")


IMPATIENT = """
from glassfs.mount.engines import wire
from glassfs.mount.engines.notices import Notices

wire.ATTRIBUTES_ONLY = 0
Notices._reading = lambda self: set()
"""
"""Has a daemon wait for pages in the kernel, as no daemon must."""


def test_guard_frees_readers_of_a_daemon_that_cannot_end(
    mounted: Mounted, folder: Path, gates: Gates, tmp_path: Path, as_root: None,
) -> None:
    (tmp_path / "site/sitecustomize.py").write_text(IMPATIENT)
    with mounted(folder) as mount:
        connection = Connection(mount.path)
        with pending(gates, "read", "cat", mount.path / "gated/data.bin") as reader:
            (folder / "gated").chmod(0o600)
            wait_until(lambda: "D" in states(mount.pid), SECONDS, "waiting in the kernel")
            try:
                os.kill(mount.pid, signal.SIGKILL)
                wait_until(lambda: has_ended(mount.pid), SECONDS, "the end of the daemon")
                assert reader.wait(SECONDS) != 0
            finally:
                connection.abort()
