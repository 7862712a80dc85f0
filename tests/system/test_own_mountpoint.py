"""``glassfs mount SOURCE``: a mount point that glassfs makes, says, and takes away again; and nothing but that."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.mount.mountpoint import make
from tests.mount.mounts import COMMAND, glassfs, is_mounted, is_running, missing
from tests.waiting import wait_until


@pytest.fixture
def here(tmp_path: Path, store: Path) -> Iterator[Path]:
    """A folder to stand in, with ``run.kas`` and a folder ``data``, in which nothing stays mounted."""
    reason = missing("3") and missing("2")
    if reason:
        pytest.skip(reason)
    place = tmp_path / "here"
    (place / "data").mkdir(parents=True)
    (place / "run.kas").write_bytes(store.read_bytes())
    yield place
    for path in place.iterdir():
        if is_mounted(path):
            subprocess.run(["umount", "-l", str(path)], check=False)


def pid_of(mountpoint: Path) -> int:
    number: int = json.loads((mountpoint / ".glassfs/status.json").read_text())["pid"]
    return number


@pytest.mark.parametrize(("source", "name"), [("run.kas", "run"), ("data", "data-glassfs"), ("data/", "data-glassfs")])
def test_it_is_made_named_and_removed(here: Path, source: str, name: str) -> None:
    before = sorted(os.listdir(here))
    done = glassfs("mount", source, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{source} is mounted at {name}; to unmount it: glassfs umount {name}\n"
    assert is_mounted(here / name)
    assert glassfs("umount", name, cwd=here).returncode == 0
    assert sorted(os.listdir(here)) == before


def test_what_is_there_is_never_used(here: Path) -> None:
    """Not even an empty directory: it is somebody's."""
    (here / "run").mkdir()
    (here / "run-glassfs").write_text("mine")
    done = glassfs("mount", "run.kas", cwd=here)
    assert "is mounted at run-glassfs-2;" in done.stdout
    assert glassfs("umount", "run-glassfs-2", cwd=here).returncode == 0
    assert os.listdir(here / "run") == []
    assert (here / "run-glassfs").read_text() == "mine"
    assert not (here / "run-glassfs-2").exists()


def test_a_mount_point_that_somebody_else_made_stays(here: Path) -> None:
    (here / "run").mkdir()
    assert glassfs("mount", "run.kas", "run", cwd=here).returncode == 0
    pid = pid_of(here / "run")
    assert glassfs("umount", "run", cwd=here).returncode == 0
    wait_until(lambda: not is_running(pid))
    assert (here / "run").is_dir()


def test_another_directory_of_its_name_stays(here: Path) -> None:
    """Only the one that was made is removed, and a lazy unmount leaves time to put another in its place."""
    assert glassfs("mount", "run.kas", cwd=here).returncode == 0
    pid = pid_of(here / "run")
    with (here / "run/array.npy").open("rb"):
        assert glassfs("umount", "--lazy", "run", cwd=here).returncode == 0
        (here / "run").rename(here / "old")
        (here / "run").mkdir()
    wait_until(lambda: not is_running(pid))
    assert (here / "run").is_dir() and (here / "old").is_dir()


def test_what_somebody_puts_there_stays(here: Path) -> None:
    assert glassfs("mount", "run.kas", cwd=here).returncode == 0
    pid = pid_of(here / "run")
    with (here / "run/array.npy").open("rb"):
        assert glassfs("umount", "--lazy", "run", cwd=here).returncode == 0
        (here / "run/mine.txt").write_text("mine")
    wait_until(lambda: not is_running(pid))
    assert (here / "run/mine.txt").read_text() == "mine"


@pytest.mark.parametrize("words", [
    ["bad.kas"], ["none.kas"], ["."], ["-o", "colour", "run.kas"], ["-o", "spool=/none", "run.kas"],
    ["--log-file", "/none/log", "run.kas"], ["-f", "bad.kas"], ["/"],
])
def test_nothing_is_left_where_mounting_fails(here: Path, words: list[str]) -> None:
    (here / "bad.kas").write_bytes((here / "run.kas").read_bytes()[:-8])
    before = sorted(os.listdir(here))
    done = glassfs("mount", *words, cwd=here)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("glassfs: ")
    wait_until(lambda: sorted(os.listdir(here)) == before)


def test_in_the_foreground_it_goes_when_the_mount_ends(here: Path) -> None:
    process = subprocess.Popen([*COMMAND, "mount", "-f", "run.kas"], cwd=here, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: is_mounted(here / "run"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said.startswith("run.kas is mounted at run, until Ctrl-C\n")
    assert not (here / "run").exists()


def test_after_a_killed_daemon_it_stays_until_somebody_removes_it(here: Path) -> None:
    assert glassfs("mount", "run.kas", cwd=here).returncode == 0
    pid = pid_of(here / "run")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert glassfs("umount", "run", cwd=here).returncode == 0
    assert os.listdir(here / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with blank", "it's", "-o", "ünï", "line\nbreak"])
def test_what_it_says_can_be_typed(here: Path, name: str) -> None:
    (here / f"{name}.kas").write_bytes((here / "run.kas").read_bytes())
    done = glassfs("mount", f"./{name}.kas", cwd=here)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert is_mounted(here / name)
    if name.isprintable():
        words = done.stdout.partition("to unmount it: glassfs umount ")[2]
        assert glassfs("umount", *shlex.split(words), cwd=here).returncode == 0
    else:
        assert glassfs("umount", name, cwd=here).returncode == 0
    assert not (here / name).exists()


@pytest.mark.parametrize(("source", "name"), [
    ("a.b.kdb", "a.b"), ("run.wshard.partial", "run"), ("plain", "plain-glassfs"), (".hidden", ".hidden-glassfs"),
    ("-o.kas", "./-o"),
])
def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    own = make(f"somewhere/else/{source}")
    assert (own.name, own.path) == (name, str(tmp_path / name))
    assert own.path == os.path.realpath(own.name)
    own.remove()
    own.remove()
    assert os.listdir(tmp_path) == []
