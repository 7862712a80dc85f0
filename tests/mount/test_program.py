"""``glassfs run``: a mount for one program, in namespaces of its own and, where these are forbidden, without."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from writers.wshard import WShardWriter

from glassfs.mount import daemon, program
from glassfs.mount.errors import MountError
from glassfs.mount.options import MountOptions
from tests.cli.glassfs_command import glassfs as in_process
from tests.mount.gallery import npy
from tests.mount.mounts import COMMAND, PATIENCE, is_mounted, is_running, opened, processes_with, require
from tests.waiting import wait_until

DATA = np.arange(1000, dtype="<f4")
PID = """pid() { sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p' "$GLASSFS_MOUNT/.glassfs/status.json"; }\n"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    require()
    if os.geteuid() != 0:
        pytest.skip("tests/security/test_run.py runs it as another user")
    path = tmp_path / "some.wshard"
    with WShardWriter(path) as writer:
        writer.add("reward", DATA)
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for mount points, which is empty again at the end, as no mount and no process is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    wait_until(lambda: not os.listdir(folder))
    wait_until(lambda: not processes_with(folder))
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def run(*words: str | Path, script: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a shell script by ``glassfs run``, after these words."""
    return subprocess.run(
        [*COMMAND, "run", *map(str, words), "--", "sh", "-c", script], capture_output=True, text=True,
        timeout=2 * PATIENCE, check=False, cwd=cwd,
    )


@contextmanager
def running(store: Path, script: str) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """Yield a command that has printed its first line, its daemon, and its mount point; it is killed at the end."""
    words = [*COMMAND, "run", str(store), "--", "sh", "-c", f'{PID}echo $(pid) "$GLASSFS_MOUNT"; {script}']
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            daemon, place = process.stdout.readline().split(" ", 1)
            yield process, int(daemon), Path(place.rstrip("\n"))
        finally:
            process.kill()


@pytest.mark.usefixtures("temporary")
def test_words_and_environment_name_the_mount(store: Path) -> None:
    script = '[ x{}x{}x = "x${GLASSFS_MOUNT}x${GLASSFS_MOUNT}x" ] && ls {}; exit 7'
    done = run(store, script=script)
    assert (done.returncode, done.stdout, done.stderr) == (7, "meta\nreward.npy\n", "")


def test_outside_sees_an_empty_directory(store: Path, temporary: Path) -> None:
    with running(store, "read word; cat {}/reward.npy | wc -c") as (process, daemon, place):
        assert place.parent == temporary
        assert os.listdir(place) == [] and not is_mounted(place)
        assert is_running(daemon)
        output, _ = process.communicate("\n")
        assert int(output) == len(npy(DATA))
    wait_until(lambda: not is_running(daemon))


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("victim", ["command", "daemon", "both"])
def test_nothing_stays_after_a_kill(store: Path, victim: str) -> None:
    """The mount, its directory and its processes are gone, as the fixture checks, when the command has ended."""
    with running(store, "read word; cat {}/reward.npy") as (process, daemon, _):
        if victim != "command":
            os.kill(daemon, signal.SIGKILL)
            wait_until(lambda: not is_running(daemon))
        if victim != "daemon":
            process.kill()
        output, _ = process.communicate("\n")
        assert output == ""
    assert process.returncode == (1 if victim == "daemon" else -signal.SIGKILL)
    wait_until(lambda: not is_running(daemon))


@pytest.mark.usefixtures("temporary")
def test_signals_and_children_are_those_of_the_command(store: Path) -> None:
    """Signals reach it, those that Python ignores have their default action, and it has no child of glassfs."""
    script = """trap 'echo TERM; exit 3' TERM; cat /proc/$$/task/$$/children; echo; ls /proc/$$/fd | tr '\\n' ' '; echo
    grep SigIgn /proc/$$/status; while :; do sleep 0.05; done"""
    with running(store, script) as (process, _, _):
        assert process.stdout is not None
        children, descriptors, ignored = (process.stdout.readline() for _ in range(3))
        assert len(children.split()) <= 1  # cat itself
        assert set(descriptors.split()) <= {"0", "1", "2", "10"}
        assert int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0
        process.terminate()
        assert process.communicate()[0].splitlines()[-1] == "TERM"
        assert process.returncode == 3


@pytest.mark.usefixtures("temporary")
def test_command_is_as_its_caller_wanted(store: Path) -> None:
    """Its limit of open files stays, SIGCHLD may be ignored, and nothing else keeps what it inherits and closes."""
    words = " ".join([*COMMAND, "run", str(store), "--"])
    script = f"ulimit -Sn 200; exec 9>&1; exec {words} sh -c 'ulimit -Sn; exec >&- 9>&-; read word'"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"200\n"
        assert process.poll() is None
        process.communicate(b"\n")


def test_directory_is_locked_against_cleaning(store: Path, temporary: Path) -> None:
    """As for systemd-tmpfiles: removing the directory would remove the mount."""
    with running(store, "read word"):
        (place,) = temporary.iterdir()
        with opened(place) as folder, pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_directory_is_removed_if_no_shell_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    failed = subprocess.CompletedProcess([], 2)
    monkeypatch.setattr(subprocess, "run", lambda *_, **_others: failed)
    with pytest.raises(MountError, match="no shell can be started that removes it"):
        program.mount_for_program([str(tmp_path)], str(place), True, MountOptions())
    assert not place.exists()


def test_daemon_ends_without_the_shell(store: Path, temporary: Path) -> None:
    with running(store, "read word") as (process, pid, place):
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                if (folder / "cmdline").read_bytes().startswith(b"/bin/sh\0-c\0exec 3<&0;") and (
                    os.fsencode(place) in (folder / "cmdline").read_bytes()
                ):
                    os.kill(int(folder.name), signal.SIGKILL)
        process.communicate("\n")
    wait_until(lambda: not is_running(pid))
    place.rmdir()


@pytest.mark.usefixtures("temporary")
def test_terminal_is_the_command_s(store: Path) -> None:
    """Ctrl-Z stops the command, and a shell continues it in the foreground, where it reads from the terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("bash", ["bash", "--norc", "--noediting", "-i"])
    seen = ""

    def expect(word: str) -> None:
        nonlocal seen
        end = time.monotonic() + PATIENCE
        while word not in seen:
            assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], seen
            seen += os.read(terminal, 4096).decode(errors="replace")
        seen = seen.partition(word)[2]

    def write(text: str) -> None:
        os.write(terminal, text.encode())

    try:
        write(f"PS1=; set +H; {' '.join(COMMAND)} run {store} -- sh -c 'echo be''gun; read x; echo got-$x; ls {{}}'\n")
        expect("begun")
        write("\x1a")
        expect("Stopped")
        write("fg\n")
        write("word\n")
        expect("got-word")
        expect("reward.npy")
        write("exit\n")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("exists", [False, True])
def test_place_can_be_named(store: Path, tmp_path: Path, exists: bool) -> None:
    """A directory that was made for the mount is removed at its end, another one stays."""
    place = tmp_path / "a place\nwith 'quotes'"
    if exists:
        place.mkdir()
    done = run("--at", place.name, store, script='cat "$GLASSFS_MOUNT"/reward.npy | wc -c', cwd=tmp_path)
    assert (done.returncode, int(done.stdout), done.stderr) == (0, len(npy(DATA)), "")
    wait_until(lambda: place.exists() == exists)


@pytest.mark.usefixtures("temporary")
def test_place_can_be_a_link(store: Path, tmp_path: Path) -> None:
    """The command gets its target, as fusermount3 would not unmount at a link."""
    place, link = tmp_path / "place", tmp_path / "link"
    place.mkdir()
    link.symlink_to("place")
    assert run("--at", link, store, script="echo {}; ls {}").stdout == f"{place.resolve()}\nmeta\nreward.npy\n"
    assert link.is_symlink()


@pytest.mark.usefixtures("temporary")
def test_mistakes_have_statuses_of_their_own(store: Path, tmp_path: Path) -> None:
    def failed(*words: str | Path) -> tuple[int, str]:
        done = subprocess.run([*COMMAND, "run", *words], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        return done.returncode, done.stderr

    assert failed(store, "--", "no-such-command")[0] == 127
    assert failed(store, "--", store)[0] == 126
    assert failed("missing", "--", "true") == (125, "glassfs: missing: no such file or folder\n")
    (tmp_path / "damaged.npz").write_bytes(b"PK\3\4")
    assert failed(tmp_path / "damaged.npz", "--", "true")[0] == 125
    assert failed("--at", store, store, "--", "true")[0] == 125


@pytest.mark.parametrize(("words", "said"), [
    (["a.kdb"], "'--' is missing"), (["a.kdb", "python", "train.py", "--data", "{}"], "'--' is missing"),
    (["--", "true"], "SOURCE is missing"), (["a.kdb", "--"], "COMMAND is missing"),
    (["a.kdb", "--", ""], "COMMAND is missing"), (["a.kdb", "-o", "debug", "--", "true"], "in the foreground"),
])
def test_misuse_is_explained(words: Sequence[str], said: str) -> None:
    done = in_process("run", *words)
    assert (done.status, done.output) == (2, b"")
    assert said in done.errors[0]


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_end_of_a_program_is_seen(monkeypatch: pytest.MonkeyPatch, has_descriptors: bool) -> None:
    """Also without descriptors of processes, as before Linux 5.3, and without Python's function for these."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    if not has_descriptors:
        monkeypatch.setattr(daemon, "_LIBC", SimpleNamespace(syscall=lambda *_: -1))
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _signal: killed.append(pid))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        waiting = threading.Thread(target=daemon._end_after, args=[process.pid])
        waiting.start()
        assert not killed
    waiting.join()
    assert killed == [os.getpid()]
