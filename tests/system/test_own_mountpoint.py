"""``glassfs mount SOURCE`` creates a mount point, prints it and removes it; it never touches other directories."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassfs.mount.system import make
from tests.mount.mounts import COMMAND, glassfs, is_mounted, is_running, require
from tests.system.conftest import pid_of
from tests.waiting import SECONDS, wait_until


@pytest.fixture
def here(tmp_path: Path, store: Path) -> Iterator[Path]:
    """A working directory with ``run.kas`` and a folder ``data``. Mounts left in it are removed."""
    require()
    place = tmp_path / "here"
    (place / "data").mkdir(parents=True)
    (place / "run.kas").write_bytes(store.read_bytes())
    yield place
    for path in place.iterdir():
        if is_mounted(path):
            subprocess.run(["umount", "-l", str(path)], check=False)


@pytest.mark.parametrize(("source", "name"), [
    ("data/", "data-glassfs"), pytest.param("run.kas", "run", marks=pytest.mark.slow),
    pytest.param("data", "data-glassfs", marks=pytest.mark.slow),
])
def test_mount_point_is_created_printed_and_removed(here: Path, source: str, name: str) -> None:
    before = sorted(os.listdir(here))
    done = glassfs("mount", source, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{source} is mounted at {name}; to unmount it: glassfs umount {name}\n"
    assert is_mounted(here / name)
    assert glassfs("umount", name, cwd=here).returncode == 0
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize("name", [pytest.param("new", marks=pytest.mark.slow), "data/../-new"])
def test_missing_mount_point_is_created_and_removed(here: Path, name: str) -> None:
    before = sorted(os.listdir(here))
    done = glassfs("mount", "--views", "zarr", "--", "run.kas", name, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert is_mounted((here / name).resolve())
    assert "array.zarr" in os.listdir(here / name)
    status = json.loads((here / name / ".glassfs/status.json").read_text())
    assert status["sources"] == [str(here / "run.kas")]
    assert f"{here}/run.kas on {(here / name).resolve()}: " in glassfs("status").stdout
    assert glassfs("umount", f"./{name}", cwd=here).returncode == 0
    assert sorted(os.listdir(here)) == before


@pytest.mark.slow
@pytest.mark.parametrize("change", ["replaced", pytest.param("filled", marks=pytest.mark.slow)])
def test_mount_point_changed_after_a_lazy_unmount_stays(here: Path, change: str) -> None:
    """Only the directory that was created is removed, and only while it is empty."""
    assert glassfs("mount", "run.kas", cwd=here).returncode == 0
    pid = pid_of(here / "run")
    with (here / "run/array.npy").open("rb"):
        assert glassfs("umount", "--lazy", "run", cwd=here).returncode == 0
        if change == "replaced":
            (here / "run").rename(here / "old")
            (here / "run").mkdir()
        else:
            (here / "run/mine.txt").write_text("mine")
    wait_until(lambda: not is_running(pid))
    assert (here / "run").is_dir() and (here / ("old" if change == "replaced" else "run/mine.txt")).exists()


@pytest.mark.parametrize("words", [
    ["bad.kas"], ["."], ["-f", "bad.kas"], *(pytest.param(words, marks=pytest.mark.slow) for words in (
        ["none.kas"], ["bad.kas", "new"], ["-o", "colour", "run.kas"], ["-o", "spool=/none", "run.kas"],
        ["--log-file", "/none/log", "run.kas"], ["/"], ["none.kas", "new"], ["-f", "bad.kas", "new"],
        ["run.kas", "s3://bucket/new"], ["--views", "mp5", "run.kas", "new"],
    )),
])
def test_failed_mount_leaves_nothing(here: Path, words: list[str]) -> None:
    (here / "bad.kas").write_bytes((here / "run.kas").read_bytes()[:-8])
    before = sorted(os.listdir(here))
    done = glassfs("mount", *words, cwd=here)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("glassfs: ")
    wait_until(lambda: sorted(os.listdir(here)) == before)


def test_foreground_mount_removes_its_mount_point(here: Path) -> None:
    process = subprocess.Popen([*COMMAND, "mount", "-f", "run.kas"], cwd=here, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: is_mounted(here / "run"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert said.startswith("run.kas is mounted at run, until Ctrl-C\n")
    assert not (here / "run").exists()


@pytest.mark.slow
def test_mount_point_of_a_killed_daemon_stays(here: Path) -> None:
    assert glassfs("mount", "run.kas", cwd=here).returncode == 0
    pid = pid_of(here / "run")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert glassfs("umount", "run", cwd=here).returncode == 0
    assert os.listdir(here / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with blank", "it's", "-o", "ünï", "line\nbreak"])
def test_printed_command_can_be_typed(here: Path, name: str) -> None:
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
    ("else/a.b.kdb", "a.b"), ("run.wshard.partial", "run"), ("else/plain", "plain-glassfs"),
    ("else/.hidden", ".hidden-glassfs"), ("else/-o.kas", "./-o"), ("s3://bucket/datasets", "datasets-glassfs"),
    ("s3://bucket", "bucket-glassfs"), ("s3://bucket/run.kdb", "run"), ("s3://bucket/run.kdb/", "run.kdb-glassfs"),
    ("https://host/run.kdb?X-Amz-Signature=secret", "run"), ("https://host:8000/", "host-glassfs"),
    ("https://host/a%0A.kas", "a%0A"), ("https://host/-x.kas", "./-x"),
])
def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    own = make(source)
    assert (own.name, own.path) == (name, os.path.join(tmp_path, os.path.basename(name)))
    assert os.listdir(tmp_path) == [os.path.basename(name)]
    own.remove()
    own.remove()
    assert os.listdir(tmp_path) == []


def test_existing_paths_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even an empty directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run-glassfs").write_text("mine")
    assert make("run.kas").name == "run-glassfs-2"
